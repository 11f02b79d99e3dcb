"""Q4_K, Q5_K and Q6_K rows on a GPU: 16 bytes hold 16 columns low and 16 others high."""

from typing import Any

from .memory import stream_i32x2, stream_i32x4, stream_u16
from .rows import HALF, RowFormat, quantized
from .simt import (
    and32,
    bits_i32,
    half,
    half_high,
    i32,
    inline,
    or32,
    put,
    put_part,
    sar32,
    shl32,
    shr32,
    to_f32,
    zero,
)

LOW = 0x0F0F0F0F  # of each byte


@inline
def _start_4_5(piece, group):
    """Eight pieces a block: pairs of them hold 32 columns low and the next 32 high."""
    return (piece >> 1) * 64 + group * 32 + (piece & 1) * 16


@inline
def _byte(word, at):
    """Byte `at` of a word as float32."""
    return to_f32(and32(shr32(word, i32(8 * at)), i32(255)))


def _make_4_5(fifth: bool) -> RowFormat:
    """Q4_K and Q5_K. Planes: quants 128 bytes a block, Q5_K's fifth bits 32, d, dmin, scales 16."""
    loaded, prepared = 12 if fifth else 8, 12
    nothing, put_four = zero(f"i32x{loaded}"), put_part(f"i32x{loaded}", 4)
    unmade, put_word = zero(f"i32x{prepared}"), put(f"i32x{prepared}")

    @inline
    def load(row, columns, piece):
        block = piece >> 3
        found = put_four(nothing(), 0, stream_i32x4(row + piece * 16))
        if fifth:
            heads = row + (columns >> 1) + (columns >> 3)
            bits = row + (columns >> 1) + block * 32 + (piece & 1) * 16
            found = put_four(found, 2, stream_i32x4(bits))
        else:
            heads = row + (columns >> 1)
        return put_four(found, 1, stream_i32x4(heads + block * 16))

    @inline
    def prepare(w, piece):
        group = (piece >> 1) & 3  # holds groups 2 * group and the next
        scales, minima = and32(w[5], i32(0x3F3F3F3F)), and32(w[6], i32(0x3F3F3F3F))
        if group >= 2:
            top = i32(0x30303030)
            scales = or32(and32(w[7], i32(LOW)), and32(shr32(w[5], i32(2)), top))
            minima = or32(and32(shr32(w[7], i32(4)), i32(LOW)), and32(shr32(w[6], i32(2)), top))
        shift = i32((group & 1) * 16)
        scales, minima = shr32(scales, shift), shr32(minima, shift)
        d, dmin = half(w[4]), -half_high(w[4])
        made = unmade()
        for k in range(4):
            low, high = and32(w[k], i32(LOW)), and32(shr32(w[k], i32(4)), i32(LOW))
            if fifth:
                bits = shr32(w[8 + k], i32(2 * group))
                low = or32(low, shl32(and32(bits, i32(0x01010101)), i32(4)))
                high = or32(high, shl32(and32(bits, i32(0x02020202)), i32(3)))
            made = put_word(put_word(made, k, low), 4 + k, high)
        for g in range(2):
            made = put_word(made, 8 + g, bits_i32(d * _byte(scales, g)))
            made = put_word(made, 10 + g, bits_i32(dmin * _byte(minima, g)))
        return made

    return quantized(
        groups=2, run=16, loaded=loaded, load=load, prepare=prepare, start=_start_4_5, base=HALF
    )


_nothing6, _put_four6 = zero("i32x11"), put_part("i32x11", 4)
_put_word6 = put("i32x11")
_unmade6, _put_made6 = zero("i32x10"), put("i32x10")


@inline
def _load6(row, columns, piece):
    """Planes: low nibbles 128 bytes a block, upper bits 64, scales 16, d 2."""
    block = piece >> 3
    half_block = (piece >> 2) & 1
    upper = row + (columns >> 1) + block * 64 + half_block * 32 + (piece & 1) * 16
    scales = row + (columns >> 2) * 3 + block * 16 + half_block * 8
    factors = row + (columns >> 4) * 13 + block * 2
    found = _put_four6(_nothing6(), 0, stream_i32x4(row + piece * 16))
    found = _put_four6(found, 1, stream_i32x4(upper))
    pair = stream_i32x2(scales)
    found = _put_word6(_put_word6(found, 8, pair[0]), 9, pair[1])
    return _put_word6(found, 10, i32(stream_u16(factors)))


@inline
def _prepare6(w, piece):
    part = piece & 3  # of a half block: two pieces for each pair of upper bits
    down = i32((part >> 1) * 2)
    made = _unmade6()
    for k in range(4):
        bits = shr32(w[4 + k], down)
        low = or32(and32(w[k], i32(LOW)), shl32(and32(bits, i32(0x03030303)), i32(4)))
        high = or32(and32(shr32(w[k], i32(4)), i32(LOW)), and32(bits, i32(0x30303030)))
        made = _put_made6(_put_made6(made, k, low), 4 + k, high)
    d, up = half(w[10]), i32(24 - 8 * part)
    for g in range(2):
        scale = to_f32(sar32(shl32(w[8 + g], up), i32(24)))
        made = _put_made6(made, 8 + g, bits_i32(d * scale))
    return made


@inline
def _start6(piece, group):
    return (piece >> 2) * 128 + group * 64 + (piece & 3) * 16


Q6_K = quantized(
    groups=2, run=16, loaded=11, load=_load6, prepare=_prepare6, start=_start6, offset=-32
)
K_QUANTS: dict[str, Any] = {"q4_k": _make_4_5(False), "q5_k": _make_4_5(True), "q6_k": Q6_K}
