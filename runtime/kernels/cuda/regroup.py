"""Raw rows of a file to row planes (quant/cuda/planes.py), a unit of 1 or 2 bytes a thread."""

from typing import Any

from ....quant.cuda.memory import load_u8, load_u16, store_u8, store_u16
from ....quant.cuda.simt import (
    Kernel,
    block_x,
    block_y,
    kernel,
    let_next_start,
    thread,
    wait_for_inputs,
)
from .launches.regroup import THREADS


def _make(size: int, load: Any, store: Any) -> Kernel:
    @kernel(block=THREADS)
    def regroup(
        raw, raw_bytes, planes, width, block_bytes,
        end0, at0, len0, end1, at1, len1, end2, at2, len2, end3, at3, len3,
    ):  # fmt: skip
        """A row a block_x. Of each piece: where its plane ends, and its place in a block.

        end, len: in units. at, and what else has bytes in its name: in bytes.
        """
        let_next_start()
        wait_for_inputs()
        row, unit = block_x(), block_y() * THREADS + thread()
        begin, at, length = 0, at0, len0
        if unit >= end2:
            begin, at, length = end2, at3, len3
        elif unit >= end1:
            begin, at, length = end1, at2, len2
        elif unit >= end0:
            begin, at, length = end0, at1, len1
        if unit < end3:
            block, inside = (unit - begin) // length, (unit - begin) % length
            source = raw + row * raw_bytes + block * block_bytes + at + inside * size
            store(planes + row * width + unit * size, load(source))
        elif unit * size < width:
            store(planes + row * width + unit * size, 0)

    return regroup


regroup_bytes = _make(1, load_u8, store_u8)
regroup_halves = _make(2, load_u16, store_u16)
