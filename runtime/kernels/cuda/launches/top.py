"""The highest logits of each row, for the sampler: their layout, and what finds them."""

import numpy as np

from ..launch import Launch

COUNT = 64  # candidates a row
GROUP = 64  # logits in a row that kernels take as one
SCANNING, MERGING = 256, 512  # threads
MAX_GROUPS = 8192
MAX_VOCAB = GROUP * MAX_GROUPS

# What the host gets of a row. Tokens at -inf are no candidates; `count` says how many there are
# (what lies behind them has no meaning). broken: 1 if a logit is NaN or +inf. sum: of
# exp(logit - highest) over the whole row; log_sum: the logarithm of the sum of exp(logit).
# logits, ids: highest first, ties by the lower id.
TOP = np.dtype(
    {
        "names": ["count", "broken", "highest", "sum", "log_sum", "logits", "ids"],
        "formats": ["<i4", "<i4", "<f4", "<f4", "<f4", ("<f4", COUNT), ("<i4", COUNT)],
        "offsets": [0, 4, 8, 12, 16, 32, 32 + 4 * COUNT],
        "itemsize": 32 + 8 * COUNT,
    }
)
TOP_BYTES = TOP.itemsize


def num_groups(vocab: int) -> int:
    """Groups of a row."""
    return -(-vocab // GROUP)


def scratch_bytes(vocab: int, rows: int) -> int:
    """What `top` needs to work in."""
    return 8 * (-(-num_groups(vocab) // 4) * 4) * rows


def top(logits: int, stride: int, vocab: int, rows: int, scratch: int, out: int) -> list[Launch]:
    """TOP of float32 logits (rows, vocab), whose rows are `stride` bytes apart, at `out`."""
    assert vocab <= MAX_VOCAB, f"{vocab} tokens in the vocabulary"
    groups = num_groups(vocab)
    parts = -(-vocab // (4 * SCANNING))
    return [
        Launch("top:scan", (parts, rows, 1), (logits, stride, vocab, groups, scratch)),
        Launch("top:merge", (rows, 1, 1), (logits, stride, vocab, groups, scratch, out, 16, 13)),
    ]
