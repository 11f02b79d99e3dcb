"""Pooling by itself: settings, which states count, chunks of any size, what becomes of the sum."""

from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidParameterError, LlambaError
from llamba.models.architecture import Norm
from llamba.runtime.hidden import HiddenStates
from llamba.runtime.pooling import Pooler, Pooling, choose_pooling

DIM = 96


def states(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


def pooled(pooling: Pooling, rows: np.ndarray, chunks: list[int]) -> np.ndarray:
    """The embedding of states that come in chunks."""
    pooler, start = Pooler(pooling, len(rows)), 0
    for count in chunks:
        wanted = pooler.wanted(start, count)
        pooler.add(start, rows[start : start + count][wanted])
        start += count
    assert start == len(rows)
    return pooler.result()


@pytest.mark.parametrize("chunks", [[50], [1] * 50, [16, 16, 16, 2], [49, 1], [1, 49]])
def test_kinds(chunks: list[int]) -> None:
    rows = states(50)
    exact = rows.astype(np.float64)
    expected = {"mean": exact.mean(axis=0), "last": exact[-1], "cls": exact[0]}
    for kind, vector in expected.items():
        pooling = Pooling(kind, normalize=False)  # type: ignore[arg-type]
        got = pooled(pooling, rows, chunks)
        assert got.dtype == np.float32 and got.shape == (DIM,)
        np.testing.assert_allclose(got, vector, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(got, pooled(pooling, rows, [50]))  # to the bit
        unit = pooled(Pooling(kind), rows, chunks)  # type: ignore[arg-type]
        np.testing.assert_allclose(unit, vector / np.linalg.norm(vector), rtol=1e-6, atol=1e-7)


def test_dimensions() -> None:
    rows = states(7)
    whole = pooled(Pooling("mean", normalize=False), rows, [7])
    for count in (1, 17, DIM):
        cut = pooled(Pooling("mean", normalize=False, dimensions=count), rows, [7])
        np.testing.assert_array_equal(cut, whole[:count])
        unit = pooled(Pooling("mean", dimensions=count), rows, [7])
        assert unit.shape == (count,) and np.linalg.norm(unit) == pytest.approx(1)
        np.testing.assert_allclose(unit, cut / np.linalg.norm(cut), rtol=1e-5)


def test_zeros_stay_zero() -> None:
    zeros = np.zeros((3, DIM), np.float32)
    assert pooled(Pooling("mean"), zeros, [3]).tolist() == [0.0] * DIM


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_undefined_numbers_are_no_embedding(bad: float) -> None:
    rows = states(3)
    rows[1, 5] = bad
    with pytest.raises(LlambaError, match="no embedding"):
        pooled(Pooling("mean"), rows, [3])


def test_positions_count_once() -> None:
    """Ours alone to keep: states that come twice, or not at all, are caught."""
    pooler = Pooler(Pooling("mean"), 4)
    pooler.add(0, states(3))
    with pytest.raises(AssertionError, match="position 2 after 3"):
        pooler.add(2, states(2))
    with pytest.raises(AssertionError, match="missing"):
        pooler.result()


def test_the_files_own_kind() -> None:
    def kind(of_file: Any, given: Any = None) -> str:
        return choose_pooling(given, True, None, dim=DIM, of_file=of_file).kind

    assert [kind(i) for i in (None, 0, 1, 2, 3)] == ["mean", "mean", "mean", "cls", "last"]
    assert kind(2, "last") == kind(4, "last") == "last"
    with pytest.raises(InvalidParameterError, match="pooling_type 4"):
        kind(4)
    for damaged in (np.array([1, 0]), "x", 1e30):
        with pytest.raises(InvalidParameterError, match="gives no embedding"):
            kind(damaged)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("pooling", bad) for bad in ("max", "", 1, True, ["mean"])),
        *(("normalize", bad) for bad in (None, 1, "yes")),
        *(("dimensions", bad) for bad in (0, -1, DIM + 1, 1.0, True, "3")),
    ],
)
def test_bad_settings(name: str, bad: Any) -> None:
    settings = {"pooling": None, "normalize": True, "dimensions": None, name: bad}
    with pytest.raises(InvalidParameterError, match=f"{name}="):
        choose_pooling(*settings.values(), dim=DIM)


@pytest.mark.parametrize("kind", [Norm.RMS, Norm.LAYER, None])
@pytest.mark.parametrize("dim", [32, 576, 1000])
def test_hidden_states_in_rows_and_lanes(dim: int, kind: Norm | None) -> None:
    """Both layouts give the same bits, whatever is read together; normed if there is a norm."""
    lanes, blocks, eps = 16, 9, 1e-5
    rng = np.random.default_rng(dim)
    in_lanes = rng.standard_normal((blocks, dim, lanes)).astype(np.float32) * 30
    rows = np.ascontiguousarray(in_lanes.transpose(0, 2, 1)).reshape(-1, dim)
    norm, bias = rng.standard_normal((2, dim)).astype(np.float32)
    hidden = HiddenStates(
        rows=rows.ctypes.data,
        in_lanes=in_lanes.ctypes.data,
        num_lanes=lanes,
        dim=dim,
        norm=norm if kind else None,
        bias=bias if kind is Norm.LAYER else None,
        kind=kind or Norm.RMS,
        eps=eps,
    )
    expected = x = rows.astype(np.float64)
    if kind is Norm.LAYER:
        x = x - x.mean(axis=1, keepdims=True)
    if kind is not None:
        expected = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * norm
        expected += bias if kind is Norm.LAYER else 0.0
    slots = rng.permutation(len(rows)).tolist()
    got = hidden.read(slots, lanes=False)
    np.testing.assert_allclose(got, expected[slots], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(got, hidden.read(slots, lanes=True))
    each = [hidden.read([slot], lanes=slot % 2 == 0)[0] for slot in slots]
    np.testing.assert_array_equal(got, np.array(each))
    assert hidden.read([], lanes=False).shape == (0, dim)
