"""The highest logits of rows on the device: always exactly they, in their order."""

from typing import Any

import numpy as np
import pytest

from llamba.runtime.kernels.cuda.launches.top import COUNT, TOP, TOP_BYTES, scratch_bytes, top


def found(device: Any, logits: np.ndarray, more: int = 0) -> np.ndarray:
    """TOP of rows of logits that lie `more` apart."""
    rows, vocab = logits.shape
    wide = np.full((rows, vocab + more), 1e9, np.float32)
    wide[:, :vocab] = logits
    at = device.allocate(wide.nbytes)
    device.write(at, wide)
    out, scratch = device.allocate(rows * TOP_BYTES), device.allocate(scratch_bytes(vocab, rows))
    launches = top(at, 4 * (vocab + more), vocab, rows, scratch, out)
    device.load([launch.kernel for launch in launches])
    device.run(launches)
    return device.read(out, rows * TOP_BYTES).view(TOP)


def check(device: Any, logits: np.ndarray, more: int = 0) -> None:
    """That it is what a stable sort gives."""
    for row, got in zip(logits, found(device, logits, more), strict=True):
        order = np.argsort(-row, kind="stable")[:COUNT]
        order = order[row[order] > -np.inf]
        assert got["count"] == len(order)
        np.testing.assert_array_equal(got["ids"][: len(order)], order)
        np.testing.assert_array_equal(got["logits"][: len(order)], row[order])
        assert got["highest"] == row.max() and not got["broken"]
        if len(order):
            total = np.exp(row.astype(np.float64) - row.max()).sum()
            np.testing.assert_allclose(got["sum"], total, rtol=2e-6)
            np.testing.assert_allclose(got["log_sum"], row.max() + np.log(total), rtol=1e-6)


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 1027, 5000, 32000, 128256])
def test_random_logits(device: Any, vocab: int) -> None:
    """Rows whose beginnings are aligned to 16 bytes, and others."""
    rows = 3 if vocab < 100_000 else 1
    logits = np.random.default_rng(vocab).standard_normal((rows, vocab)).astype(np.float32) * 4
    check(device, logits)
    check(device, logits, 1)


def test_equal_logits(device: Any) -> None:
    """Of many that are equal the first: of all, of a few values, of either zero, of a plateau."""
    rng, vocab = np.random.default_rng(5), 10_011
    logits = np.zeros((7, vocab), np.float32)
    logits[1] = -3.5
    logits[2] = rng.integers(0, 3, vocab)
    logits[3, ::3] = -0.0
    logits[4] = np.where(np.arange(vocab) % 177 == 3, 1, rng.standard_normal(vocab) * 0.01)
    logits[5, 7000:] = 1e-38
    logits[6] = np.round(rng.standard_normal(vocab), 1)
    check(device, logits)


def test_few_tokens_are_left(device: Any) -> None:
    """After a mask: none, one, some fewer than are wanted, and some more."""
    vocab, rng = 40_000, np.random.default_rng(6)
    logits = np.full((6, vocab), -np.inf, np.float32)
    logits[1, 777] = -1e30
    for row, count in ((2, 63), (3, 64), (4, 65)):
        logits[row, rng.choice(vocab, count, replace=False)] = rng.standard_normal(count)
    logits[5, 1234:1434] = 2
    check(device, logits)


def test_neighbours_are_best(device: Any) -> None:
    """All of the best in one or two groups, and rising and falling rows."""
    vocab = 20_000
    rising = np.arange(vocab, dtype=np.float32)
    logits = np.stack([rising, -rising, np.where(abs(rising - 9999) < 40, 9, rising * 1e-4)])
    check(device, logits.astype(np.float32))


def test_values_of_any_size(device: Any) -> None:
    """Denormal numbers and those near the largest are in order, too."""
    rng = np.random.default_rng(8)
    bits = rng.integers(0, 0x7F000000, 5000) | (rng.integers(0, 2, 5000) << 31)
    logits = bits.astype(np.uint32).view(np.float32)[None]
    got = found(device, logits)[0]
    order = np.argsort(-logits[0], kind="stable")[:COUNT]
    np.testing.assert_array_equal(got["ids"], order)
    np.testing.assert_array_equal(got["logits"], logits[0][order])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.nan])
@pytest.mark.parametrize("place", [0, 2999])
def test_broken_logits(device: Any, value: float, place: int) -> None:
    logits = np.random.default_rng(9).standard_normal((2, 3000)).astype(np.float32)
    logits[0, place] = value
    assert found(device, logits)["broken"].tolist() == [1, 0]
