"""NORM and NORM_ADD on the device: every kind, columns that fill no block, all outputs."""

from typing import Any

import numpy as np
import pytest

from llamba.runtime.kernels.cuda.launch import Fields, Launch, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.norm import norm_add_rows, norm_rows
from llamba.runtime.kernels.records import NORM_LAYER, NORM_NONE, NORM_RMS

COLUMNS = [32, 96, 2080, 4128, 8224]
KINDS = [NORM_RMS, NORM_LAYER, NORM_NONE]
EPS = 1e-5


def shape_of(tokens: int, mode: Mode) -> StepShape:
    """A step of so many tokens."""
    return StepShape(tokens, mode, tokens, 1, 0, StepAddresses(0, 0, 0, 0, 0, 0))


def put(device: Any, array: np.ndarray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, array)
    return at


def normed(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, kind: int) -> np.ndarray:
    """What NORM means, in float64."""
    x = x.astype(np.float64)
    mean = x.mean(1, keepdims=True) if kind == NORM_LAYER else 0.0
    y = x - mean
    if kind != NORM_NONE:
        y = y / np.sqrt((y * y).mean(1, keepdims=True) + EPS)
    y = y * weight
    return y if bias is None else y + bias


def inputs(tokens: int, columns: int, with_bias: bool) -> tuple[np.ndarray, np.ndarray, Any]:
    """x, weight and bias (or None)."""
    rng = np.random.default_rng(columns + tokens)
    x = rng.standard_normal((tokens, columns), np.float32) * 3 + 1
    weight = rng.standard_normal(columns, np.float32)
    bias = rng.standard_normal(columns, np.float32)
    if columns > 32:
        weight[:32] = bias[:32] = 0  # a block whose largest value is 0
    return x, weight, bias if with_bias else None


def run(device: Any, launches: list[Launch]) -> None:
    """Load what is launched, and launch it."""
    device.load(sorted({launch.kernel for launch in launches}))
    device.run(launches)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_norm(device: Any, columns: int, kind: int, with_bias: bool, mode: Mode) -> None:
    tokens = 3 if mode is Mode.INT8 else 16
    x, weight, bias = inputs(tokens, columns, with_bias)
    blocks = columns // 32
    q, scales = device.allocate(tokens * columns), device.allocate(tokens * blocks * 8)
    half, plain = device.allocate(tokens * columns * 2), device.allocate(tokens * columns * 4)
    out = device.allocate(x.nbytes)
    fields = {
        "x": put(device, x), "x_stride": columns * 4, "weight": put(device, weight), "eps": EPS,
        "bias": 0 if bias is None else put(device, bias), "columns": columns, "kind": kind,
        "out": out, "act_q": q, "act_scales": scales, "act_half": half, "act_plain": plain,
    }  # fmt: skip
    run(device, norm_rows(Fields(fields), shape_of(tokens, mode)))
    expected = normed(x, weight, bias, kind)
    size = np.abs(expected).max()
    for address in (out, plain):
        found = device.read(address, x.nbytes).view(np.float32).reshape(x.shape)
        np.testing.assert_allclose(found, expected, atol=size * 2e-6, rtol=1e-5)
    if mode is Mode.HALF:
        found = device.read(half, x.size * 2).view(np.float16).reshape(x.shape)
        np.testing.assert_allclose(found, expected, atol=size * 1e-5, rtol=1e-3)
        return
    got = device.read(q, x.size).view(np.int8)
    pairs = device.read(scales, tokens * blocks * 8).view(np.float32)
    if mode is Mode.TILES:
        got = got.reshape(tokens // 8, blocks, 8, 32).transpose(0, 2, 1, 3)
        pairs = pairs.reshape(tokens // 8, blocks, 8, 2).transpose(0, 2, 1, 3)
    got, pairs = got.reshape(tokens, blocks, 32), pairs.reshape(tokens, blocks, 2)
    in_blocks = expected.reshape(tokens, blocks, 32)
    d = np.abs(in_blocks).max(2) / 127
    np.testing.assert_allclose(pairs[..., 0], d, rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(pairs[..., 1], d * got.sum(2, dtype=np.int64), rtol=1e-5, atol=1e-30)
    # Rounded to the nearest byte, up to the float32 arithmetic before it.
    assert np.all(np.abs(got * d[..., None] - in_blocks) <= d[..., None] * 0.5001)
    assert np.abs(got).max() == 127


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_norm_add(device: Any, columns: int, kind: int, with_bias: bool) -> None:
    tokens, stride = 3, columns + 32
    y, weight, bias = inputs(tokens, columns, with_bias)
    x = np.random.default_rng(1).standard_normal((tokens, stride), np.float32)
    at = put(device, x)
    fields = {
        "x": at, "x_stride": stride * 4, "y": put(device, y), "y_stride": columns * 4,
        "weight": put(device, weight), "bias": 0 if bias is None else put(device, bias),
        "eps": EPS, "columns": columns, "kind": kind, "scale": 0.5,
    }  # fmt: skip
    run(device, norm_add_rows(Fields(fields), shape_of(tokens, Mode.INT8)))
    found = device.read(at, x.nbytes).view(np.float32).reshape(x.shape)
    added = 0.5 * normed(y, weight, bias, kind)
    np.testing.assert_allclose(
        found[:, :columns], x[:, :columns] + added, rtol=1e-5, atol=np.abs(added).max() * 2e-6
    )
    np.testing.assert_array_equal(found[:, columns:], x[:, columns:])


def test_float16_stays_finite(device: Any) -> None:
    """What float16 can't hold becomes its largest number; NaN and what fits are left alone."""
    x = np.tile(np.array([[1e5, -3e6, 65504, np.nan, 1.5, -0.25, 7e4, -65504]], np.float32), 4)
    ones, half = put(device, np.ones(32, np.float32)), device.allocate(64)
    fields = {"x": put(device, x), "x_stride": 128, "weight": ones, "columns": 32}
    fields |= {"kind": NORM_NONE, "act_columns": 32, "act_half": half}
    run(device, norm_rows(Fields(fields), shape_of(1, Mode.HALF)))
    expected = np.clip(x[0], -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(device.read(half, 64).view(np.float16), expected)
