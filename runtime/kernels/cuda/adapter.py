"""LoRA adapters: each token's A x times its own scale, between the two matmuls."""

from ....quant.cuda.memory import load_f32, store_f32
from ....quant.cuda.simt import block_x, f32_of, kernel, let_next_start, thread, wait_for_inputs
from .launches.adapter import THREADS


@kernel(block=THREADS)
def adapt(x, stride, columns, token_scales):
    """In place, a token a block; without a scale nothing is left of what was there."""
    let_next_start()
    wait_for_inputs()
    row = x + block_x() * stride
    scale = load_f32(token_scales + 4 * block_x())
    for i in range(thread(), columns, THREADS):
        value = f32_of(0)
        if scale != f32_of(0):
            value = load_f32(row + 4 * i) * scale
        store_f32(row + 4 * i, value)
