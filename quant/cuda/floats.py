"""Rows of floats on a GPU: 16 bytes a piece, multiplied with float32 activations."""

from typing import Any

from .memory import load_f32x4, stream_i32x4
from .rows import NO_BASE, RowFormat
from .simt import (
    and32,
    bits_f32,
    bits_i32,
    f32_of,
    fma,
    half,
    half_high,
    i32,
    inline,
    put,
    shl32,
    zero,
)

_F32, _F16, _BF16 = range(3)


@inline
def _load(row, columns, piece):
    return stream_i32x4(row + piece * 16)


def _make(kind: int) -> RowFormat:
    count = 4 if kind == _F32 else 8
    nothing, put_word = zero(f"i32x{count}"), put(f"i32x{count}")

    @inline
    def prepare(w, piece):
        made = nothing()
        for k in range(4):
            if kind == _F32:
                made = put_word(made, k, w[k])
            elif kind == _F16:
                made = put_word(made, 2 * k, bits_i32(half(w[k])))
                made = put_word(made, count // 4 * k + 1, bits_i32(half_high(w[k])))
            else:
                made = put_word(made, 2 * k, shl32(w[k], i32(16)))
                made = put_word(made, count // 4 * k + 1, and32(w[k], i32(-65536)))
        return made

    @inline
    def start(piece, group):
        return piece * count

    @inline
    def take_input(x, scales, piece):
        found = nothing()
        for part in range(count // 4):
            values = load_f32x4(x + (piece * count + 4 * part) * 4)
            for k in range(4):
                found = put_word(found, 4 * part + k, bits_i32(values[k]))
        return found

    @inline
    def dot(weights, given):
        total = f32_of(0)
        for k in range(count):
            total = fma(bits_f32(weights[k]), bits_f32(given[k]), total)
        return total

    return RowFormat(
        columns=count, groups=1, run=count, loaded=4, prepared=count, given=count, base=NO_BASE,
        is_float=True, load=_load, prepare=prepare, start=start, take_input=take_input, dot=dot,
    )  # fmt: skip


FLOAT_ROWS: dict[str, Any] = {"f32": _make(_F32), "f16": _make(_F16), "bf16": _make(_BF16)}
