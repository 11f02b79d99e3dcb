"""What a matmul's op asks for after its products: softcap(y + factor * bias), in place.

Kernels of our own do that as they write; this is for those of cuBLAS, which leave
y = factor * W x + what was there.
"""

from ....quant.cuda.memory import load_f32, store_f32
from ....quant.cuda.simt import (
    block_x,
    block_y,
    fma,
    kernel,
    let_next_start,
    thread,
    wait_for_inputs,
)
from .launches.bias import PER_THREAD, THREADS
from .matvec import soft_capped


@kernel(block=THREADS)
def finish(out, out_stride, columns, bias, factor: float, cap: float):
    """A part of a token's row a block. bias: 0, or float32 (columns,)."""
    let_next_start()
    wait_for_inputs()
    row = out + block_y() * out_stride
    first = block_x() * (THREADS * PER_THREAD) + thread()
    for k in range(PER_THREAD):
        column = first + k * THREADS
        if column < columns:
            v = load_f32(row + 4 * column)
            if bias != 0:
                v = fma(load_f32(bias + 4 * column), factor, v)
            store_f32(row + 4 * column, soft_capped(v, cap))
