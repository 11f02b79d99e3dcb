"""Norms: y = (x - m) * r * weight + bias; what they mean says cpu/norm.py."""

from ....quant.cuda.memory import load_f32x4, load_shared_f32, shared, store_f32x4, store_shared_f32
from ....quant.cuda.simt import (
    barrier,
    block_x,
    f32_of,
    fma,
    inline,
    kernel,
    let_next_start,
    make_f32x4,
    rsqrt,
    thread,
    wait_for_inputs,
    warp_sum,
)
from ..records import NORM_LAYER, NORM_NONE
from .quantize import put_activations

_THREADS = 512
_sums = shared(4 * _THREADS // 32)


@inline
def _block_sum(v):
    """The sum over all threads of the block, in every one."""
    v = warp_sum(v)
    barrier()  # an earlier sum has been read
    if thread() % 32 == 0:
        store_shared_f32(_sums() + thread() // 32 * 4, v)
    barrier()
    total = f32_of(0)
    for k in range(_THREADS // 32):
        total += load_shared_f32(_sums() + 4 * k)
    return total


@inline
def _moments(x, columns, kind, eps):
    """m and r of a row."""
    mean, inverse = f32_of(0), f32_of(1)
    if kind == NORM_LAYER:
        total = f32_of(0)
        for i in range(thread() * 4, columns, _THREADS * 4):
            v = load_f32x4(x + 4 * i)
            total += (v[0] + v[1]) + (v[2] + v[3])
        mean = _block_sum(total) / f32_of(columns)
    if kind != NORM_NONE:
        total = f32_of(0)
        for i in range(thread() * 4, columns, _THREADS * 4):
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


@kernel(block=_THREADS)
def norm(x, x_stride, weight, bias, eps: float, columns, kind, out, q, scales, half, plain, width):
    """A token a block: into activations, and to `out` (0, or laid out as x, perhaps x itself)."""
    let_next_start()
    wait_for_inputs()
    token = block_x()
    row = x + token * x_stride
    mean, inverse = _moments(row, columns, kind, eps)
    for start in range(0, columns, _THREADS * 4):  # whole warps go through it together
        column = start + thread() * 4
        v = make_f32x4(f32_of(0), f32_of(0), f32_of(0), f32_of(0))
        if column < columns:
            at = 0 if bias == 0 else bias + 4 * column
            v = _normed(row + 4 * column, weight + 4 * column, at, mean, inverse)
            if out != 0:
                store_f32x4(out + token * x_stride + 4 * column, v)
        put_activations(v, token, column, columns, q, scales, half, plain, width)


@kernel(block=_THREADS)
def norm_add(x, x_stride, y, y_stride, weight, bias, eps: float, columns, kind, scale: float):
    """x += scale * norm(y)."""
    let_next_start()
    wait_for_inputs()
    token = block_x()
    row, to = y + token * y_stride, x + token * x_stride
    mean, inverse = _moments(row, columns, kind, eps)
    for column in range(thread() * 4, columns, _THREADS * 4):
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
