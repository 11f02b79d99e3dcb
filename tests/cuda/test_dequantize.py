"""Planes to float16, as cuBLAS reads them."""

import numpy as np
import pytest
from random_rows import FORMAT_NAMES, dequantized, random_rows

from llamba.quant.cuda.planes import regroup
from llamba.runtime.kernels.cuda.launch import Matrix
from llamba.runtime.kernels.cuda.launches.dequantize import dequantize


@pytest.mark.parametrize("name", [n for n in FORMAT_NAMES if n != "f16"])
@pytest.mark.parametrize("columns, first, rows", [(256, 0, 1), (768, 3, 5)])
def test_a_range_of_rows(device, name: str, columns: int, first: int, rows: int) -> None:
    raw = random_rows(name, np.random.default_rng(4), first + rows + 1, columns)
    planes = regroup(name, raw, columns)
    at = device.allocate(planes.size)
    device.write(at, planes)
    to = device.allocate(rows * columns * 2)
    launch = dequantize(Matrix(name, len(raw), columns, at), first, rows, to)
    device.load([launch.kernel])
    device.run([launch])
    found = device.read(to, rows * columns * 2).view(np.float16).reshape(rows, columns)
    wanted = dequantized(name, raw, columns)[first : first + rows]
    # Half a unit of float16's last place, or of its subnormal numbers; float32 before that.
    allowed = np.maximum(np.abs(wanted) * 2.0**-11, 2.0**-25) * 1.001
    assert (np.abs(found - wanted) <= allowed).all()
