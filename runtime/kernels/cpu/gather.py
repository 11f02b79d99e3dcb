"""The tokens whose logits are wanted."""

from ....quant.cpu.simd import (
    LANES,
    kernel,
    load_f32,
    load_f32x16,
    load_i64,
    store_f32,
    store_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ..records import GATHER, STEP


@kernel
def gather_rows(op, step, thread):
    """Rows -> rows, a token a piece of work."""
    count, columns = load_i64(load_i64(op + GATHER.count_at)), load_i64(op + GATHER.columns)
    while True:
        t = atomic_add(load_i64(op + GATHER.counter), 1)
        if t >= count:
            return 0
        row = load_i64(load_i64(step + STEP.out_rows) + 8 * t)
        x = load_i64(op + GATHER.x) + row * load_i64(op + GATHER.x_stride)
        out = load_i64(op + GATHER.out) + t * load_i64(op + GATHER.out_stride)
        for i in range(0, columns, 16):
            store_f32x16(out + 4 * i, load_f32x16(x + 4 * i))


@kernel
def gather_lanes(op, step, thread):
    """Lanes -> rows."""
    count, columns = load_i64(load_i64(op + GATHER.count_at)), load_i64(op + GATHER.columns)
    while True:
        t = atomic_add(load_i64(op + GATHER.counter), 1)
        if t >= count:
            return 0
        lane = load_i64(load_i64(step + STEP.out_rows) + 8 * t)
        x = load_i64(op + GATHER.x) + (lane // LANES * columns * LANES + lane % LANES) * 4
        out = load_i64(op + GATHER.out) + t * load_i64(op + GATHER.out_stride)
        for i in range(columns):
            store_f32(out + 4 * i, load_f32(x + i * LANES * 4))
