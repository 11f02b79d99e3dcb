"""Block tables on the device: page ids to their places."""

from ....quant.cuda.memory import load_i32, load_i64, store_i32
from ....quant.cuda.simt import block_x, kernel, let_next_start, thread, wait_for_inputs

THREADS = 128


@kernel(block=THREADS)
def put_pages(updates, count):
    """Of each update, int64 address and int32 page id in 16 bytes, the page id to the address."""
    let_next_start()
    wait_for_inputs()
    i = block_x() * THREADS + thread()
    if i < count:
        store_i32(load_i64(updates + 16 * i), load_i32(updates + 16 * i + 8))
