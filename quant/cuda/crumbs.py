"""Q2_K and Q3_K rows on a GPU: 16 bytes hold four groups of 16 columns, two bits each."""

from typing import Any

from .memory import stream_i32, stream_i32x2, stream_i32x4, stream_u16
from .rows import RUN, quantized
from .simt import (
    and32,
    bits_i32,
    f32_of,
    half,
    half_high,
    i32,
    inline,
    or32,
    put,
    put_part,
    shl32,
    shr32,
    to_f32,
    zero,
)

TWO = 0x03030303  # low bits of each byte


@inline
def _start(piece, group):
    """Four pieces a block, two a half of it: group g has bits 2g and 2g + 1."""
    return (piece >> 1) * 128 + group * 32 + (piece & 1) * 16


_nothing2, _put_four2, _put_word2 = zero("i32x7"), put_part("i32x7", 4), put("i32x7")
_unmade2, _put_made2 = zero("i32x24"), put("i32x24")


@inline
def _load2(row, columns, piece):
    """Planes: quants 64 bytes a block, scales 16, d and dmin 4."""
    found = _put_four2(_nothing2(), 0, stream_i32x4(row + piece * 16))
    scales = stream_i32x2(row + (columns >> 2) + (piece >> 1) * 8)
    found = _put_word2(_put_word2(found, 4, scales[0]), 5, scales[1])
    factors = row + (columns >> 2) + (columns >> 4) + (piece >> 2) * 4
    return _put_word2(found, 6, stream_i32(factors))


@inline
def _prepare2(w, piece):
    made = _unmade2()
    d, dmin = half(w[6]), -half_high(w[6])
    down = (piece & 1) * 8
    for g in range(4):
        for k in range(4):
            made = _put_made2(made, 4 * g + k, and32(shr32(w[k], i32(2 * g)), i32(TWO)))
        packed = shr32(w[4 + (g >> 1)], i32(16 * (g & 1) + down))
        scale = to_f32(and32(packed, i32(15)))
        minimum = to_f32(and32(shr32(packed, i32(4)), i32(15)))
        made = _put_made2(made, 16 + g, bits_i32(d * scale))
        made = _put_made2(made, 20 + g, bits_i32(dmin * minimum))
    return made


_nothing3, _put_four3, _put_word3 = zero("i32x12"), put_part("i32x12", 4), put("i32x12")
_unmade3, _put_made3 = zero("i32x20"), put("i32x20")


@inline
def _load3(row, columns, piece):
    """Planes: quants 64 bytes a block, third bits 32, scales 12, d 2."""
    block = piece >> 2
    found = _put_four3(_nothing3(), 0, stream_i32x4(row + piece * 16))
    bits = row + (columns >> 2) + block * 32 + (piece & 1) * 16
    found = _put_four3(found, 1, stream_i32x4(bits))
    scales = row + (columns >> 3) * 3 + block * 12
    for k in range(3):
        found = _put_word3(found, 8 + k, stream_i32(scales + 4 * k))
    factors = row + (columns >> 6) * 27 + block * 2
    return _put_word3(found, 11, i32(stream_u16(factors)))


@inline
def _prepare3(w, piece):
    made = _unmade3()
    second = (piece >> 1) & 1  # half of the block
    d = half(w[11])
    for g in range(4):
        for k in range(4):
            third = and32(shr32(w[4 + k], i32(4 * second + g)), i32(0x01010101))
            word = or32(and32(shr32(w[k], i32(2 * g)), i32(TWO)), shl32(third, i32(2)))
            made = _put_made3(made, 4 * g + k, word)
        at = 8 * (2 * (g & 1) + (piece & 1))
        low = and32(shr32(w[8 + (g >> 1)], i32(at + 4 * second)), i32(15))
        high = and32(shr32(w[10], i32(at + 4 * second + 2 * (g >> 1))), i32(3))
        scale = to_f32(or32(low, shl32(high, i32(4)))) - f32_of(32)
        made = _put_made3(made, 16 + g, bits_i32(d * scale))
    return made


CRUMBS: dict[str, Any] = {
    "q2_k": quantized(
        groups=4, run=16, loaded=7, load=_load2, prepare=_prepare2, start=_start, base=RUN
    ),
    "q3_k": quantized(
        groups=4, run=16, loaded=12, load=_load3, prepare=_prepare3, start=_start, offset=-4
    ),
}
