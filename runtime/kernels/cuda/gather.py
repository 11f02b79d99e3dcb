"""The tokens whose logits are wanted, to rows one after the other."""

from ....quant.cuda.memory import load_f32x4, load_i32, store_f32x4
from ....quant.cuda.simt import (
    block_x,
    block_y,
    i64,
    kernel,
    let_next_start,
    thread,
    wait_for_inputs,
)
from .launches.gather import THREADS


@kernel(block=THREADS)
def gather(x, x_stride, columns, out, out_stride, rows):
    """Four columns a thread, a row of the result a row of the grid. rows: int32, of x."""
    let_next_start()
    wait_for_inputs()
    column = (block_x() * THREADS + thread()) * 4
    if column < columns:
        row = i64(load_i32(rows + 4 * block_y()))
        v = load_f32x4(x + row * x_stride + 4 * column)
        store_f32x4(out + block_y() * out_stride + 4 * column, v)
