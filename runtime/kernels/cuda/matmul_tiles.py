"""Matmuls of 8 to 64 tokens on tensor cores: y = softcap(factor * (W @ x + bias) + y).

A block of threads multiplies a few tiles (quant/cuda/tiles.py), one or two, by all tokens. Its
warps divide the columns: each takes every so-manieth step, the next one's weights on their way
while this one's are multiplied, and their sums are added up, in order, in shared memory. Bytes are
multiplied as such, 32 columns at a time, and scaled in float32.

A kernel's name tells its variant (launches/matmul_tiles.py): `q4_k_n2_r1_w4` is made when asked
for.
"""

import re
from typing import Any

import numpy as np

from ....quant.cuda.fragments import fragments
from ....quant.cuda.matrices import mma_s8, mma_s8_half
from ....quant.cuda.memory import (
    load_f32,
    load_f32x4,
    load_i32,
    load_i32x2,
    load_shared_f32,
    shared,
    store_f32,
    store_shared_f32,
)
from ....quant.cuda.simt import (
    Kernel,
    barrier,
    bits_f32,
    block_x,
    block_y,
    exp2,
    f32_of,
    fill,
    fma,
    i32,
    inline,
    kernel,
    let_next_start,
    make_i32x2,
    put,
    put_part,
    take,
    thread,
    wait_for_inputs,
    zero,
)
from ....quant.cuda.tiles import LAYOUTS
from .launches.matmul_tiles import Variant

_NAME = re.compile(r"(\w+)_n(\d+)_r(\d)_w(\d+)")
# Counts begin at the bits of 1.5 * 2^23, where float32 numbers are whole: read as one and less
# that, they are float32 numbers.
_COUNT_FROM = np.float32(12582912.0)
_TWO_LOG2_E = np.float32(2.8853900817779268)
_SHARED_BYTES = 20480  # at most, of a block

_four = fill("i32x4")
_pair_of = take("i32x4", 2)


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
    blocks, tiles, warps = variant.blocks, variant.tiles, variant.warps
    layout = LAYOUTS[variant.layout]
    step_bytes = layout.bytes
    parts = fragments(variant.layout, tiles)
    units, halves, minima = parts.units, parts.halves, parts.minima
    empty, fetch, unit = parts.empty, parts.fetch, parts.unit
    whole = layout.columns == 256  # no step has missing columns
    lane_bytes = 4 if halves else 8

    rows = 16 * tiles
    pitch = rows + 4  # floats of a token's sums: without conflicts of banks
    together = blocks  # blocks of tokens that are added up at once
    while together > 1 and warps * together * 8 * pitch * 4 > _SHARED_BYTES:
        together = -(-together // 2)
    rounds = -(-blocks // together)
    sums = shared(warps * together * 8 * pitch * 4)

    none = zero(f"f32x{4 * tiles * blocks}")
    put_sum = put(f"f32x{4 * tiles * blocks}")
    no_bytes, put_bytes = zero(f"i32x{4 * tiles}"), put_part(f"i32x{4 * tiles}", 4)
    bytes_of = take(f"i32x{4 * tiles}", 4)
    no_factors, put_factors = zero(f"f32x{4 * tiles}"), put_part(f"f32x{4 * tiles}", 4)
    factors_of = take(f"f32x{4 * tiles}", 4)

    @inline
    def multiply(total, at, a, s, x0, x1, pair):
        """A unit of a tile by eight tokens, into elements 4 * at... of the sums."""
        start = _four(i32(0x4B400000))
        if halves:
            c = mma_s8_half(_pair_of(a, 0), x0, start)
            more = mma_s8_half(_pair_of(a, 1), x1, start)
            for k in range(4):
                v = (bits_f32(c[k]) - _COUNT_FROM) * s[k >> 1]
                v = fma(bits_f32(more[k]) - _COUNT_FROM, s[2 + (k >> 1)], v)
                total = put_sum(total, 4 * at + k, fma(v, pair[2 * (k & 1)], total[4 * at + k]))
        else:
            c = mma_s8(a, make_i32x2(x0, x1), start)
            for k in range(4):
                scale = s[k >> 1] * pair[2 * (k & 1)]
                v = fma(bits_f32(c[k]) - _COUNT_FROM, scale, total[4 * at + k])
                if minima:
                    v = fma(s[2 + (k >> 1)], pair[2 * (k & 1) + 1], v)
                total = put_sum(total, 4 * at + k, v)
        return total

    @inline
    def step(total, words, ahead, at, apart, lane, x, scales, stride, last):
        """A step of columns; `ahead` becomes the words of the one at `at`."""
        for u in range(units):
            a, s = no_bytes(), no_factors()
            for r in range(tiles):
                found, factors = unit(words, r, u)
                a, s = put_bytes(a, r, found), put_factors(s, r, factors)
            place = u
            if not whole and last < u:
                place = last  # of missing columns, which are multiplied by zero
            for n in range(blocks):
                from_x = x + (n * stride + place) * 256
                if halves:
                    x0, x1 = load_i32(from_x), load_i32(from_x + 16)
                else:
                    both = load_i32x2(from_x)
                    x0, x1 = both[0], both[1]
                pair = load_f32x4(scales + (n * stride + place) * 64)
                for r in range(tiles):
                    at_sum = r * blocks + n
                    total = multiply(total, at_sum, bytes_of(a, r), factors_of(s, r), x0, x1, pair)
            for r in range(tiles):
                ahead = fetch(ahead, r, at + r * apart, lane, u)
        return total, ahead

    @kernel(block=32 * warps)
    def multiply_tiles(
        end0, w0, tiles0, skipped0, rows0, out0, stride0, bias0,
        end1, w1, tiles1, skipped1, rows1, out1, stride1, bias1,
        end2, w2, tiles2, skipped2, rows2, out2, stride2, bias2,
        q, q_scales, x_stride, num_units, factor: float, cap: float, residual,
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
        lane, warp = thread() & 31, thread() >> 5
        tile = group * tiles
        # A tile that isn't there is the last one once more; a warp without a step reads its last.
        apart = num_steps * step_bytes
        if tile + tiles > num_tiles:
            apart = 0
        first = warp
        if first >= num_steps:
            first = num_steps - 1
        at = w + (tile * num_steps + first) * step_bytes
        words = empty()
        for u in range(units):
            for r in range(tiles):
                words = fetch(words, r, at + r * apart, lane, u)
        wait_for_inputs()

        first_block = block_y() * blocks
        block_at = first_block * x_stride + warp * units
        x = q + block_at * 256 + (lane >> 2) * 32 + (lane & 3) * lane_bytes
        scales = q_scales + block_at * 64 + (lane & 3) * 16
        total = none()
        for index in range(warp, num_steps, warps):
            if index + warps < num_steps:
                at += warps * step_bytes
            last = num_units - 1 - index * units
            total, words = step(total, words, words, at, apart, lane, x, scales, x_stride, last)
            x += warps * units * 256
            scales += warps * units * 64

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
                            to = sums() + ((warp * together * 8 + column) * pitch + row) * 4
                            store_shared_f32(to, total[4 * (r * blocks + block) + k])
            barrier()
            for i in range(thread(), together * 8 * rows, 32 * warps):
                column = i // rows
                row = i % rows
                token = part * together * 8 + column
                matrix_row = tile * 16 + row
                if token < blocks * 8 and matrix_row >= skipped and matrix_row < num_rows:
                    v = f32_of(0)
                    for k in range(warps):
                        from_sums = sums() + ((k * together * 8 + column) * pitch + row) * 4
                        v += load_shared_f32(from_sums)
                    to = out + (first_block * 8 + token) * out_stride + matrix_row * 4
                    _finish(v, matrix_row, to, bias, factor, cap, residual)

    return multiply_tiles


def __getattr__(name: str) -> Any:
    """The kernel of a variant's name."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in LAYOUTS:
        raise AttributeError(name)
    variant = Variant(found[1], *(int(found[i]) for i in (2, 3, 4)))
    made = globals()[name] = _make(variant)
    return made
