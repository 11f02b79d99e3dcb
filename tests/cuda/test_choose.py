"""The guess at the next token: what the sampler draws with the same settings and point."""

from typing import Any

import numpy as np
import pytest

from llamba.runtime import filters
from llamba.runtime.kernels.cuda.launches.choose import CHOICE, choose
from llamba.runtime.kernels.cuda.launches.top import COUNT, TOP
from llamba.runtime.sampler import draw

SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "hot": {"temperature": 5.0},
    "cold": {"temperature": 1e-30},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-p": {"temperature": 1.0, "top_p": 0.7},
    "nothing but the best": {"temperature": 1.0, "top_p": 0.0},
    "min-p": {"temperature": 1.2, "min_p": 0.05},
    "min-keep": {"temperature": 1.2, "min_p": 0.9, "top_p": 0.1, "min_keep": 3},
    "all": {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
}


def candidates(rng: np.random.Generator, count: int) -> np.ndarray:
    """A row of TOP."""
    row = np.zeros((), TOP)
    row["count"] = count
    row["logits"] = np.sort(rng.standard_normal(COUNT).astype(np.float32) * 2)[::-1]
    row["ids"] = rng.permutation(100_000)[:COUNT]
    return row


def drawn(row: Any, choice: Any) -> tuple[int, float]:
    """(the sampler's token, how near its point is to where another one begins)."""
    count = int(row["count"])
    c = filters.Candidates(row["ids"][:count], row["logits"][:count], True)
    if choice["temperature"] <= 0:
        return int(row["ids"][0]), 1.0
    keep = int(choice["min_keep"])
    c = filters.top_k(c, int(choice["top_k"]))
    c = filters.top_p(c, float(choice["top_p"]), keep)
    c = filters.min_p(c, float(choice["min_p"]), keep)
    weights = np.exp((c.logits - c.logits[0]) / max(choice["temperature"], 1.2e-38))
    edges = np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    assert c.ids is not None
    near = np.abs(edges - choice["point"]).min()
    return int(c.ids[draw(weights, float(choice["point"]))]), float(near)


@pytest.mark.parametrize("name", SETTINGS)
def test_choose(device: Any, name: str) -> None:
    """Of 64 rows, one in two with fewer candidates, all but points within rounding of an edge."""
    rng, rows = np.random.default_rng(len(name)), 64
    tops = np.zeros(rows, TOP)
    for k in range(rows):
        tops[k] = candidates(rng, COUNT if k % 2 else 1 + k)
    choices = np.zeros(rows, CHOICE)
    choices["top_p"], choices["min_keep"] = 1.0, 1
    for field, value in SETTINGS[name].items():
        choices[field] = value
    choices["point"] = rng.random(rows)
    choices["point"][:4] = 0, np.nextafter(np.float32(1), np.float32(0)), 0.5, 0
    choices["target"] = rng.permutation(rows)
    choices["target"][7] = -1
    at, settings, out = (device.allocate(n) for n in (tops.nbytes, choices.nbytes, 4 * rows))
    device.write(at, tops)
    device.write(settings, choices)
    device.write(out, np.full(rows, -5, np.int32))
    launches = choose(at, settings, rows, out, out)
    device.load([launch.kernel for launch in launches])
    device.run(launches)
    got, checked = device.read(out, 4 * rows).view(np.int32), 0
    for k, (row, choice) in enumerate(zip(tops, choices, strict=True)):
        token, near = drawn(row, choice)
        if k != 7 and near > 1e-5:
            assert got[choice["target"]] == token, k
            checked += 1
    assert checked > rows - 8
    assert (got == -5).sum() == 1


def test_no_candidates(device: Any) -> None:
    """A token that exists, whatever lies there."""
    tops, choices = np.zeros(1, TOP), np.zeros(1, CHOICE)
    tops["ids"], choices["temperature"] = 99, 1
    at, settings, out = (device.allocate(n) for n in (tops.nbytes, choices.nbytes, 4))
    device.write(at, tops)
    device.write(settings, choices)
    device.write(out, np.full(1, 7, np.int32))
    launches = choose(at, settings, 1, out, out)
    device.load([launch.kernel for launch in launches])
    device.run(launches)
    assert device.read(out, 4).view(np.int32)[0] == 0
