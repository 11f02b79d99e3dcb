"""Small ops on the device that move or finish rows: GATHER, SLICES, ADAPT, the ends of products."""

from typing import Any

import numpy as np
import pytest

from llamba.runtime.kernels.cuda.launch import Fields, Launch, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.adapter import adapt_rows
from llamba.runtime.kernels.cuda.launches.bias import finish_rows
from llamba.runtime.kernels.cuda.launches.gather import gather_rows
from llamba.runtime.kernels.cuda.launches.slices import slices_rows


def put(device: Any, array: np.ndarray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, array)
    return at


def read(device: Any, at: int, shape: tuple[int, ...]) -> np.ndarray:
    """Float32 from the device."""
    return device.read(at, 4 * int(np.prod(shape))).view(np.float32).reshape(shape)


def shape_of(tokens: int, *, out_rows: int = 0, mode: Mode = Mode.INT8) -> StepShape:
    """A step of so many tokens."""
    return StepShape(tokens, mode, tokens, 1, 0, StepAddresses(0, 0, 0, 0, out_rows, 0))


def run(device: Any, launches: list[Launch]) -> None:
    """Load what is launched, and launch it."""
    device.load([launch.kernel for launch in launches])
    device.run(launches)


def random(*shape: int) -> np.ndarray:
    """Float32 numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("columns", [32, 544, 2048])
def test_gather(device: Any, columns: int) -> None:
    x, rows = random(9, columns + 32), np.array([8, 0, 3, 3, 5], np.int32)
    out = put(device, np.full((5, columns + 16), 7, np.float32))
    fields = {
        "x": put(device, x), "x_stride": 4 * (columns + 32), "columns": columns, "out": out,
        "out_stride": 4 * (columns + 16),
    }  # fmt: skip
    run(device, gather_rows(Fields(fields), shape_of(5, out_rows=put(device, rows))))
    got = read(device, out, (5, columns + 16))
    np.testing.assert_array_equal(got[:, :columns], x[rows, :columns])
    assert (got[:, columns:] == 7).all()


@pytest.mark.parametrize(("heads", "columns"), [(1, 32), (5, 64), (16, 48), (7, 160)])
def test_slices(device: Any, heads: int, columns: int) -> None:
    """Columns 4.. of each head, elsewhere, and as bytes."""
    tokens, each, width = 3, columns + 24, heads * columns
    x = random(tokens, heads * each + 8)
    fields = {
        "x": put(device, x) + 16, "x_stride": 4 * (heads * each + 8), "step": 4 * each,
        "heads": heads, "columns": columns,
    }  # fmt: skip
    wanted = x[:, : heads * each].reshape(tokens, heads, each)[:, :, 4 : 4 + columns]
    out = device.allocate(4 * tokens * heads * (columns + 8))
    where = {"out": out, "out_stride": 4 * heads * (columns + 8), "out_step": 4 * (columns + 8)}
    run(device, slices_rows(Fields(fields | where), shape_of(tokens)))
    got = read(device, out, (tokens, heads, columns + 8))
    np.testing.assert_array_equal(got[:, :, :columns], wanted)
    assert not got[:, :, columns:].any()
    if width % 32:
        return
    plain, q = device.allocate(4 * tokens * width), device.allocate(tokens * width)
    scales = device.allocate(tokens * width // 4)
    where = {"act_plain": plain, "act_q": q, "act_scales": scales}
    run(device, slices_rows(Fields(fields | where), shape_of(tokens)))
    flat = wanted.reshape(tokens, width)
    np.testing.assert_array_equal(read(device, plain, (tokens, width)), flat)
    d = np.abs(flat.reshape(tokens, -1, 32)).max(2, keepdims=True) / 127
    got = device.read(q, tokens * width).view(np.int8).reshape(tokens, -1, 32)
    assert np.all(np.abs(got * d - flat.reshape(got.shape)) <= d * 0.5001)


@pytest.mark.parametrize("rank", [1, 16, 200])
def test_adapt(device: Any, rank: int) -> None:
    """Nothing is left of a token without the adapter, be it NaN."""
    x, scales = random(4, rank + 8), np.array([0.5, 0, -2, 1], np.float32)
    before = x.copy()
    before[1, 0] = np.nan
    at = put(device, before)
    fields = {"x": at, "stride": 4 * (rank + 8), "columns": rank, "scales": put(device, scales)}
    run(device, adapt_rows(Fields(fields), shape_of(4)))
    got = read(device, at, x.shape)
    np.testing.assert_array_equal(got[:, :rank], x[:, :rank] * scales[:, None])
    np.testing.assert_array_equal(got[:, rank:], x[:, rank:])


@pytest.mark.parametrize("rows", [1, 33, 1027])
@pytest.mark.parametrize("cap", [0.0, 30.0])
@pytest.mark.parametrize("with_bias", [False, True])
def test_finish(device: Any, with_bias: bool, cap: float, rows: int) -> None:
    y, bias = random(3, rows + 5) * 40, random(rows + 5)[:rows] * 9
    at = put(device, y)
    fields = {
        "out": at, "out_stride": 4 * (rows + 5), "num_rows": rows, "factor": 0.5, "softcap": cap,
        "bias": put(device, bias) if with_bias else 0,
    }  # fmt: skip
    launches = finish_rows(Fields(fields), shape_of(3))
    assert bool(launches) == (with_bias or cap != 0)
    run(device, launches)
    expected = y[:, :rows].astype(np.float64) + (0.5 * bias if with_bias else 0)
    if cap:
        expected = cap * np.tanh(expected / cap)
    got = read(device, at, y.shape)
    np.testing.assert_allclose(got[:, :rows], expected, rtol=1e-5, atol=2e-5)
    np.testing.assert_array_equal(got[:, rows:], y[:, rows:])
