"""The filters of the sampling chain, vectorised: which tokens may still be chosen.

Each function has the meaning of llama.cpp's sampler of the same name (src/llama-sampler.cpp), with
two differences that never change what can be chosen: tokens at -inf are dropped when they are seen,
and ties are broken by the lower token id, where llama.cpp leaves the order to its sort.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Top-p on a whole vocabulary sorts only this many first, and everything if they are not enough.
_FIRST_SORTED = 256


class Candidates(NamedTuple):
    """The tokens that may still be chosen and their logits."""

    ids: NDArray[np.intp] | None  # (n,); None: the whole vocabulary, id = index
    logits: NDArray[np.float32]  # (n,)
    is_sorted: bool = False  # by logit, highest first, ties by id

    def take(self, index: NDArray[np.intp] | slice, is_sorted: bool) -> "Candidates":
        """The candidates at these places, in this order."""
        if self.ids is None and isinstance(index, slice):
            ids = np.arange(len(self.logits))[index]
        else:
            ids = index if self.ids is None else self.ids[index]
        return Candidates(ids, self.logits[index], is_sorted)  # type: ignore[arg-type]


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities, float32 as in llama.cpp; the highest logit must be finite."""
    exps = np.exp(logits - logits.max())
    return exps / exps.sum()


def top_indices(logits: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Places of the k highest logits, highest first, ties by the lower place; -inf is left out.

    The highest logits of many small groups give a bound that the k highest reach, so only a handful
    of the vocabulary is sorted: 152k logits take 0.06 ms where np.argpartition needs 1.5 ms.
    """
    size = len(logits)
    columns = max(1024, 8 * k)
    if 4 * columns <= size:
        rows = size // columns
        main = rows * columns
        highest = np.concatenate([logits[:main].reshape(rows, columns).max(axis=0), logits[main:]])
        bound = np.partition(highest, len(highest) - k)[len(highest) - k]
    elif k < size:
        bound = np.partition(logits, size - k)[size - k]
    else:
        bound = np.float32(-np.inf)
    places = np.flatnonzero(logits >= bound)
    values = logits[places]
    if len(places) > 4 * k:  # many ties, or a vocabulary with most tokens at -inf
        bound = np.partition(values, len(values) - k)[len(values) - k]
        above = values > bound
        equal = np.flatnonzero(values == bound)[: k - int(above.sum())]
        keep = np.sort(np.concatenate([np.flatnonzero(above), equal]))
        places, values = places[keep], values[keep]
    order = np.argsort(-values, kind="stable")[:k]
    if values[order[-1]] == -np.inf:
        order = order[values[order] > -np.inf]
    return places[order]


def sort(c: Candidates) -> Candidates:
    """All candidates, highest logit first."""
    if c.is_sorted:
        return c
    return c.take(top_indices(c.logits, len(c.logits)), True)


def top_k(c: Candidates, k: int) -> Candidates:
    """The k highest logits; k <= 0 keeps all."""
    if k <= 0:
        return c
    k = min(k, len(c.logits))
    if c.is_sorted:
        return c.take(slice(0, k), True)
    return c.take(top_indices(c.logits, k), True)


def top_n_sigma(c: Candidates, n: float) -> Candidates:
    """Logits within n standard deviations (of all logits) of the highest; n <= 0 keeps all."""
    if n <= 0 or len(c.logits) <= 1:
        return c
    finite = c.logits[c.logits > -np.inf]
    bound = finite.max() - np.float32(n) * finite.std()
    return c.take(np.flatnonzero(c.logits >= bound), c.is_sorted)


def typical(c: Candidates, p: float, min_keep: int) -> Candidates:
    """Tokens whose surprise is nearest to the entropy, until their probability exceeds p."""
    if p >= 1.0:
        return c
    if not c.is_sorted:
        c = c.take(np.flatnonzero(c.logits > -np.inf), False)
    probs = softmax(c.logits)
    seen = np.flatnonzero(probs > 0)  # a probability of 0 has no surprise
    logs = np.log(probs[seen])
    entropy = -(probs[seen] * logs).sum()
    order = seen[np.argsort(np.abs(-logs - entropy), kind="stable")]
    last = int(np.searchsorted(np.cumsum(probs[order]), np.float32(p), side="right"))
    last = max(last, min_keep - 1)
    return c.take(order[: last + 1], False)


def top_p(c: Candidates, p: float, min_keep: int) -> Candidates:
    """The most likely tokens until their probability reaches p."""
    if p >= 1.0:
        return c
    total = None
    if not c.is_sorted:
        if len(c.logits) > 4 * _FIRST_SORTED and min_keep <= _FIRST_SORTED:
            total = np.exp(c.logits - c.logits.max()).sum()
            first = top_k(c, _FIRST_SORTED)
            cumulative = np.cumsum(np.exp(first.logits - first.logits[0])) / total
            if cumulative[-1] >= p:
                c = first
        c = sort(c)
    exps = np.exp(c.logits - c.logits[0])
    cumulative = np.cumsum(exps) / (exps.sum() if total is None else total)
    last = int(np.searchsorted(cumulative, np.float32(p), side="left"))
    return c.take(slice(0, max(last + 1, min_keep)), True)


def min_p(c: Candidates, p: float, min_keep: int) -> Candidates:
    """Tokens at least p times as likely as the most likely one; p <= 0 keeps all."""
    if p <= 0.0:
        return c
    bound = (c.logits[0] if c.is_sorted else c.logits.max()) + np.log(np.float32(p))
    if c.is_sorted:
        kept = int(np.searchsorted(-c.logits, -bound, side="right"))
        return c.take(slice(0, max(kept, 1, min_keep)), True)
    places = np.flatnonzero(c.logits >= bound)
    if len(places) >= max(min_keep, 1):
        return c.take(places, False)
    return min_p(sort(c), p, min_keep)


def xtc(c: Candidates, threshold: float, min_keep: int) -> Candidates:
    """Without all tokens that are at least this likely, except the least likely of them."""
    if threshold > 0.5 or len(c.logits) < 2:
        return c
    c = sort(c)
    # Probabilities fall, so those that reach the threshold are a prefix.
    excluded = int((softmax(c.logits) >= np.float32(threshold)).sum()) - 1
    if excluded > 0 and len(c.logits) - excluded >= min_keep:
        return c.take(slice(excluded, None), True)
    return c
