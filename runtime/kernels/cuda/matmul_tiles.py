"""Matmuls of 8 to 64 tokens on tensor cores: y = softcap(factor * (W @ x + bias) + y).

A warp multiplies a few tiles (quant/cuda/tiles.py), one or two, by all tokens; of a block's warps
some take other tiles (`across`), which share what they read of the activations, and the others
divide the columns (`along`): each takes every so-manieth step, the next ones' weights on their way
to shared memory while one's are multiplied, and their sums are added up, in order. (Weights are not
read ahead into registers: ptxas puts such loads off until shortly before they are needed.)

A kernel's name tells its variant (launches/matmul_tiles.py), and it is made when asked for:
`q4_k_n2_r1_a1_w4_b0_e2` multiplies bytes, with `half_` before it float16 numbers (tile_steps.py).
"""

import re
from typing import Any

import numpy as np

from ....quant.cuda.matrices import commit_copies, copy_async, wait_copies
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
    sync_warp,
    thread,
    wait_for_inputs,
)
from ....quant.cuda.tiles import LAYOUTS
from .launches.matmul_tiles import Variant
from .tile_steps import steps

_NAME = re.compile(r"(half_)?(\w+)_n(\d+)_r(\d)_a(\d)_w(\d+)_b(\d)_e(\d)")
_TWO_LOG2_E = np.float32(2.8853900817779268)
_SUMS_BYTES = 20480  # at most, of a block


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
    units, none, step, stages = made.units, made.none, made.step, variant.stages
    x_place, scales_place, no_given, begin = made.x_place, made.scales_place, made.given, made.begin
    x_unit, scales_unit = made.x_unit, made.scales_unit

    rows = 16 * tiles
    pitch = rows + 4  # floats of a token's sums: without conflicts of banks
    together = blocks  # blocks of tokens that are added up at once
    while together > 1 and warps * together * 8 * pitch * 4 > _SUMS_BYTES:
        together = -(-together // 2)
    rounds = -(-blocks // together)
    sums_bytes = together * 8 * pitch * 4  # of a warp
    stage_bytes = tiles * step_bytes
    assert stages >= 2
    memory = shared(warps * max(stages * stage_bytes, sums_bytes))
    pieces = step_bytes // 16
    wait_for_oldest = wait_copies(stages - 2)

    @inline
    def copy(to, at, apart, lane):
        """A step of the tiles to shared memory."""
        for r in range(tiles):
            for k in range((pieces + 31) // 32):
                piece = lane + 32 * k
                if piece < pieces:
                    copy_async(to + r * step_bytes + piece * 16, at + r * apart + piece * 16)

    @kernel(block=32 * warps, min_blocks=variant.resident)
    def multiply_tiles(
        end0, w0, tiles0, skipped0, rows0, out0, stride0, bias0,
        end1, w1, tiles1, skipped1, rows1, out1, stride1, bias1,
        end2, w2, tiles2, skipped2, rows2, out2, stride2, bias2,
        x_at, scales_at, x_stride, num_units, factor: float, cap: float, residual,
    ):  # fmt: skip
        """Tiles of one of three matrices, by the tokens of pass block_x()."""
        let_next_start()
        group, w, num_tiles = block_y(), w0, tiles0
        if group >= end1:
            group, w, num_tiles = group - end1, w2, tiles2
        elif group >= end0:
            group, w, num_tiles = group - end0, w1, tiles1
        num_steps = (num_units + units - 1) // units
        lane, warp = thread() & 31, (thread() >> 5) % along
        tile = (group * across + (thread() >> 5) // along) * tiles
        # A tile that isn't there is the last one once more; a warp without a step reads its last.
        apart = num_steps * step_bytes
        if tile + tiles > num_tiles:
            apart = 0
        place = tile
        if place >= num_tiles:
            place = num_tiles - 1
        own = memory() + (thread() >> 5) * (stages * stage_bytes)
        at = w + (place * num_steps + warp) * step_bytes
        for k in range(stages - 1):
            if warp + k * along < num_steps:
                copy(own + k * stage_bytes, at + k * along * step_bytes, apart, lane)
            commit_copies()
        at += (stages - 1) * along * step_bytes
        wait_for_inputs()

        first = warp
        if first >= num_steps:
            first = num_steps - 1
        first_block = block_x() * blocks
        x = x_place(x_at, x_stride, first_block, lane) + first * units * x_unit
        scales = scales_place(scales_at, x_stride, first_block, lane) + first * units * scales_unit
        given = begin(no_given(), x, x_stride, num_units - 1 - first * units)
        total = none()
        stage, next_stage = 0, stages - 1
        for index in range(warp, num_steps, along):
            wait_for_oldest()
            sync_warp()  # all threads' copies are there, and the stage before has been read
            if index + (stages - 1) * along < num_steps:
                copy(own + next_stage * stage_bytes, at, apart, lane)
            commit_copies()
            at += along * step_bytes
            on = 0
            if index + along < num_steps:
                on = along * units
            total, given = step(
                total, given, own + stage * stage_bytes, lane, x, scales, x_stride,
                num_units - 1 - index * units, on,
            )  # fmt: skip
            x += on * x_unit
            scales += on * scales_unit
            next_stage = stage
            stage += 1
            if stage == stages:
                stage = 0

        # Only now, as registers are dear in the loop.
        skipped, num_rows, out, out_stride, bias = skipped0, rows0, out0, stride0, bias0
        if block_y() >= end1:
            skipped, num_rows, out, out_stride, bias = skipped2, rows2, out2, stride2, bias2
        elif block_y() >= end0:
            skipped, num_rows, out, out_stride, bias = skipped1, rows1, out1, stride1, bias1
        g, t = lane >> 2, lane & 3
        for part in range(rounds):
            barrier()  # the memory has been read
            for n in range(together):
                block = part * together + n
                if block < blocks:
                    for r in range(tiles):
                        for k in range(4):
                            column = n * 8 + 2 * t + (k & 1)
                            row = r * 16 + g + (k >> 1) * 8
                            to = (
                                memory() + (thread() >> 5) * sums_bytes + (column * pitch + row) * 4
                            )
                            store_shared_f32(to, total[4 * (r * blocks + block) + k])
            barrier()
            for i in range(thread(), across * together * 8 * rows, 32 * warps):
                column = i // (across * rows)
                row = i % (across * rows)
                from_sums = memory() + row // rows * along * sums_bytes
                from_sums += (column * pitch + row % rows) * 4
                token = part * together * 8 + column
                matrix_row = group * (across * rows) + row
                if token < blocks * 8 and matrix_row >= skipped and matrix_row < num_rows:
                    v = f32_of(0)
                    for k in range(along):
                        v += load_shared_f32(from_sums + k * sums_bytes)
                    to = out + (first_block * 8 + token) * out_stride + matrix_row * 4
                    _finish(v, matrix_row, to, bias, factor, cap, residual)

    return multiply_tiles


def __getattr__(name: str) -> Any:
    """The kernel of a variant's name."""
    found = _NAME.fullmatch(name)
    if found is None or found[2] not in LAYOUTS:
        raise AttributeError(name)
    blocks, tiles, across, along, resident, early = (int(found[i]) for i in range(3, 9))
    half = found[1] is not None
    variant = Variant(found[2], blocks, tiles, across, along, half, resident, early)
    made = globals()[name] = _make(variant)
    return made
