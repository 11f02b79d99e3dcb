"""Matmuls of 8 to 64 tokens on tensor cores: y = softcap(factor * (W @ x + bias) + y).

A warp multiplies a few tiles (quant/cuda/tiles.py), one or two, by all tokens; of a block's warps
some take other tiles (`across`), which share what they read of the activations, and the others
divide the columns (`along`): each takes every so-manieth step, the next one's weights on their way
while this one's are multiplied, and their sums are added up, in order, in shared memory.

A kernel's name tells its variant (launches/matmul_tiles.py), and it is made when asked for:
`q4_k_n2_r1_a1_w4_b0` multiplies bytes, `half_q4_k_n2_r1_a1_w4_b0` float16 numbers (tile_steps.py).
"""

import re
from typing import Any

import numpy as np

from ....quant.cuda.memory import load_f32, load_shared_f32, shared, store_f32, store_shared_f32
from ....quant.cuda.simt import (
    Kernel,
    barrier,
    block_x,
    block_y,
    exp2,
    f32_of,
    inline,
    kernel,
    let_next_start,
    thread,
    wait_for_inputs,
)
from ....quant.cuda.tiles import LAYOUTS
from .launches.matmul_tiles import Variant
from .tile_steps import steps

_NAME = re.compile(r"(half_)?(\w+)_n(\d+)_r(\d)_a(\d)_w(\d+)_b(\d)")
_TWO_LOG2_E = np.float32(2.8853900817779268)
_SHARED_BYTES = 20480  # at most, of a block


@inline
def _capped(v, cap):
    """cap * tanh(v / cap)."""
    e = exp2(v / cap * _TWO_LOG2_E)
    return cap * (f32_of(1) - f32_of(2) / (e + f32_of(1)))


@inline
def _finish(total, row, at, bias, factor, cap, residual):
    """What is stored at `at` of a sum."""
    if bias != 0:
        total += load_f32(bias + 4 * row)
    total *= factor
    if residual != 0:
        total += load_f32(at)
    if cap != f32_of(0):
        total = _capped(total, cap)
    store_f32(at, total)


def _make(variant: Variant) -> Kernel:
    """A kernel; its arguments are those of launches/matmul_tiles.py."""
    blocks, tiles, across, along = variant.blocks, variant.tiles, variant.across, variant.along
    warps = across * along
    step_bytes = LAYOUTS[variant.layout].bytes
    made = steps(variant)
    units, none, empty, fetch = made.units, made.none, made.empty, made.fetch
    step, x_place, scales_place = made.step, made.x_place, made.scales_place
    x_unit, scales_unit = made.x_unit, made.scales_unit

    rows = 16 * tiles
    pitch = rows + 4  # floats of a token's sums: without conflicts of banks
    together = blocks  # blocks of tokens that are added up at once
    while together > 1 and warps * together * 8 * pitch * 4 > _SHARED_BYTES:
        together = -(-together // 2)
    rounds = -(-blocks // together)
    warp_sums = together * 8 * pitch * 4
    sums = shared(warps * warp_sums)

    @kernel(block=32 * warps, min_blocks=variant.resident)
    def multiply_tiles(
        end0, w0, tiles0, skipped0, rows0, out0, stride0, bias0,
        end1, w1, tiles1, skipped1, rows1, out1, stride1, bias1,
        end2, w2, tiles2, skipped2, rows2, out2, stride2, bias2,
        x_at, scales_at, x_stride, num_units, factor: float, cap: float, residual,
    ):  # fmt: skip
        """Tiles of one of three matrices, by the tokens of pass block_y()."""
        let_next_start()
        group, w, num_tiles = block_x(), w0, tiles0
        skipped, num_rows, out, out_stride, bias = skipped0, rows0, out0, stride0, bias0
        if group >= end1:
            group, w, num_tiles = group - end1, w2, tiles2
            skipped, num_rows, out, out_stride, bias = skipped2, rows2, out2, stride2, bias2
        elif group >= end0:
            group, w, num_tiles = group - end0, w1, tiles1
            skipped, num_rows, out, out_stride, bias = skipped1, rows1, out1, stride1, bias1
        num_steps = (num_units + units - 1) // units
        lane, warp = thread() & 31, (thread() >> 5) % along
        tile = (group * across + (thread() >> 5) // along) * tiles
        # A tile that isn't there is the last one once more; a warp without a step reads its last.
        apart = num_steps * step_bytes
        if tile + tiles > num_tiles:
            apart = 0
        first = warp
        if first >= num_steps:
            first = num_steps - 1
        at = tile
        if at >= num_tiles:
            at = num_tiles - 1
        at = w + (at * num_steps + first) * step_bytes
        words = empty()
        for u in range(units):
            for r in range(tiles):
                words = fetch(words, r, at + r * apart, lane, u)
        wait_for_inputs()

        first_block = block_y() * blocks
        x = x_place(x_at, x_stride, first_block, lane) + warp * units * x_unit
        scales = scales_place(scales_at, x_stride, first_block, lane) + warp * units * scales_unit
        total = none()
        for index in range(warp, num_steps, along):
            if index + along < num_steps:
                at += along * step_bytes
            last = num_units - 1 - index * units
            total, words = step(total, words, words, at, apart, lane, x, scales, x_stride, last)
            x += along * units * x_unit
            scales += along * units * scales_unit

        g, t = lane >> 2, lane & 3
        for part in range(rounds):
            if part > 0:
                barrier()
            for n in range(together):
                block = part * together + n
                if block < blocks:
                    for r in range(tiles):
                        for k in range(4):
                            column = n * 8 + 2 * t + (k & 1)
                            row = r * 16 + g + (k >> 1) * 8
                            to = sums() + (thread() >> 5) * warp_sums + (column * pitch + row) * 4
                            store_shared_f32(to, total[4 * (r * blocks + block) + k])
            barrier()
            for i in range(thread(), across * together * 8 * rows, 32 * warps):
                column = i // (across * rows)
                row = i % (across * rows)
                from_sums = sums() + row // rows * along * warp_sums
                from_sums += (column * pitch + row % rows) * 4
                token = part * together * 8 + column
                matrix_row = group * (across * rows) + row
                if token < blocks * 8 and matrix_row >= skipped and matrix_row < num_rows:
                    v = f32_of(0)
                    for k in range(along):
                        v += load_shared_f32(from_sums + k * warp_sums)
                    to = out + (first_block * 8 + token) * out_stride + matrix_row * 4
                    _finish(v, matrix_row, to, bias, factor, cap, residual)

    return multiply_tiles


def __getattr__(name: str) -> Any:
    """The kernel of a variant's name."""
    found = _NAME.fullmatch(name)
    if found is None or found[2] not in LAYOUTS:
        raise AttributeError(name)
    *work, resident = (int(found[i]) for i in range(3, 8))
    variant = Variant(found[2], *work, half=found[1] is not None, resident=resident)
    made = globals()[name] = _make(variant)
    return made
