"""Rows of the embedding matrix, scaled, with the rows of positions."""

from typing import Any

import numpy as np
import pytest
from random_rows import FORMAT_NAMES, dequantized, random_rows

from llamba.quant.cuda.planes import regroup
from llamba.runtime.kernels.cuda.launch import Fields, Matrix, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.embedding import embed_rows


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("columns, added", [(256, False), (1280, True)])
def test_rows_by_token(device, name: str, columns: int, added: bool) -> None:
    rng = np.random.default_rng(3)

    def put(array: Any) -> int:
        at = device.allocate(array.nbytes)
        device.write(at, np.ascontiguousarray(array))
        return at

    raw = random_rows(name, rng, 11, columns)
    tokens = np.array([10, 0, 3, 3, 7], np.int32)
    positions = np.array([0, 2, 5, 9, 1], np.int32)
    position_rows = rng.standard_normal((6, columns)).astype(np.float32)
    constant = rng.standard_normal(columns).astype(np.float32)
    old = np.zeros((5, columns + 4), np.float32)
    fields: dict[str, Any] = {
        "matrix": Matrix(name, 11, columns, put(regroup(name, raw, columns))),
        "columns": columns, "scale": 1.5, "out": put(old), "out_stride": old.shape[1] * 4,
    }  # fmt: skip
    wanted = 1.5 * dequantized(name, raw, columns)[tokens]
    if added:
        fields |= {
            "position_rows": put(position_rows), "num_positions": 6, "constant_row": put(constant)
        }  # fmt: skip
        wanted += position_rows[np.minimum(positions, 5)] + constant
    step = StepAddresses(put(tokens), put(positions), 0, 0, 0, 0)
    work = embed_rows(Fields(fields), StepShape(5, Mode.INT8, 5, 1, 0, step))
    device.load([w.kernel for w in work])
    device.run(work)
    found = device.read(fields["out"], old.nbytes).view(np.float32).reshape(old.shape)
    assert np.abs(found[:, :columns] - wanted).max() <= 1e-6 * np.abs(wanted).max()
    assert not found[:, columns:].any()
