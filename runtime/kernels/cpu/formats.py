"""The compiled formats by lower-case name, and the float formats, whose weights need no scales."""

from typing import Any

from ....quant.cpu import (
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    iq4_nl,
    iq4_xs,
    mxfp4,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    tq1_0,
    tq2_0,
)
from ....quant.cpu.blocks32 import CpuFormat
from ....quant.cpu.simd import (
    convert,
    fill_f32x16,
    fma_f32x16,
    inline,
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
from ....quant.cpu.vector import vec

QUANTIZED: dict[str, CpuFormat] = {
    "q4_0": q4_0.FORMAT,
    "q4_1": q4_1.FORMAT,
    "q4_k": q4_k.FORMAT,
    "q5_0": q5_0.FORMAT,
    "q5_1": q5_1.FORMAT,
    "q5_k": q5_k.FORMAT,
    "q6_k": q6_k.FORMAT,
    "q8_0": q8_0.FORMAT,
    "iq2_xxs": iq2_xxs.FORMAT,
    "iq2_xs": iq2_xs.FORMAT,
    "iq2_s": iq2_s.FORMAT,
    "iq3_xxs": iq3_xxs.FORMAT,
    "iq3_s": iq3_s.FORMAT,
    "iq1_s": iq1_s.FORMAT,
    "iq1_m": iq1_m.FORMAT,
    "tq1_0": tq1_0.FORMAT,
    "tq2_0": tq2_0.FORMAT,
    "q2_k": q2_k.FORMAT,
    "q3_k": q3_k.FORMAT,
    "iq4_nl": iq4_nl.FORMAT,
    "iq4_xs": iq4_xs.FORMAT,
    "mxfp4": mxfp4.FORMAT,
}

_widen_i16 = convert("zext", vec("i16", 16), vec("i32", 16))
_up16 = shift_left("i32", 16, 16)
_as_float = convert("bitcast", vec("i32", 16), vec("f32", 16))


def _make_expand(fmt: CpuFormat) -> Any:
    """expand(w, columns, out, scratch): a row as float32; scratch holds bytes, scales, minima."""
    unpack, group, offset = fmt.unpack_row, fmt.group, float(fmt.offset)

    @inline
    def expand(w, columns, out, scratch):
        scale = scratch + columns
        minima = scale + columns // group * 4
        unpack(w, columns >> 5, scratch, 32, scale, minima)
        for g in range(columns // group):
            s = fill_f32x16(load_f32(scale + 4 * g))
            if offset > 0:
                m = s * fill_f32x16(offset)
            else:
                m = fill_f32x16(load_f32(minima + 4 * g))
            for i in range(g * group, (g + 1) * group, 16):
                u = to_f32x16(u8_to_i32x16(load_i8x16(scratch + i)))
                store_f32x16(out + 4 * i, u * s - m)

    return expand


@inline
def _expand_f32(w, columns, out, scratch):
    for i in range(0, columns, 16):
        store_f32x16(out + 4 * i, load_f32x16(w + 4 * i))


@inline
def _expand_f16(w, columns, out, scratch):
    for i in range(0, columns, 16):
        store_f32x16(out + 4 * i, widen_f16x16(load_f16x16(w + 2 * i)))


@inline
def _expand_bf16(w, columns, out, scratch):
    for i in range(0, columns, 16):
        store_f32x16(out + 4 * i, _as_float(_up16(_widen_i16(load_i16x16(w + 2 * i)))))


EXPAND: dict[str, Any] = {
    "f32": _expand_f32,
    "f16": _expand_f16,
    "bf16": _expand_bf16,
    **{name: _make_expand(fmt) for name, fmt in QUANTIZED.items()},
}

__all__ = ["EXPAND", "QUANTIZED", "fma_f32x16"]
