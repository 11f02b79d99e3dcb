"""The tokens whose logits are wanted, and logits back from lanes to rows."""

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
from .lanes import transpose_block


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


@kernel
def pack_lanes(op, step, thread):
    """Lanes -> fewer lanes: the wanted tokens, packed; unused lanes of the last block are 0."""
    count, columns = load_i64(load_i64(op + GATHER.count_at)), load_i64(op + GATHER.columns)
    padded = (count + LANES - 1) // LANES * LANES
    while True:
        t = atomic_add(load_i64(op + GATHER.counter), 1)
        if t >= padded:
            return 0
        out = load_i64(op + GATHER.out) + (t // LANES * columns * LANES + t % LANES) * 4
        if t >= count:
            for i in range(columns):
                store_f32(out + i * LANES * 4, 0.0)
            continue
        lane = load_i64(load_i64(step + STEP.out_rows) + 8 * t)
        x = load_i64(op + GATHER.x) + (lane // LANES * columns * LANES + lane % LANES) * 4
        for i in range(columns):
            store_f32(out + i * LANES * 4, load_f32(x + i * LANES * 4))


@kernel
def unpack_lanes(op, step, thread):
    """[block][columns][LANES] -> rows of out_stride bytes: logits; 1024 columns a piece of work."""
    count, columns = load_i64(load_i64(op + GATHER.count_at)), load_i64(op + GATHER.columns)
    blocks, parts = (count + LANES - 1) // LANES, (columns + 1023) // 1024
    stride = load_i64(op + GATHER.out_stride)
    while True:
        item = atomic_add(load_i64(op + GATHER.counter), 1)
        if item >= blocks * parts:
            return 0
        block, start = item // parts, item % parts * 1024
        x = load_i64(op + GATHER.x) + block * columns * LANES * 4
        out = load_i64(op + GATHER.out) + block * LANES * stride
        end = min(columns, start + 1024)
        whole = start + (end - start) // LANES * LANES
        for i in range(start, whole, LANES):
            transpose_block(x + i * LANES * 4, LANES * 4, out + 4 * i, stride)
        for i in range(whole, end):
            for lane in range(LANES):
                store_f32(out + lane * stride + 4 * i, load_f32(x + (i * LANES + lane) * 4))
