"""Statistics of importance matrices, against their definitions written out plainly."""

from math import isnan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.models.importance import Importance, Sums
from llamba.models.importance_statistics import (
    TensorStatistics,
    layer_statistics,
    tensor_statistics,
)


def sums(seed: int, counts: Any = (7,), columns: int = 64) -> Sums:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((len(counts), columns)).astype(np.float32)
    return Sums(np.square(values) * 3, np.array(counts), values)


def values_of(entry: Sums) -> Any:
    assert entry.values is not None
    return entry.values[0]


def by_name(importance: Importance) -> dict[str, TensorStatistics]:
    return {found.name: found for found in tensor_statistics(importance)}


def test_of_one_weight() -> None:
    entry = sums(1)
    found = by_name(Importance({"blk.0.attn_q.weight": entry}))["blk.0.attn_q.weight"]
    assert entry.values is not None
    x, energy = entry.values[0] / 7.0, entry.squares[0] / 7.0
    share = energy / energy.sum()
    z = (x - x.mean()) / x.std()
    assert (found.layer, found.num_elements, found.change) == (0, 64, None)
    assert found.energy == pytest.approx(energy.sum(), rel=1e-5)
    assert (found.mean, found.deviation) == pytest.approx((x.mean(), x.std()), rel=1e-4)
    assert found.skewness == pytest.approx((z**3).mean(), rel=1e-4)
    assert found.kurtosis == pytest.approx((z**4).mean() - 3, rel=1e-3)
    assert found.entropy == pytest.approx(-100 * (share * np.log2(share)).sum() / 6, rel=1e-5)


def test_of_the_older_form() -> None:
    """Without sums of values the mean squares stand in their place."""
    entry = sums(1)
    found = by_name(Importance({"w": Sums(entry.squares, entry.counts)}))["w"]
    energy = entry.squares[0] / 7.0
    assert found.layer is None
    assert (found.mean, found.deviation) == pytest.approx((energy.mean(), energy.std()), rel=1e-5)


def test_a_change_is_from_the_nearest_layer_before() -> None:
    names = [f"blk.{layer}.ffn_up.weight" for layer in (0, 3, 12)]
    entries = {name: sums(i) for i, name in enumerate(names)} | {"blk.1.attn_q.weight": sums(9)}
    found = by_name(Importance(entries))
    assert list(found) == [names[0], "blk.1.attn_q.weight", *names[1:]]
    assert found[names[0]].change is None and found["blk.1.attn_q.weight"].change is None
    change = found[names[2]].change
    assert change is not None
    now, before = entries[names[2]], entries[names[1]]
    assert now.values is not None and before.values is not None
    c, p = now.values[0] / 7.0, before.values[0] / 7.0
    assert change.distance == pytest.approx(np.linalg.norm(c - p), rel=1e-5)
    cosine = float(c @ p) / float(np.linalg.norm(c) * np.linalg.norm(p))
    assert change.cosine == pytest.approx(cosine, abs=1e-6)
    assert change.correlation == pytest.approx(np.corrcoef(c, p)[0, 1], abs=1e-6)
    assert change.covariance == pytest.approx(np.cov(c, p, bias=True)[0, 1], abs=1e-8)
    gain = sqrt(float(now.squares.sum() / before.squares.sum()))
    assert change.gain == pytest.approx(gain, rel=1e-5)


def test_experts_that_saw_nothing_do_not_count() -> None:
    some, all_ = sums(1, (5, 0, 2)), sums(2, (5, 3, 2))
    none = Sums(some.squares, np.zeros(3, np.int64), some.values)
    entries = {"blk.0.e.weight": some, "blk.1.e.weight": all_, "blk.2.e.weight": none}
    found = by_name(Importance(entries))
    assert sorted(found) == ["blk.0.e.weight", "blk.1.e.weight"]
    assert found["blk.0.e.weight"].num_elements == 128
    change = found["blk.1.e.weight"].change
    assert change is not None and change.num_elements == 128
    assert (change.num_energies, change.num_energies_before) == (192, 128)


def test_of_layers() -> None:
    entries = {
        f"blk.{layer}.{part}.weight": sums(10 * layer + i)
        for layer in range(2)
        for i, part in enumerate(("a", "b"))
    }
    tensors = tensor_statistics(Importance(entries | {"output.weight": sums(5)}))
    first, second = layer_statistics(tensors)
    assert tensors[-1].name == "output.weight"
    assert first.change is None and second.change is not None
    assert second.energy == sum(t.energy for t in tensors if t.layer == 1)
    (c, p) = (
        np.concatenate([values_of(entries[f"blk.{n}.{part}.weight"]) / 7.0 for part in "ab"])
        for n in (1, 0)
    )
    cosine = float(c @ p) / float(np.linalg.norm(c) * np.linalg.norm(p))
    assert second.change.cosine == pytest.approx(cosine, abs=1e-6)
    assert second.change.distance == pytest.approx(np.linalg.norm(c - p), rel=1e-5)


def test_what_means_nothing_is_nan() -> None:
    zeros = Sums(np.zeros((1, 4), np.float32), np.array([3]), np.zeros((1, 4), np.float32))
    found = by_name(Importance({"blk.0.w.weight": zeros, "blk.1.w.weight": zeros}))
    change = found["blk.1.w.weight"].change
    assert change is not None
    assert isnan(change.cosine) and isnan(change.correlation) and change.gain == 1
    one = found["blk.0.w.weight"]
    assert (one.skewness, one.kurtosis, one.entropy) == (0, 0, 0)


def test_equals_llama_imatrix(shared: Path) -> None:
    """Of the golden matrix; llama-imatrix --in-file writes these beside the sums."""
    found = by_name(Importance.open(shared / "open" / "tiny.imatrix.gguf"))
    tensor = found["blk.2.ffn_down.weight"]
    change = tensor.change
    assert change is not None and tensor.num_elements == 1536
    of_tensor = tensor.energy, tensor.mean, tensor.deviation, tensor.skewness, tensor.kurtosis
    assert of_tensor == pytest.approx((124.792, 0.0812449, 0.0895636, 5.30444, 61.0798), rel=1e-5)
    assert tensor.entropy == pytest.approx(94.8317, rel=1e-5)
    of_change = change.gain, change.distance, change.cosine, change.correlation, change.covariance
    expected = 0.999958, 4.62575, 0.4931, 0.0205609, 0.000144989
    assert of_change == pytest.approx(expected, rel=1e-5)
