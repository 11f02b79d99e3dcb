"""ACTIVATE on the device: every non-linearity, with and without an up, in all outputs."""

from typing import Any

import numpy as np
import pytest

from llamba.models.architecture import Activation
from llamba.runtime.kernels.cuda.launch import Fields, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.activation import activate_rows
from llamba.runtime.kernels.reference_math import activate, gelu, sigmoid


def put(device: Any, array: np.ndarray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, array)
    return at


def run(
    device: Any, fields: dict[str, Any], tokens: int, columns: int, mode: Mode = Mode.INT8
) -> Any:
    """ACTIVATE with these fields; a function that reads one of its outputs."""
    sizes = {"act_q": 1, "act_scales": 1, "act_half": 2, "act_plain": 4}
    outs = {name: device.allocate(tokens * columns * n) for name, n in sizes.items()}
    shape = StepShape(tokens, mode, tokens, 1, 0, StepAddresses(0, 0, 0, 0, 0, 0))
    launches = activate_rows(Fields({"columns": columns, **outs, **fields}), shape)
    device.load([launch.kernel for launch in launches])
    device.run(launches)

    def read(name: str, dtype: Any) -> np.ndarray:
        return device.read(outs[name], tokens * columns * sizes[name]).view(dtype)

    return read


@pytest.mark.parametrize("columns", [32, 544, 1536])
@pytest.mark.parametrize("kind", list(Activation))
def test_kinds(device: Any, kind: Activation, columns: int) -> None:
    tokens, stride = 3, 2 * columns + 64
    rng = np.random.default_rng(columns)
    x = (rng.standard_normal((tokens, stride)) * 4).astype(np.float32)
    x[0, :8] = [0, -0.0, 90, -90, 1e4, -1e4, 1e-30, 7.5]
    at = put(device, x)
    fields = {"gate": at, "up": at + 4 * columns, "stride": 4 * stride, "kind": kind.value}
    read = run(device, fields, tokens, columns)
    gate, up = (x[:, i * columns :][:, :columns].astype(np.float64) for i in (0, 1))
    expected = activate(kind, gate, up, gelu)
    got = read("act_plain", np.float32).reshape(tokens, columns)
    np.testing.assert_allclose(got, expected, rtol=4e-6, atol=1e-6)
    d = np.abs(got.reshape(tokens, -1, 32)).max(2) / 127
    pairs = read("act_scales", np.float32)[: 2 * d.size].reshape(*d.shape, 2)
    q = read("act_q", np.int8).reshape(*d.shape, 32)
    np.testing.assert_allclose(pairs[..., 0], d, rtol=1e-6)
    np.testing.assert_allclose(pairs[..., 1], d * q.sum(2, dtype=np.int64), rtol=1e-5, atol=1e-9)
    off = np.abs(q * d[..., None] - got.reshape(*d.shape, 32))
    assert np.all(off <= d[..., None] * 0.5001)


@pytest.mark.parametrize("kind", list(Activation))
def test_without_an_up(device: Any, kind: Activation) -> None:
    """f(gate) where a model has no gates, with a factor by token; or no f at all."""
    tokens, columns = 5, 96
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((tokens, columns)) * 3).astype(np.float32)
    shares = (rng.standard_normal(tokens) * 3).astype(np.float32)
    fields = {
        "gate": put(device, x), "stride": 4 * columns, "kind": kind.value,
        "token_gate": put(device, shares),
    }  # fmt: skip
    wide, by = x.astype(np.float64), sigmoid(shares.astype(np.float64))[:, None]
    got = run(device, {**fields, "alone": 1}, tokens, columns)("act_plain", np.float32)
    one = np.ones_like(wide)
    expected = activate(kind, wide, one, gelu) * by
    np.testing.assert_allclose(got.reshape(x.shape), expected, rtol=4e-6, atol=1e-6)
    got = run(device, fields, tokens, columns)("act_plain", np.float32)
    np.testing.assert_allclose(got.reshape(x.shape), wide * by, rtol=2e-6)


def test_half(device: Any) -> None:
    """In Mode.HALF, float16 and nothing else."""
    tokens, columns = 16, 160
    x = np.random.default_rng(2).standard_normal((tokens, columns)).astype(np.float32)
    read = run(device, {"gate": put(device, x), "stride": 4 * columns}, tokens, columns, Mode.HALF)
    np.testing.assert_array_equal(read("act_half", np.float16).reshape(x.shape), x.astype("f2"))
    assert not read("act_q", np.int8).any()
