"""The pieces of decode attention merged, and what attention gave put into activations.

A piece is the maximum m of its scores (to base 2), the sum l of 2^(score - m) and the values
weighted so; the whole is sum(2^(m - top) values) / sum(2^(m - top) l). A sink (gpt-oss) is a piece
without values, whose l is 1. How pieces lie says attention.py.
"""

from ....quant.cuda.memory import (
    load_f32,
    load_f32x2,
    load_f32x4,
    load_shared_f32x2,
    load_shared_f32x4,
    shared,
    store_f32x4,
    store_shared_f32x2,
    store_shared_f32x4,
)
from ....quant.cuda.simt import (
    Kernel,
    barrier,
    block_x,
    block_y,
    exp2,
    f32_of,
    kernel,
    let_next_start,
    make_f32x2,
    make_f32x4,
    maximum,
    put,
    put_part,
    reciprocal,
    take,
    thread,
    wait_for_inputs,
    zero,
)
from .launches.attention_combine import AT_ONCE, THREADS
from .quantize import put_activations
from .scores import LOG2E, LOW

_zero4, _scale = zero("f32x4"), put("f32x4")
_some, _zeros = f"f32x{AT_ONCE}", zero(f"f32x{AT_ONCE}")
_put_one = put(_some)
_values_kind = f"f32x{4 * AT_ONCE}"
_no_values, _put_value, _take_value = (
    zero(_values_kind), put_part(_values_kind, 4), take(_values_kind, 4)
)  # fmt: skip


def _make(parts: int) -> Kernel:
    """Where so many warps share the splits of 128 columns."""
    states, outputs = shared(THREADS * 8), shared(THREADS * 16)

    @kernel(block=THREADS)
    def combine(
        partial, splits, heads, value_dim, sinks, attended, q, scales, half, plain, width
    ):  # fmt: skip
        let_next_start()
        warp, lane, token = thread() // 32, thread() % 32, block_y()
        columns, part = heads * value_dim, warp % parts
        column = block_x() * (THREADS * 4 // parts) + warp // parts * 128 + lane * 4
        head = (column if column < columns else 0) // value_dim
        bytes_each = (value_dim + 4) * 4
        at = partial + (token * heads + head) * splits * bytes_each
        values_at = 16 + 4 * (column - head * value_dim if column < columns else 0)
        wait_for_inputs()
        top, total, y = LOW, f32_of(0), _zero4()
        for begin in range(part, splits, AT_ONCE * parts):
            ms, ls, values = _zeros(), _zeros(), _no_values()
            for k in range(AT_ONCE):
                split = begin + k * parts
                place = at + (split if split < splits else begin) * bytes_each
                state = load_f32x2(place)
                ms = _put_one(ms, k, state[0])
                ls = _put_one(ls, k, state[1] if split < splits else f32_of(0))
                values = _put_value(values, k, load_f32x4(place + values_at))
            most = top
            for k in range(AT_ONCE):
                most = maximum(most, ms[k])
            factor, top = exp2(top - most), most
            total *= factor
            for c in range(4):
                y = _scale(y, c, y[c] * factor)
            for k in range(AT_ONCE):
                if ls[k] > f32_of(0):  # values of empty splits may be anything
                    weight, v = exp2(ms[k] - top), _take_value(values, k)
                    total += weight * ls[k]
                    for c in range(4):
                        y = _scale(y, c, y[c] + weight * v[c])
        if parts > 1:
            store_shared_f32x2(states() + thread() * 8, make_f32x2(top, total))
            store_shared_f32x4(outputs() + thread() * 16, y)
            barrier()
        if part == 0:
            for p in range(1, parts):
                state = load_shared_f32x2(states() + (thread() + 32 * p) * 8)
                v = load_shared_f32x4(outputs() + (thread() + 32 * p) * 16)
                most = maximum(top, state[0])
                factor, weight, top = exp2(top - most), exp2(state[0] - most), most
                total = total * factor + state[1] * weight
                for c in range(4):
                    y = _scale(y, c, y[c] * factor + v[c] * weight)
            factor = f32_of(1)
            if sinks != 0:
                sink = load_f32(sinks + 4 * head) * LOG2E
                most = maximum(top, sink)
                factor = exp2(top - most)
                total = total * factor + exp2(sink - most)
            factor = factor * reciprocal(total)
            y = make_f32x4(y[0] * factor, y[1] * factor, y[2] * factor, y[3] * factor)
            if attended != 0:
                if column < columns:
                    store_f32x4(attended + (token * columns + column) * 4, y)
            else:
                put_activations(y, token, column, columns, q, scales, half, plain, width)

    return combine


combine_1, combine_2, combine_4, combine_8 = _make(1), _make(2), _make(4), _make(8)


@kernel(block=THREADS)
def put_attended(attended, columns, q, scales, half, plain, width):
    """All heads of a token into activations."""
    let_next_start()
    wait_for_inputs()
    token, column = block_y(), (block_x() * THREADS + thread()) * 4
    v = _zero4()
    if column < columns:
        v = load_f32x4(attended + (token * columns + column) * 4)
    put_activations(v, token, column, columns, q, scales, half, plain, width)
