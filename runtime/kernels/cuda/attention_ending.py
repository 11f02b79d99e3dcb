"""Decode attention's splits: which positions are in one, and what becomes of a block's results.

There are partial results, for a combine, or whole ones: float32, or at once in activations.

Partial results: [token][head][split][m, l, 0, 0, values], m to base 2; l is 0 in empty ones, whose
values aren't written.
"""

from typing import Any

from ....quant.cuda.memory import (
    load_f32,
    load_shared_f32,
    load_shared_f32x2,
    load_shared_f32x4,
    shared,
    store_f32x2,
    store_f32x4,
)
from ....quant.cuda.simt import (
    exp2,
    f32_of,
    inline,
    make_f32x2,
    make_f32x4,
    maximum,
    reciprocal,
    thread,
    zero,
)
from .launches.attention import QUERIES
from .quantize import put_activations
from .scores import LOG2E, LOW

_zero4 = zero("f32x4")


@inline
def part_of(begin, end, split, splits):
    """A split's part of begin..end-1."""
    if splits > 1:
        each = (end - begin + splits - 1) // splits
        begin += split * each
        if end > begin + each:
            end = begin + each
    return begin, end


@inline
def place_of(out, row, split, splits, value_dim):
    """Address of the partial results of a row (token and head)."""
    return out + (row * splits + split) * (value_dim + 4) * 4


@inline
def put_empty(out, row, split, splits, value_dim):
    """Nothing is in this split."""
    store_f32x2(place_of(out, row, split, splits, value_dim), make_f32x2(LOW, f32_of(0)))


def make_ending(groups: int, columns: int, threads: int) -> tuple[Any, Any, Any, Any]:
    """For blocks in which so many groups of warps have positions of their own.

    Returns:
        Their values [group][query][columns] and states [group][query][m, l] in shared memory, and
        what merges them, after a barrier: `put_parts`, `put_whole`.
    """
    outputs, states = shared(groups * QUERIES * columns * 4), shared(groups * QUERIES * 8)

    @inline
    def merged(head, column):
        """Four columns of a head over all groups, with m and l."""
        m = LOW
        for g in range(groups):
            m = maximum(m, load_shared_f32(states() + (g * QUERIES + head) * 8))
        total, a, b, c, d = f32_of(0), f32_of(0), f32_of(0), f32_of(0), f32_of(0)
        for g in range(groups):
            state = load_shared_f32x2(states() + (g * QUERIES + head) * 8)
            weight = exp2(state[0] - m)
            v = load_shared_f32x4(outputs() + ((g * QUERIES + head) * columns + column) * 4)
            total += weight * state[1]
            a, b, c, d = a + weight * v[0], b + weight * v[1], c + weight * v[2], d + weight * v[3]
        return m, total, make_f32x4(a, b, c, d)

    @inline
    def whole(head, column, sink_at):
        """Four columns of a head whose positions are all in this block."""
        m, total, v = merged(head, column)
        factor = reciprocal(total)
        if sink_at != 0:
            sink = load_f32(sink_at + 4 * head) * LOG2E
            top = maximum(m, sink)
            factor = exp2(m - top)
            factor = factor * reciprocal(total * factor + exp2(sink - top))
        return make_f32x4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor)

    @inline
    def put_parts(out, row, heads, value_dim, split, splits):
        """As partial results of a split; `row`: the first head's number among all tokens'."""
        for item in range(thread(), heads * (columns // 4), threads):
            head = item // (columns // 4)
            column = (item - head * (columns // 4)) * 4
            if column < value_dim:
                m, total, v = merged(head, column)
                to = place_of(out, row + head, split, splits, value_dim)
                store_f32x4(to + 16 + 4 * column, v)
                if column == 0:
                    store_f32x2(to, make_f32x2(m, total))

    @inline
    def put_whole(
        token, first_head, heads, value_dim, all_columns, sinks, attended, q, scales, half, plain,
        width,
    ):  # fmt: skip
        """To `attended`, or (0) into activations: then heads fill 32s of columns."""
        sink_at, count = (sinks + 4 * first_head if sinks != 0 else 0), heads * value_dim
        for start in range(0, count, 4 * threads):  # whole warps go through it together
            at, column, v = start + 4 * thread(), all_columns, _zero4()
            if at < count:
                head, column = at // value_dim, first_head * value_dim + at
                v = whole(head, at - head * value_dim, sink_at)
            if attended == 0:
                put_activations(v, token, column, all_columns, q, scales, half, plain, width)
            elif at < count:
                store_f32x4(attended + (token * all_columns + column) * 4, v)

    return outputs, states, put_parts, put_whole
