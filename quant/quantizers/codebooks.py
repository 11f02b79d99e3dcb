"""Tables that the quantizers of codebook formats search, by format; made when first asked for.

A cell is what values round to: a code for each of a point's coordinates, 0 to 7 for 4 of them or 0
to 2 for 8, as a number of that base, the first coordinate lowest. Where a cell is no point of the
codebook, its neighbours are tried: all points at the least distances from it, as many distances as
llama.cpp takes (its iq2xs_init_impl and iq3xs_init_impl), nearest first and then by their number.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..grids import grid

LIST_STEP = 8  # points that a search looks at in one turn
COUNT_BITS = 8  # of a reference to a list: how many turns, below the first's number

# Codebook -> how many distances its lists reach.
_DISTANCES = {"iq3_xxs": 2, "iq3_s": 3, "iq2_xxs": 2, "iq2_xs": 2, "iq2_s": 1, "iq1_s": 3}


def words(codes: NDArray[np.integer]) -> NDArray[np.int32]:
    """Codes of points (n, 4 or 8) -> a word each, 4 bits a coordinate, ready to be looked up by.

    Of 8 coordinates, two share a table of 8 entries: every second one has its codes 4 higher.
    """
    places = np.arange(codes.shape[1])
    offsets = 0 if codes.shape[1] == 4 else 4 * (places % 2)
    return ((codes.astype(np.int32) + offsets) << 4 * places).sum(1, dtype=np.int32)


@lru_cache
def tables(name: str) -> list[NDArray[np.int32]]:
    """The tables of a codebook, all int32.

    Returns:
        By cell, a point's word, or where it is none ~(first << COUNT_BITS | count): the list's
        first turn and number of turns. Then the lists of words, filled up to whole turns with
        their first. Then the points' numbers by cell, -1 where there is none.
    """
    points = grid(name)
    dimensions = points.shape[1]
    base = 8 if dimensions == 4 else 3
    codes = np.searchsorted(np.unique(points), points)
    powers = base ** np.arange(dimensions)
    cells = np.arange(base**dimensions)
    numbers = np.full(len(cells), -1, np.int32)
    numbers[codes @ powers] = np.arange(len(points))
    empty = np.flatnonzero(numbers < 0)
    owners, members = _neighbours(empty[:, None] // powers % base, codes, _DISTANCES[name])
    counts = np.bincount(owners, minlength=len(empty))
    turns = -(-counts // LIST_STEP)
    firsts = np.cumsum(turns) - turns
    point_words = words(codes)
    found = point_words[members]
    starts = np.cumsum(counts) - counts
    lists = np.repeat(found[starts], turns * LIST_STEP)
    lists[np.arange(len(members)) + np.repeat(LIST_STEP * firsts - starts, counts)] = found
    by_cell = np.zeros(len(cells), np.int32)
    by_cell[codes @ powers] = point_words
    by_cell[empty] = ~(firsts << COUNT_BITS | turns)
    return [by_cell, lists, numbers]


def _neighbours(
    cells: NDArray[np.integer], codes: NDArray[np.integer], distances: int
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Pairs of a cell and a neighbour of it, in the order of the cells and within their lists.

    cells: codes (cells, dimensions). codes: of the points (points, dimensions).
    """
    points = codes.astype(np.float32)  # small integers: exact
    owners, members = [], []
    for start in range(0, len(cells), 1024):
        some = cells[start : start + 1024].astype(np.float32)
        square = (some**2).sum(1)[:, None] + (points**2).sum(1) - 2 * some @ points.T
        limit = square.min(1)
        for _ in range(distances - 1):
            farther = np.where(square > limit[:, None], square, np.float32(np.inf))
            limit = farther.min(1)
        rows, columns = np.nonzero(square <= limit[:, None])
        order = np.lexsort((columns, square[rows, columns], rows))
        owners.append(rows[order] + start)
        members.append(columns[order])
    return np.concatenate(owners), np.concatenate(members)


def _of(name: str) -> Callable[[], list[NDArray]]:
    return lambda: list(tables(name))


# Format name -> its arrays, whose addresses the kernel gets in this order.
TABLES: dict[str, Callable[[], list[NDArray]]] = {
    name.upper(): _of("iq1_s" if name == "iq1_m" else name)
    for name in ("iq3_s", "iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m")
}
