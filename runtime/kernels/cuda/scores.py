"""What decode attention and that of tiles share: what a token sees, and how scores bend.

Scores become powers of two, so that exp2 makes weights of them.
"""

import numpy as np

from ....quant.cuda.memory import load_i32
from ....quant.cuda.simt import (
    absolute,
    exp2,
    f32_of,
    half,
    half_high,
    i64,
    inline,
    pack_half2,
    reciprocal,
)

LOW = np.float32(-1e30)
LOG2E = np.float32(1.4426950408889634)
_TWICE = np.float32(2 * 1.4426950408889634)


@inline
def seen_by(positions, ends, token, window, ahead):
    """(its position, the first, the last) position that a token sees."""
    position, last = i64(load_i32(positions + 4 * token)), i64(load_i32(ends + 4 * token))
    first = 0
    if window > 0 and position >= window:
        first = position - window + 1
    if ahead > 0 and position + ahead < last:
        last = position + ahead
    return position, first, last


@inline
def bend(score, cap, slope, distance):
    """cap * tanh(score / cap) if there is a cap, less by the slope times the distance; to base 2.

    ALiBi (Press et al., 2021, arXiv 2108.12409).
    """
    if cap != f32_of(0):
        e = exp2(score * (_TWICE / cap))
        score = (f32_of(1) - f32_of(2) * reciprocal(e + f32_of(1))) * cap
    return (score - slope * absolute(distance)) * LOG2E


@inline
def halves(a, b):
    """Two values as float16, and as such what is lost by that."""
    high = pack_half2(a, b)
    return high, pack_half2(a - half(high), b - half_high(high))
