"""A part of each head's columns, copied to where the heads lie otherwise, or as activations."""

from ....quant.cuda.memory import load_f32x4, store_f32x4
from ....quant.cuda.simt import (
    block_x,
    block_y,
    f32_of,
    kernel,
    let_next_start,
    make_f32x4,
    thread,
    wait_for_inputs,
)
from .launches.slices import THREADS
from .quantize import put_activations


@kernel(block=THREADS)
def slices(
    x, x_stride, step, heads, columns, out, out_stride, out_step, q, scales, half, plain, width
):
    """Four columns of a head a thread, a token a row of the grid; activations if `out` is 0."""
    let_next_start()
    wait_for_inputs()
    token = block_y()
    column = (block_x() * THREADS + thread()) * 4
    v = make_f32x4(f32_of(0), f32_of(0), f32_of(0), f32_of(0))
    if column < heads * columns:
        head = column // columns
        within = 4 * (column - head * columns)
        v = load_f32x4(x + token * x_stride + head * step + within)
        if out != 0:
            store_f32x4(out + token * out_stride + head * out_step + within, v)
    if out == 0:
        put_activations(v, token, column, heads * columns, q, scales, half, plain, width)
