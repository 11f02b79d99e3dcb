"""The merge loop that BPE and SPM share: join the best pair of neighbours until none is left."""

import heapq
from collections.abc import Callable

# Above this many symbols the list operations of the short loop cost more than a heap.
_SHORT_LEN = 192
_NONE = float("inf")

Rank = Callable[[str, str], float]  # of two neighbours; the lowest joins first; inf: never


def merge(symbols: list[str], rank: Rank) -> list[str]:
    """Join neighbours, lowest rank first and leftmost among equals, until no pair has a rank."""
    if len(symbols) > _SHORT_LEN:
        return _merge_long(symbols, rank)
    ranks = [rank(left, right) for left, right in zip(symbols, symbols[1:], strict=False)]
    while ranks:
        best = min(ranks)
        if best == _NONE:
            break
        i = ranks.index(best)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        del ranks[i]
        if i < len(ranks):
            ranks[i] = rank(symbols[i], symbols[i + 1])
        if i:
            ranks[i - 1] = rank(symbols[i - 1], symbols[i])
    return symbols


def _merge_long(symbols: list[str], rank: Rank) -> list[str]:
    """The same with a heap of (rank, left position): n log n for words of any length."""
    count = len(symbols)
    after = [*range(1, count + 1)]  # after[i]: the next symbol still there; count: none
    before = [*range(-1, count - 1)]
    heap = [
        (value, i) for i in range(count - 1) if (value := rank(symbols[i], symbols[i + 1])) != _NONE
    ]
    heapq.heapify(heap)
    pop, push = heapq.heappop, heapq.heappush
    while heap:
        value, i = pop(heap)
        left = symbols[i]
        j = after[i]
        if not left or j == count or rank(left, symbols[j]) != value:
            continue  # one of the two was joined to something else meanwhile
        symbols[i] = left = left + symbols[j]
        symbols[j] = ""
        after[i] = following = after[j]
        if following < count:
            before[following] = i
            value = rank(left, symbols[following])
            if value != _NONE:
                push(heap, (value, i))
        preceding = before[i]
        if preceding >= 0:
            value = rank(symbols[preceding], left)
            if value != _NONE:
                push(heap, (value, preceding))
    return [symbol for symbol in symbols if symbol]


class WordCache:
    """Ids of words seen before: language repeats itself. Bounded; safe for threads by the GIL."""

    _MAX_WORDS = 1 << 16
    _MAX_LEN = 48

    def __init__(self) -> None:
        self._ids: dict[str, list[int]] = {}
        self.get = self._ids.get

    def put(self, word: str, ids: list[int]) -> None:
        """Remember a word; all are forgotten when there are too many."""
        if len(word) <= self._MAX_LEN:
            if len(self._ids) >= self._MAX_WORDS:
                self._ids.clear()
            self._ids[word] = ids
