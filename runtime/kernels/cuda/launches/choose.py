"""A guess at the next token of each row on the device: what it reads, and its launch."""

import numpy as np

from ..launch import Launch

# A row's settings, as runtime/params.py's. temperature: 0 or less takes the highest logit. top_k: 0
# for all candidates that there are. point: where in the sum of weights, 0 <= point < 1. target: the
# index of the int32 in `out` where the token goes; -1: nowhere.
CHOICE = np.dtype(
    [
        ("temperature", "<f4"),
        ("top_k", "<i4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("min_keep", "<i4"),
        ("point", "<f4"),
        ("target", "<i4"),
        ("unused", "<i4"),
    ]
)
CHOICE_BYTES = CHOICE.itemsize


def choose(
    top: int, choices: int, rows: int, out: int, kept: int, positions: int = 0, ends: int = 0
) -> list[Launch]:
    """A token of each row of TOP (launches/top.py) by its CHOICE, to two places.

    positions, ends: int32 as `out`, which then go one further; 0: they don't.
    """
    return [Launch("choose:choose", (rows, 1, 1), (top, choices, out, kept, positions, ends))]
