"""Norms: y = (x - m) * r * weight + bias; what they mean says cpu/norm.py.

norm_1 to norm_4 keep so many vectors of a row in each thread's registers, and ask for its weights
before the row is there: a step of one token waits for some 65 norms, each a chain of latencies.
`norm` is for rows that are longer.
"""

from typing import Any

from ....quant.cuda.memory import (
    load_f32x4,
    load_shared_f32,
    load_shared_f32x4,
    shared,
    store_f32x4,
    store_shared_f32,
    stream_f32x4,
)
from ....quant.cuda.simt import (
    barrier,
    block_x,
    f32_of,
    fma,
    inline,
    kernel,
    let_next_start,
    make_f32x4,
    put_part,
    rsqrt,
    take,
    thread,
    wait_for_inputs,
    warp_sum,
    zero,
)
from ..records import NORM_LAYER, NORM_NONE
from .launches.norm import KEPT, THREADS
from .quantize import put_activations

_sums, _more_sums = shared(4 * THREADS // 32), shared(4 * THREADS // 32)


@inline
def _block_sum(v):
    """The sum over all threads of the block, in every one."""
    v = warp_sum(v)
    barrier()  # an earlier sum has been read
    if thread() % 32 == 0:
        store_shared_f32(_sums() + thread() // 32 * 4, v)
    barrier()
    total = f32_of(0)
    for k in range(THREADS // 32):
        total += load_shared_f32(_sums() + 4 * k)
    return total


@inline
def _moments(x, columns, kind, eps):
    """m and r of a row."""
    mean, inverse = f32_of(0), f32_of(1)
    if kind == NORM_LAYER:
        total = f32_of(0)
        for i in range(thread() * 4, columns, THREADS * 4):
            v = load_f32x4(x + 4 * i)
            total += (v[0] + v[1]) + (v[2] + v[3])
        mean = _block_sum(total) / f32_of(columns)
    if kind != NORM_NONE:
        total = f32_of(0)
        for i in range(thread() * 4, columns, THREADS * 4):
            v = load_f32x4(x + 4 * i)
            for k in range(4):
                total = fma(v[k] - mean, v[k] - mean, total)
        inverse = rsqrt(_block_sum(total) / f32_of(columns) + eps)
    return mean, inverse


@inline
def _normed(x, weight, bias, mean, inverse):
    """Four values at x."""
    v, w = load_f32x4(x), load_f32x4(weight)
    a = (v[0] - mean) * inverse * w[0]
    b = (v[1] - mean) * inverse * w[1]
    c = (v[2] - mean) * inverse * w[2]
    d = (v[3] - mean) * inverse * w[3]
    if bias != 0:
        more = load_f32x4(bias)
        a, b, c, d = a + more[0], b + more[1], c + more[2], d + more[3]
    return make_f32x4(a, b, c, d)


@kernel(block=THREADS)
def norm(x, x_stride, weight, bias, eps: float, columns, kind, out, q, scales, half, plain, width):
    """A token a block: into activations, and to `out` (0, or laid out as x, perhaps x itself)."""
    let_next_start()
    wait_for_inputs()
    token = block_x()
    row = x + token * x_stride
    mean, inverse = _moments(row, columns, kind, eps)
    for start in range(0, columns, THREADS * 4):  # whole warps go through it together
        column = start + thread() * 4
        v = make_f32x4(f32_of(0), f32_of(0), f32_of(0), f32_of(0))
        if column < columns:
            at = 0 if bias == 0 else bias + 4 * column
            v = _normed(row + 4 * column, weight + 4 * column, at, mean, inverse)
            if out != 0:
                store_f32x4(out + token * x_stride + 4 * column, v)
        put_activations(v, token, column, columns, q, scales, half, plain, width)


@kernel(block=THREADS)
def norm_add(x, x_stride, y, y_stride, weight, bias, eps: float, columns, kind, scale: float):
    """x += scale * norm(y)."""
    let_next_start()
    wait_for_inputs()
    token = block_x()
    row, to = y + token * y_stride, x + token * x_stride
    mean, inverse = _moments(row, columns, kind, eps)
    for column in range(thread() * 4, columns, THREADS * 4):
        at = 0 if bias == 0 else bias + 4 * column
        v = _normed(row + 4 * column, weight + 4 * column, at, mean, inverse)
        old = load_f32x4(to + 4 * column)
        new = make_f32x4(
            fma(v[0], scale, old[0]),
            fma(v[1], scale, old[1]),
            fma(v[2], scale, old[2]),
            fma(v[3], scale, old[3]),
        )
        store_f32x4(to + 4 * column, new)


@inline
def _sum_at(sums, v):
    """The sum over all threads of the block, in every one; `sums` is used once."""
    v = warp_sum(v)
    if thread() & 31 == 0:
        store_shared_f32(sums + (thread() >> 5) * 4, v)
    barrier()
    total = f32_of(0)
    for k in range(THREADS // 128):
        four = load_shared_f32x4(sums + 16 * k)
        total += (four[0] + four[1]) + (four[2] + four[3])
    return total


def _make(kept: int) -> tuple[Any, Any]:
    """`norm` and `norm_add` of rows of at most `kept` vectors a thread."""
    none, put_four, four_of = (
        zero(f"f32x{4 * kept}"),
        put_part(f"f32x{4 * kept}", 4),
        take(f"f32x{4 * kept}", 4),
    )

    @inline
    def weights_of(weight, columns):
        found = none()
        for i in range(kept):
            column = (i * THREADS + thread()) * 4
            if column < columns:
                found = put_four(found, i, stream_f32x4(weight + 4 * column))
        return found

    @inline
    def row_of(x, columns):
        found = none()
        for i in range(kept):
            column = (i * THREADS + thread()) * 4
            if column < columns:
                found = put_four(found, i, load_f32x4(x + 4 * column))
        return found

    @inline
    def moments(v, columns, kind, eps):
        mean, inverse = f32_of(0), f32_of(1)
        if kind == NORM_LAYER:
            total = f32_of(0)
            for i in range(kept * 4):
                total += v[i]
            mean = _sum_at(_more_sums(), total) / f32_of(columns)
        if kind != NORM_NONE:
            total = f32_of(0)
            for i in range(kept):
                if (i * THREADS + thread()) * 4 < columns:
                    for k in range(4):
                        d = v[4 * i + k] - mean
                        total = fma(d, d, total)
            inverse = rsqrt(_sum_at(_sums(), total) / f32_of(columns) + eps)
        return mean, inverse

    @inline
    def normed(v, w, mean, inverse, bias, column):
        a, b = (v[0] - mean) * inverse * w[0], (v[1] - mean) * inverse * w[1]
        c, d = (v[2] - mean) * inverse * w[2], (v[3] - mean) * inverse * w[3]
        if bias != 0:
            more = load_f32x4(bias + 4 * column)
            a, b, c, d = a + more[0], b + more[1], c + more[2], d + more[3]
        return make_f32x4(a, b, c, d)

    @kernel(block=THREADS)
    def norm(
        x, x_stride, weight, bias, eps: float, columns, kind, out, q, scales, half, plain, width
    ):
        """As the one below."""
        let_next_start()
        weights = weights_of(weight, columns)
        wait_for_inputs()
        token = block_x()
        v = row_of(x + token * x_stride, columns)
        mean, inverse = moments(v, columns, kind, eps)
        for i in range(kept):
            column = (i * THREADS + thread()) * 4
            y = four_of(v, i)
            if column < columns:
                y = normed(y, four_of(weights, i), mean, inverse, bias, column)
                if out != 0:
                    store_f32x4(out + token * x_stride + 4 * column, y)
            put_activations(y, token, column, columns, q, scales, half, plain, width)

    @kernel(block=THREADS)
    def norm_add(x, x_stride, y, y_stride, weight, bias, eps: float, columns, kind, scale: float):
        """As the one below."""
        let_next_start()
        weights = weights_of(weight, columns)
        wait_for_inputs()
        token = block_x()
        v, old = row_of(y + token * y_stride, columns), row_of(x + token * x_stride, columns)
        mean, inverse = moments(v, columns, kind, eps)
        for i in range(kept):
            column = (i * THREADS + thread()) * 4
            if column < columns:
                w, before = four_of(weights, i), four_of(old, i)
                n = normed(four_of(v, i), w, mean, inverse, bias, column)
                new = make_f32x4(
                    fma(n[0], scale, before[0]),
                    fma(n[1], scale, before[1]),
                    fma(n[2], scale, before[2]),
                    fma(n[3], scale, before[3]),
                )
                store_f32x4(x + token * x_stride + 4 * column, new)

    return norm, norm_add


for _kept in KEPT:
    globals()[f"norm_{_kept}"], globals()[f"norm_add_{_kept}"] = _make(_kept)
