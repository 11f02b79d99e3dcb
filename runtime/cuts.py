"""The filters of the chain on a row of which only the best tokens are here.

Everything is as in filters.py where it comes out the same; where the rest of the row might change
what can be chosen, or the order in which the draw goes through it, nothing comes back.
"""

import numpy as np

from . import filters
from .candidates import NUM_CANDIDATES, CandidateRow
from .filters import Candidates
from .params import SamplingParams

# A sum of probabilities that is nearer to top_p than this, relatively, may lie on its other side:
# the row's log_norm is rounded, and so are the sums over a whole row that it stands for.
_MARGIN = 1e-4


def needs_rows(p: SamplingParams) -> bool:
    """Settings for which the best tokens are never enough."""
    if p.temperature <= 0.0 and p.typical_p >= 1.0 and not uses_xtc(p):
        return False
    if p.top_n_sigma > 0.0:  # the spread of all logits
        return True
    if 0 < p.top_k <= NUM_CANDIDATES:
        return False
    return p.typical_p < 1.0 or (p.top_p >= 1.0 and p.min_p <= 0.0)


def uses_xtc(p: SamplingParams) -> bool:
    """Whether XTC can drop anything."""
    return p.xtc_probability > 0.0 and p.xtc_threshold <= 0.5


def cut(row: CandidateRow, p: SamplingParams) -> Candidates | None:
    """What the filters before XTC leave of a whole row; None: only the row can tell.

    The row's best logit is finite.
    """
    size = len(row.logits)
    if 0 < p.top_k <= size or (p.top_k > 0 and row.complete):
        c = _first(row, p.top_k)
        c = filters.typical(c, p.typical_p, p.min_keep)
        c = filters.top_p(c, p.top_p, p.min_keep)
        return filters.min_p(c, p.min_p, p.min_keep)
    if p.typical_p < 1.0 or (p.min_keep > size and not row.complete):
        return None
    if p.top_p < 1.0:
        count = _reach(row, p)
        if count is None:
            return None
        return filters.min_p(_first(row, max(count, p.min_keep)), p.min_p, p.min_keep)
    if p.min_p <= 0.0:
        return None
    c = filters.min_p(_first(row, size), p.min_p, p.min_keep)
    bound = row.logits[0] + np.log(np.float32(p.min_p))
    count = int((row.logits >= bound).sum())
    if count == size and not row.complete:
        return None
    if p.top_k <= 0 and count >= p.min_keep:  # nothing has sorted them yet
        return c.take(np.argsort(c.ids[:count]), False)  # type: ignore[index]
    return c


def _first(row: CandidateRow, count: int) -> Candidates:
    """The best so many, without what can't be chosen."""
    c = Candidates(row.ids[:count], row.logits[:count], True)  # type: ignore[arg-type]
    if c.logits[-1] > -np.inf:
        return c
    return c.take(slice(0, int((c.logits > -np.inf).sum())), True)


def _reach(row: CandidateRow, p: SamplingParams) -> int | None:
    """How many tokens it takes to reach top_p of all, or of the first top_k; None: that's open."""
    exps = np.exp((row.logits - row.logits[0]).astype(np.float64))
    sums = np.cumsum(exps)
    least = most = float(np.exp(row.log_norm - np.float64(row.logits[0])))
    if p.top_k > 0:
        least = float(sums[-1])
        most = min(most, least + (p.top_k - len(exps)) * float(exps[-1]))
    wanted = (p.top_p * least * (1 - _MARGIN), p.top_p * most * (1 + _MARGIN))
    low, high = np.searchsorted(sums, wanted, side="left").tolist()
    return low + 1 if low == high < len(sums) else None
