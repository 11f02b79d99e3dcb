"""Token embeddings: rows of the embedding matrix as float32, times the architecture's scale.

Where a model has them, the row of the token's position and a constant row are added.
"""

from typing import Any

from ....quant.cpu.simd import (
    LANES,
    fill_f32x16,
    inline,
    kernel,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    store_f32,
    store_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ..records import EMBED, STEP
from .formats import EXPAND


@inline
def _add_rows(op, step, t, columns, row):
    constant, positions = load_i64(op + EMBED.constant_row), load_i64(op + EMBED.position_rows)
    if constant != 0:
        for i in range(0, columns, 16):
            store_f32x16(row + 4 * i, load_f32x16(row + 4 * i) + load_f32x16(constant + 4 * i))
    if positions != 0:
        position = load_i64(load_i64(step + STEP.positions) + 8 * t)
        position = min(position, load_i64(op + EMBED.num_positions) - 1)
        more = positions + position * columns * 4
        for i in range(0, columns, 16):
            store_f32x16(row + 4 * i, load_f32x16(row + 4 * i) + load_f32x16(more + 4 * i))


def _make(expand: Any) -> tuple[Any, Any]:
    @kernel
    def embed_rows(op, step, thread):
        count = load_i64(load_i64(op + EMBED.count_at))
        columns = load_i64(op + EMBED.columns)
        weight = load_i64(op + EMBED.weight)
        scratch = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        scale = fill_f32x16(load_f32(op + EMBED.scale))
        while True:
            t = atomic_add(load_i64(op + EMBED.counter), 1)
            if t >= count:
                return 0
            token = load_i32(load_i64(step + STEP.token_ids) + 4 * t)
            out = load_i64(op + EMBED.out) + t * load_i64(op + EMBED.out_stride)
            expand(weight + token * load_i64(op + EMBED.row_bytes), columns, out, scratch)
            for i in range(0, columns, 16):
                store_f32x16(out + 4 * i, load_f32x16(out + 4 * i) * scale)
            _add_rows(op, step, t, columns, out)

    @kernel
    def embed_lanes(op, step, thread):
        count = load_i64(load_i64(op + EMBED.count_at))
        columns = load_i64(op + EMBED.columns)
        weight = load_i64(op + EMBED.weight)
        row = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
        scale = fill_f32x16(load_f32(op + EMBED.scale))
        while True:
            t = atomic_add(load_i64(op + EMBED.counter), 1)
            if t >= count:
                return 0
            token = load_i32(load_i64(step + STEP.token_ids) + 4 * t)
            expand(weight + token * load_i64(op + EMBED.row_bytes), columns, row, row + 4 * columns)
            for i in range(0, columns, 16):
                store_f32x16(row + 4 * i, load_f32x16(row + 4 * i) * scale)
            _add_rows(op, step, t, columns, row)
            out = load_i64(op + EMBED.out) + (t // LANES * columns * LANES + t % LANES) * 4
            for i in range(columns):
                store_f32(out + i * LANES * 4, load_f32(row + 4 * i))

    return embed_rows, embed_lanes


for _name, _expand in EXPAND.items():
    globals()[f"embed_rows_{_name}"], globals()[f"embed_lanes_{_name}"] = _make(_expand)
