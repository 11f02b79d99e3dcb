"""Rows of planes (quant/cuda/planes.py) to float16 (rows, columns).

A thread reads a piece and writes eight columns of each of its groups, 16 bytes at once, as its
neighbours do, so that what a warp writes is contiguous. (16 columns a thread take twice as long.)
"""

from typing import Any

from ....quant.cuda.memory import load_f32x4, store_i32x4
from ....quant.cuda.row_formats import ROW_FORMATS
from ....quant.cuda.rows import NO_BASE, RowFormat
from ....quant.cuda.simt import (
    Kernel,
    bits_f32,
    block_x,
    f32_of,
    fma,
    i32,
    inline,
    kernel,
    let_next_start,
    make_i32x4,
    pack_half2,
    sar32,
    shl32,
    thread,
    to_f32,
    wait_for_inputs,
)
from .launches.dequantize import THREADS


def word_values(form: RowFormat) -> Any:
    """An inline function: (prepared, group, word of four columns, which of them) -> float32."""
    words, groups = form.groups * form.run // 4, form.groups
    offset, has_base = form.offset, form.base != NO_BASE

    @inline
    def value(prepared, group, word, k):
        byte = to_f32(sar32(shl32(word, i32(24 - 8 * k)), i32(24))) + f32_of(offset)
        factor = bits_f32(prepared[words + group])
        if has_base:
            return fma(factor, byte, bits_f32(prepared[words + groups + group]))
        return factor * byte

    return value


def _make(form: RowFormat) -> Kernel:
    groups, per_group = form.groups, form.run // 4
    parts = per_group // 2  # threads that share a piece
    load, prepare, start, value = form.load, form.prepare, form.start, word_values(form)

    @kernel(block=THREADS)
    def dequantize(planes, width, columns, rows, items, out):
        """items: pieces of a row times the threads of a piece."""
        let_next_start()
        wait_for_inputs()
        index = block_x() * THREADS + thread()
        row, item = index // items, index % items
        if row < rows:
            piece, part = item // parts, item % parts
            made = prepare(load(planes + row * width, columns, piece), piece)
            for g in range(groups):
                first, second = made[g * per_group], made[g * per_group + 1]
                for k in range(1, parts):
                    if part == k:
                        first = made[g * per_group + 2 * k]
                        second = made[g * per_group + 2 * k + 1]
                words = make_i32x4(
                    pack_half2(value(made, g, first, 0), value(made, g, first, 1)),
                    pack_half2(value(made, g, first, 2), value(made, g, first, 3)),
                    pack_half2(value(made, g, second, 0), value(made, g, second, 1)),
                    pack_half2(value(made, g, second, 2), value(made, g, second, 3)),
                )
                store_i32x4(out + (row * columns + start(piece, g) + part * 8) * 2, words)

    return dequantize


def _make_bf16() -> Kernel:
    form = ROW_FORMATS["bf16"]
    load, prepare = form.load, form.prepare

    @kernel(block=THREADS)
    def dequantize(planes, width, columns, rows, items, out):
        """items: pieces of a row."""
        let_next_start()
        wait_for_inputs()
        index = block_x() * THREADS + thread()
        row, item = index // items, index % items
        if row < rows:
            made = prepare(load(planes + row * width, columns, item), item)
            words = make_i32x4(
                pack_half2(bits_f32(made[0]), bits_f32(made[1])),
                pack_half2(bits_f32(made[2]), bits_f32(made[3])),
                pack_half2(bits_f32(made[4]), bits_f32(made[5])),
                pack_half2(bits_f32(made[6]), bits_f32(made[7])),
            )
            store_i32x4(out + (row * columns + item * 8) * 2, words)

    return dequantize


@kernel(block=THREADS)
def f32(planes, width, columns, rows, items, out):
    """items: an eighth of a row's columns."""
    let_next_start()
    wait_for_inputs()
    index = block_x() * THREADS + thread()
    row, item = index // items, index % items
    if row < rows:
        at = planes + row * width + item * 32
        a, b = load_f32x4(at), load_f32x4(at + 16)
        words = make_i32x4(
            pack_half2(a[0], a[1]),
            pack_half2(a[2], a[3]),
            pack_half2(b[0], b[1]),
            pack_half2(b[2], b[3]),
        )
        store_i32x4(out + (row * columns + item * 8) * 2, words)


for _name, _form in ROW_FORMATS.items():
    if not _form.is_float:
        globals()[_name] = _make(_form)
bf16 = _make_bf16()
