"""EXPERTS and MERGE on the device: each pair's own matrix, alone and sorted; weighted sums."""

from typing import Any

import numpy as np
import pytest
from random_rows import FORMAT_NAMES, Activations, dequantized, random_rows

from llamba.quant.cuda.planes import FLOATS, regroup
from llamba.runtime.kernels.cuda.launch import (
    Fields,
    Launch,
    Matrix,
    Mode,
    StepAddresses,
    StepShape,
)
from llamba.runtime.kernels.cuda.launches.experts import (
    can_join,
    experts_rows,
    experts_together,
    merge_rows,
)
from llamba.runtime.kernels.cuda.launches.route import are_sorted

NUMBER = 6  # experts

# Who chooses whom: (tokens, used).
CHOICES: dict[str, list[list[int]]] = {
    "one token": [[4]],
    "all experts": [[3, 1, 0, 5, 2, 4]],
    "all one": [[2]] * 67,
    "two a token": [[t % 5, (t + 1 + t % 3) % 5] for t in range(37)],
}


def put(device: Any, array: np.ndarray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, np.ascontiguousarray(array))
    return at


def run(device: Any, launches: list[Launch]) -> None:
    """Load what is launched, and launch it."""
    device.load([launch.kernel for launch in launches])
    device.run(launches)


def shape_of(tokens: int) -> StepShape:
    """A step of so many tokens."""
    return StepShape(tokens, Mode.INT8, tokens, 1, 0, StepAddresses(0, 0, 0, 0, 0, 0))


def slots_of(chosen: np.ndarray) -> np.ndarray:
    """The pairs as ROUTE leaves them: in order, or by expert in any order."""
    slots = chosen.reshape(-1) << 32 | np.arange(chosen.size)
    tokens, used = chosen.shape
    if are_sorted(tokens, used, NUMBER):
        slots = np.sort(np.random.default_rng(0).permutation(slots))
    return slots


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_experts(device: Any, name: str, choice: str) -> None:
    """The input is a token's row or a pair's own, and a part of a wider one."""
    chosen, rng = np.array(CHOICES[choice], np.int64), np.random.default_rng(1)
    tokens, used = chosen.shape
    columns, rows, at = 256, 37, 64
    raw = random_rows(name, rng, NUMBER * rows, columns)
    w = dequantized(name, raw, columns).reshape(NUMBER, rows, columns)
    bias = rng.standard_normal((NUMBER, rows)).astype(np.float32)
    of_token = used > 1
    x = Activations(rng, tokens if of_token else chosen.size, columns + at)
    out = put(device, np.full((chosen.size, rows + 3), 7, np.float32))
    fields = {
        "matrix": Matrix(name, NUMBER * rows, columns, put(device, regroup(name, raw, columns))),
        "num_rows": rows, "columns": columns, "used": used, "divide": used if of_token else 1,
        "x_columns": columns + at, "column_at": at, "slots": put(device, slots_of(chosen)),
        "out": out, "out_stride": 4 * (rows + 3), "bias": put(device, bias) if used != 2 else 0,
    }  # fmt: skip
    if name in FLOATS:
        fields["x_plain"] = put(device, x.plain)
    else:
        fields |= {"x_q": put(device, x.q), "x_scales": put(device, x.scales)}
    run(device, experts_rows(Fields(fields), shape_of(tokens)))
    values = (x.plain.astype(np.float64) if name in FLOATS else x.values)[:, at:]
    expected = np.array(
        [
            w[e] @ values[p // used if of_token else p] + (bias[e] if used != 2 else 0)
            for p, e in enumerate(chosen.reshape(-1))
        ]
    )
    got = device.read(out, chosen.size * (rows + 3) * 4).view(np.float32)
    got = got.reshape(chosen.size, rows + 3)
    assert (got[:, rows:] == 7).all()
    assert np.abs(got[:, :rows] - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("tokens", [1, 40])
def test_two_matrices_of_one_input(device: Any, tokens: int) -> None:
    """Gate and up as one launch are what they are as two."""
    name, columns, rows, rng = "q4_k", 256, 37, np.random.default_rng(2)
    chosen = rng.permuted(np.tile(np.arange(NUMBER), (tokens, 1)), axis=1)[:, :2]
    x, out = Activations(rng, tokens, columns), device.allocate(16 * chosen.size * rows)
    shared = {
        "num_rows": rows, "columns": columns, "used": 2, "divide": 2, "x_columns": columns,
        "slots": put(device, slots_of(chosen)), "x_q": put(device, x.q),
        "x_scales": put(device, x.scales), "out_stride": 16 * rows,
    }  # fmt: skip
    fields = []
    for k in range(2):
        planes = put(device, regroup(name, random_rows(name, rng, NUMBER * rows, columns), columns))
        matrix = Matrix(name, NUMBER * rows, columns, planes)
        bias = put(device, rng.standard_normal((NUMBER, rows)).astype(np.float32))
        fields.append({**shared, "matrix": matrix, "bias": bias, "out": out + 4 * k * rows})
    assert can_join(Fields(fields[0]), Fields(fields[1]))
    assert not can_join(Fields(fields[0]), Fields({**fields[1], "divide": 1}))
    both = experts_together([Fields(f) for f in fields], shape_of(tokens))
    again = [Fields({**f, "out": f["out"] + 8 * rows}) for f in fields]
    assert len(both) == 1
    run(device, both + [work for f in again for work in experts_rows(f, shape_of(tokens))])
    got = device.read(out, 16 * chosen.size * rows).view(np.float32).reshape(chosen.size, 2, -1)
    assert got.any(2).all()
    np.testing.assert_array_equal(got[:, 0], got[:, 1])


@pytest.mark.parametrize("columns", [32, 288, 1056])
@pytest.mark.parametrize("residual", [0, 1])
def test_merge(device: Any, residual: int, columns: int) -> None:
    rng, tokens, used = np.random.default_rng(columns), 5, 3
    y = rng.standard_normal((tokens, used, columns)).astype(np.float32)
    weights = rng.random((tokens, used)).astype(np.float32)
    before = rng.standard_normal((tokens, columns)).astype(np.float32)
    out = put(device, before)
    fields = {
        "y": put(device, y), "used": used, "weights": put(device, weights), "columns": columns,
        "out": out, "residual": residual, "factor": 0.75,
    }  # fmt: skip
    run(device, merge_rows(Fields(fields), shape_of(tokens)))
    expected = 0.75 * np.einsum("tuc,tu->tc", y.astype(np.float64), weights) + residual * before
    got = device.read(out, before.nbytes).view(np.float32).reshape(before.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
