"""Biases, penalties and masks of logits on the device (launches/edit.py)."""

import numpy as np

from ....quant.cuda.memory import (
    load_f32,
    load_i32,
    load_i32x2,
    load_i32x4,
    load_i64,
    store_f32,
    store_i32x4,
)
from ....quant.cuda.simt import (
    barrier,
    bits_f32,
    block_x,
    block_y,
    f32_of,
    i64,
    inline,
    kernel,
    let_next_start,
    thread,
    to_f32,
    wait_for_inputs,
)
from .launches.edit import EDIT_BYTES, PART, THREADS

_NOTHING = np.float32(-np.inf)


@inline
def _add(row, first, end, pairs, count):
    """Add values to the logits of a list that lie in a part."""
    for i in range(thread(), count, THREADS):
        pair = load_i32x2(pairs + 8 * i)
        token = i64(pair[0])
        if token >= first and token < end:
            store_f32(row + 4 * token, load_f32(row + 4 * token) + bits_f32(pair[1]))


@kernel(block=THREADS)
def copy(source, target, pieces):
    """Rows of logits, in pieces of 16 bytes, to where they are edited."""
    let_next_start()
    wait_for_inputs()
    i = block_x() * THREADS + thread()
    if i < pieces:
        store_i32x4(target + 16 * i, load_i32x4(source + 16 * i))


@kernel(block=THREADS)
def edit(logits, stride, vocab, edits):
    """A part of the tokens of an EDIT a block."""
    let_next_start()
    wait_for_inputs()
    at, first = edits + block_y() * EDIT_BYTES, block_x() * PART
    end = min(first + PART, vocab)
    row = logits + i64(load_i32(at + 24)) * stride
    _add(row, first, end, load_i64(at), i64(load_i32(at + 28)))
    barrier()
    seen, penalty = load_i64(at + 8), load_f32(at + 36)
    frequency, presence = load_f32(at + 40), load_f32(at + 44)
    for i in range(thread(), i64(load_i32(at + 32)), THREADS):
        pair = load_i32x2(seen + 8 * i)
        token = i64(pair[0])
        if token >= first and token < end:
            v = load_f32(row + 4 * token)
            if v <= f32_of(0):
                v = v * penalty
            else:
                v = v / penalty
            v = v - to_f32(pair[1]) * frequency
            store_f32(row + 4 * token, v - presence)
    barrier()
    mask = load_i64(at + 16)
    if mask != 0:
        for token in range(first + thread(), end, THREADS):
            word = i64(load_i32(mask + 4 * (token >> 5)))
            if (word >> (token & 31)) & 1 == 0:
                store_f32(row + 4 * token, _NOTHING)
