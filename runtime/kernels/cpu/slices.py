"""A part of each head's columns, copied to where the heads lie otherwise, or quantized."""

from ....quant.cpu.simd import LANES, kernel, load, load_f32x16, load_i64, store, store_f32x16
from ....quant.cpu.threads import atomic_add
from ..records import SLICES, STEP
from .lanes import put_lanes
from .quantize import put_row

_load, _store = load("f32", LANES), store("f32", LANES)


@kernel
def slices_rows(op, step, thread):
    """A head of a token a piece of work."""
    tokens = load_i64(load_i64(op + SLICES.count_at))
    heads, columns = load_i64(op + SLICES.heads), load_i64(op + SLICES.columns)
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        item = atomic_add(load_i64(op + SLICES.counter), 1)
        if item >= tokens * heads:
            return 0
        t, head = item // heads, item % heads
        x = load_i64(op + SLICES.x) + t * load_i64(op + SLICES.x_stride)
        x += head * load_i64(op + SLICES.step)
        out = load_i64(op + SLICES.out)
        if out != 0:
            out += t * load_i64(op + SLICES.out_stride) + head * load_i64(op + SLICES.out_step)
            for i in range(0, columns, 16):
                store_f32x16(out + 4 * i, load_f32x16(x + 4 * i))
            continue
        for i in range(0, columns, 16):
            store_f32x16(y + 4 * i, load_f32x16(x + 4 * i))
        put_row(op, t, head * columns, columns, y)


@kernel
def slices_lanes(op, step, thread):
    """A head of a block of LANES tokens a piece of work."""
    blocks = (load_i64(load_i64(op + SLICES.count_at)) + LANES - 1) // LANES
    heads, columns = load_i64(op + SLICES.heads), load_i64(op + SLICES.columns)
    while True:
        item = atomic_add(load_i64(op + SLICES.counter), 1)
        if item >= blocks * heads:
            return 0
        block, head = item // heads, item % heads
        x = block * load_i64(op + SLICES.x_stride) + head * load_i64(op + SLICES.step)
        x = load_i64(op + SLICES.x) + x * LANES * 4
        out = load_i64(op + SLICES.out)
        if out != 0:
            to = block * load_i64(op + SLICES.out_stride) + head * load_i64(op + SLICES.out_step)
            out += to * LANES * 4
            for i in range(columns):
                _store(out + i * LANES * 4, _load(x + i * LANES * 4))
            continue
        for start in range(0, columns, 32):
            put_lanes(op, block, head * columns + start, x + start * LANES * 4)
