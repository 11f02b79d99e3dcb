"""Changes of logits before tokens are chosen: what they read, and their launch."""

import numpy as np

from ..launch import Launch

THREADS = 256
PART = 16 * THREADS  # tokens of a block

# What is done to a row of logits, in this order; addresses are on the device, 0 or a count of 0
# where there is nothing to do. bias: VALUE that are added. seen: COUNTED tokens that occurred,
# whose logits the penalties lower as runtime/penalties.py says. mask: bits of int32, the first
# token's the lowest; a token whose bit is 0 gets -inf. The ids of a list must differ.
EDIT = np.dtype(
    [
        ("bias", "<i8"),
        ("seen", "<i8"),
        ("mask", "<i8"),
        ("row", "<i4"),
        ("num_bias", "<i4"),
        ("num_seen", "<i4"),
        ("repeat", "<f4"),
        ("frequency", "<f4"),
        ("presence", "<f4"),
    ]
)
EDIT_BYTES = EDIT.itemsize
VALUE = np.dtype([("id", "<i4"), ("value", "<f4")])
COUNTED = np.dtype([("id", "<i4"), ("count", "<i4")])


def copy(source: int, target: int, num_bytes: int) -> list[Launch]:
    """Of whole rows of logits, filled up to 16 bytes."""
    pieces = -(-num_bytes // 16)
    return [Launch("edit:copy", (-(-pieces // THREADS), 1, 1), (source, target, pieces))]


def edit(logits: int, stride: int, vocab: int, edits: int, count: int) -> list[Launch]:
    """Do `count` EDIT of rows of float32 logits, `stride` bytes apart, in place."""
    parts = -(-vocab // PART)
    return [Launch("edit:edit", (parts, count, 1), (logits, stride, vocab, edits))]
