"""Blocks of any format to float32, bit for bit as its `dequantize` in NumPy: the way in.

`expand_<format>` are the kernels. They are made when they are asked for, each of what its format
is made of on the CPU: a format's unsigned bytes u and its scales and minima are unpacked as for
the prompt's kernels, and become (u - offset) * scale or u * scale - minimum.
"""

import importlib
from typing import Any

import numpy as np

from .. import FORMATS_BY_NAME
from ..cpu.blocks32 import CpuFormat
from ..cpu.simd import (
    convert,
    fill,
    fill_f32x16,
    inline,
    kernel,
    load_f16x16,
    load_f32,
    load_f32x16,
    load_i8x16,
    load_i16x16,
    shift_left,
    store_f32x16,
    to_f32x16,
    u8_to_i32x16,
    widen_f16x16,
)
from ..cpu.vector import vec
from .block_words import copy_i16, copy_i32
from .words import from_bits_f32x16, smaller

AT_ONCE = 8192  # weights, whose bytes, scales and minima fit into half of the scratch memory
_LAST_POWER = np.float32(2.0**127)
_PREFIX = "expand_"

_fill_i32x16 = fill("i32", 16)
_widen_i16 = convert("zext", vec("i16", 16), vec("i32", 16))
_up16 = shift_left("i32", 16, 16)


@kernel
def expand_f32(source, out, num_rows, columns, scratch):
    """Rows as they are."""
    count = num_rows * columns
    whole = count - count % 16
    for i in range(0, whole, 16):
        store_f32x16(out + 4 * i, load_f32x16(source + 4 * i))
    for i in range(whole, count):
        copy_i32(source + 4 * i, out + 4 * i)
    return 0


def _halves(convert_16: Any) -> Any:
    """A kernel from (address of 16 halves, of any kind) -> <16 x f32>."""

    @kernel
    def expand(source, out, num_rows, columns, scratch):
        count = num_rows * columns
        whole = count - count % 16
        for i in range(0, whole, 16):
            store_f32x16(out + 4 * i, convert_16(source + 2 * i))
        if whole < count:
            for i in range(whole, count):
                copy_i16(source + 2 * i, scratch + 2 * (i - whole))
            store_f32x16(scratch + 64, convert_16(scratch))
            for i in range(whole, count):
                copy_i32(scratch + 64 + 4 * (i - whole), out + 4 * i)
        return 0

    return expand


@inline
def _load_f16(at):
    return widen_f16x16(load_f16x16(at))


@inline
def _load_bf16(at):
    return from_bits_f32x16(_up16(_widen_i16(load_i16x16(at))))


expand_f16, expand_bf16 = _halves(_load_f16), _halves(_load_bf16)


def __getattr__(name: str) -> Any:
    if not name.startswith(_PREFIX):
        raise AttributeError(name)
    short = name.removeprefix(_PREFIX)
    fmt = importlib.import_module(f"..cpu.{short}", __package__).FORMAT
    bytes_of_256 = FORMATS_BY_NAME[short.upper()].row_bytes(256)
    globals()[name] = made = _make(fmt, bytes_of_256, short == "mxfp4")
    return made


def _make(fmt: CpuFormat, bytes_of_256: int, powers: bool) -> Any:
    """A format's kernel; its scales may be `powers` of two, the last of which is 2^127."""
    unpack, group, offset = fmt.unpack_row, fmt.group, fmt.offset

    @inline
    def scaled(u, scale, minimum):
        if offset > 0:
            return to_f32x16(u - _fill_i32x16(np.int32(offset))) * scale
        return to_f32x16(u) * scale - minimum

    @kernel
    def expand(source, out, num_rows, columns, scratch):
        scales = scratch + AT_ONCE
        minima = scales + AT_ONCE // group * 4
        left = num_rows * columns
        while left > 0:
            count = min(left, AT_ONCE)
            unpack(source, count >> 5, scratch, 32, scales, minima)
            for g in range(count // group):
                scale = fill_f32x16(load_f32(scales + 4 * g))
                if powers:  # the products of the prompt don't need it, and have infinity
                    scale = smaller(scale, fill_f32x16(_LAST_POWER))
                minimum = fill_f32x16(load_f32(minima + 4 * g))
                for i in range(g * group, (g + 1) * group, 16):
                    u = u8_to_i32x16(load_i8x16(scratch + i))
                    store_f32x16(out + 4 * i, scaled(u, scale, minimum))
            source += count * bytes_of_256 // 256
            out += 4 * count
            left -= count
        return 0

    return expand
