"""Many rows' tokens at once, from their candidates: the filters and draws of a group in one go.

The arithmetic is that of filters.py and sampler.draw, row by row, in the same order and precision.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .candidates import CandidateRows
    from .sampler import Sampler

_FEW = 3  # rows that are faster one by one

SMALLEST = np.finfo(np.float32).tiny  # stands for temperatures below it


class Chain(NamedTuple):
    """The settings of a chain that needs no more than the first top_k candidates of a row."""

    temperature: float  # 0: the best token, nothing else matters
    top_k: int = 1
    top_p: float = 1.0
    min_p: float = 0.0
    min_keep: int = 0


def choose_tokens(
    rows: "CandidateRows", places: Sequence[int], samplers: Sequence["Sampler"]
) -> list[int | None]:
    """The token of each sampler from the row at its place; None where that takes more than this.

    What was chosen is still to be told to the samplers (Sampler.chose).
    """
    tokens: list[int | None] = [None] * len(samplers)
    groups: dict[Chain, list[int]] = {}
    for i, sampler in enumerate(samplers):
        chain = sampler.chain()
        if chain is not None:
            groups.setdefault(chain, []).append(i)
    for chain, members in groups.items():
        if len(members) <= _FEW:
            for i in members:
                tokens[i] = _choose_one(rows, places[i], samplers[i], chain)
        else:
            _choose_all(rows, places, samplers, chain, members, tokens)
    return tokens


def _choose_one(rows: "CandidateRows", place: int, sampler: "Sampler", chain: Chain) -> int | None:
    logits, top_k = rows.logits[place], chain.top_k
    if top_k > len(logits) or logits[top_k - 1] == -np.inf or not rows.finite[place]:
        return None
    if chain.temperature <= 0.0:
        return int(rows.ids[place, 0])
    return int(rows.ids[place, draw_one(logits[:top_k], sampler.random(), chain)])


def _choose_all(
    rows: "CandidateRows",
    places: Sequence[int],
    samplers: Sequence["Sampler"],
    chain: Chain,
    members: list[int],
    tokens: list[int | None],
) -> None:
    top_k = chain.top_k
    if top_k > rows.logits.shape[1]:
        return
    at = [places[i] for i in members]
    fine = rows.finite[at] & (rows.logits[at, top_k - 1] > -np.inf)
    if not fine.all():
        members = [i for i, each in zip(members, fine.tolist(), strict=True) if each]
        at = [places[i] for i in members]
    index: int | NDArray[np.intp] = 0
    if chain.temperature > 0.0:
        points = np.array([samplers[i].random() for i in members])
        index = draw_all(rows.logits[at, :top_k], points, chain)
    for i, token_id in zip(members, rows.ids[at, index].tolist(), strict=True):
        tokens[i] = token_id


def draw_one(logits: NDArray[np.float32], point: float, chain: Chain) -> int:
    """The place in a row (best first, finite) that the point falls on."""
    below = logits - logits[0]
    count = len(below)
    if chain.top_p < 1.0:
        exps = np.exp(below)
        shares = exps.cumsum() / exps.sum()
        count = min(
            count, max(int(shares.searchsorted(np.float32(chain.top_p))) + 1, chain.min_keep)
        )
    if chain.min_p > 0.0:
        bound = logits[0] + np.log(np.float32(chain.min_p))
        kept = int(np.count_nonzero(logits >= bound))
        count = min(count, max(kept, 1, chain.min_keep))
    below = below[:count]
    with np.errstate(over="ignore"):
        below /= max(np.float32(chain.temperature), SMALLEST)
    edges = np.exp(below).cumsum(dtype=np.float64)
    index = int(edges.searchsorted(point * edges[-1], side="right"))
    return index if index < count else int(edges.searchsorted(edges[-1]))


def draw_all(
    logits: NDArray[np.float32], points: NDArray[np.float64], chain: Chain
) -> NDArray[np.intp]:
    """The place in each row (best first, finite) that its point falls on."""
    size = logits.shape[1]
    below = logits - logits[:, :1]
    counts = np.full(len(logits), size)
    if chain.top_p < 1.0:
        exps = np.exp(below)
        shares = np.cumsum(exps, axis=1) / exps.sum(axis=1)[:, None]
        counts = (shares < np.float32(chain.top_p)).sum(axis=1) + 1
        counts = np.minimum(np.maximum(counts, chain.min_keep), size)
    if chain.min_p > 0.0:
        bounds = logits[:, :1] + np.log(np.float32(chain.min_p))
        kept = np.maximum((logits >= bounds).sum(axis=1), max(1, chain.min_keep))
        counts = np.minimum(counts, kept)
    with np.errstate(over="ignore"):
        below /= max(np.float32(chain.temperature), SMALLEST)
    edges = np.cumsum(np.exp(below), axis=1, dtype=np.float64)
    totals = edges[np.arange(len(edges)), counts - 1]
    index = (edges <= (points * totals)[:, None]).sum(axis=1)
    last = (edges < totals[:, None]).sum(axis=1)  # the last place that adds something
    return np.minimum(index, last)
