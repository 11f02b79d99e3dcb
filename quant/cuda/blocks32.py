"""Q8_0 rows on a GPU, and those of blocks of 32 columns in 16 bytes: low, then high nibbles."""

from typing import Any

from ..iq4_nl import VALUES as IQ4_VALUES
from ..mxfp4 import VALUES as MXFP4_VALUES
from .memory import load_u8, stream_i32, stream_i32x2, stream_i32x4, stream_u16
from .rows import BLOCK, NO_BASE, RowFormat, quantized
from .simt import (
    and32,
    bits_i32,
    f32_of,
    half,
    half_high,
    i32,
    inline,
    mul32,
    or32,
    permute_bytes,
    put,
    put_part,
    shl32,
    shr32,
    to_f32,
    u64,
    zero,
)

LOW = 0x0F0F0F0F  # of each byte
Q4_0, Q4_1, Q5_0, Q5_1 = range(4)

_nothing5, _put_four5, _put_word5 = zero("i32x5"), put_part("i32x5", 4), put("i32x5")


@inline
def _load8(row, columns, piece):
    found = _put_four5(_nothing5(), 0, stream_i32x4(row + piece * 16))
    return _put_word5(found, 4, i32(stream_u16(row + columns + (piece >> 1) * 2)))


@inline
def _prepare8(w, piece):
    return _put_word5(w, 4, bits_i32(half(w[4])))


@inline
def _start8(piece, group):
    return piece * 16


@inline
def _start(piece, group):
    return piece * 32


def _make_plain(kind: int) -> RowFormat:
    """Planes: quants 16 bytes a block, fifth bits 4, then d or d and m. Q4_0 is d * q - 8 * d."""
    fifth, minimum = kind in (Q5_0, Q5_1), kind in (Q4_1, Q5_1)
    middle = -16 if fifth else -8
    loaded = 6 if fifth else 5
    nothing, put_four, put_word = (
        zero(f"i32x{loaded}"), put_part(f"i32x{loaded}", 4), put(f"i32x{loaded}"),
    )  # fmt: skip
    unmade, put_made = zero("i32x10"), put("i32x10")

    @inline
    def load(row, columns, piece):
        found = put_four(nothing(), 0, stream_i32x4(row + piece * 16))
        factors = row + (columns >> 1)
        if fifth:
            found = put_word(found, 5, stream_i32(factors + piece * 4))
            factors = factors + (columns >> 3)
        if minimum:
            return put_word(found, 4, stream_i32(factors + piece * 4))
        return put_word(found, 4, i32(stream_u16(factors + piece * 2)))

    @inline
    def prepare(w, piece):
        made = unmade()
        for k in range(4):
            low, high = and32(w[k], i32(LOW)), and32(shr32(w[k], i32(4)), i32(LOW))
            if fifth:  # four bits become bit 4 of four bytes
                bits = and32(shr32(w[5], i32(4 * k)), i32(15))
                more = and32(shr32(w[5], i32(16 + 4 * k)), i32(15))
                spread, mask = i32(0x02040810), i32(0x10101010)
                low = or32(low, and32(mul32(bits, spread), mask))
                high = or32(high, and32(mul32(more, spread), mask))
            made = put_made(put_made(made, k, low), 4 + k, high)
        d = half(w[4])
        base = d * f32_of(middle)
        if minimum:
            base = half_high(w[4])
        return put_made(put_made(made, 8, bits_i32(d)), 9, bits_i32(base))

    return quantized(
        groups=1, run=32, loaded=loaded, load=load, prepare=prepare, start=_start, base=BLOCK
    )


def _table(values: tuple[int, ...]) -> list[int]:
    """16 signed bytes as four words."""
    found = bytes(v & 255 for v in values)
    return [int.from_bytes(found[i : i + 4], "little", signed=True) for i in range(0, 16, 4)]


_put_nine, _unmade9 = put("i32x9"), zero("i32x9")
_MXFP4, _IQ4_NL, _IQ4_XS = range(3)


def _make_coded(kind: int) -> RowFormat:
    """Planes: quants 16 bytes a block of 32 columns, then e (1 byte), d, or IQ4_XS's heads (8)."""
    first, second, third, fourth = _table(MXFP4_VALUES if kind == _MXFP4 else IQ4_VALUES)
    loaded = 6 if kind == _IQ4_XS else 5
    nothing, put_four, put_word = (
        zero(f"i32x{loaded}"), put_part(f"i32x{loaded}", 4), put(f"i32x{loaded}"),
    )  # fmt: skip

    @inline
    def load(row, columns, piece):
        found = put_four(nothing(), 0, stream_i32x4(row + piece * 16))
        factors = row + (columns >> 1)
        if kind == _MXFP4:
            return put_word(found, 4, i32(load_u8(factors + piece)))
        if kind == _IQ4_NL:
            return put_word(found, 4, i32(stream_u16(factors + piece * 2)))
        head = stream_i32x2(factors + (piece >> 3) * 8)
        return put_word(put_word(found, 4, head[0]), loaded - 1, head[1])

    @inline
    def look_up(indices):
        """Four values by the low 16 bits' nibbles."""
        places = and32(indices, i32(0x7777))
        low = permute_bytes(i32(first), i32(second), places)
        high = permute_bytes(i32(third), i32(fourth), places)
        chosen = or32(i32(0x3210), shr32(and32(indices, i32(0x8888)), i32(1)))
        return permute_bytes(low, high, chosen)

    @inline
    def factor(w, piece):
        if kind == _MXFP4:
            e = w[4]
            bits = shl32(i32(u64(e) - 1), i32(23))
            if u64(e) < 2:
                bits = shl32(i32(0x00200000), e)
            return bits
        if kind == _IQ4_NL:
            return bits_i32(half(w[4]))
        group = piece & 7
        low = and32(shr32(w[loaded - 1], i32(4 * group)), i32(15))
        high = and32(shr32(w[4], i32(16 + 2 * group)), i32(3))
        scale = to_f32(or32(low, shl32(high, i32(4)))) - f32_of(32)
        return bits_i32(half(w[4]) * scale)

    @inline
    def prepare(w, piece):
        made = _put_nine(_unmade9(), 8, factor(w, piece))
        for k in range(4):
            first_two, last_two = look_up(w[k]), look_up(shr32(w[k], i32(16)))
            low = permute_bytes(first_two, last_two, i32(0x6420))
            high = permute_bytes(first_two, last_two, i32(0x7531))
            made = _put_nine(_put_nine(made, k, low), 4 + k, high)
        return made

    return quantized(
        groups=1, run=32, loaded=loaded, load=load, prepare=prepare, start=_start, base=NO_BASE
    )


Q8_0 = quantized(groups=1, run=16, loaded=5, load=_load8, prepare=_prepare8, start=_start8)
BLOCKS_32: dict[str, Any] = {
    "q8_0": Q8_0,
    "q4_0": _make_plain(Q4_0),
    "q4_1": _make_plain(Q4_1),
    "q5_0": _make_plain(Q5_0),
    "q5_1": _make_plain(Q5_1),
    "mxfp4": _make_coded(_MXFP4),
    "iq4_nl": _make_coded(_IQ4_NL),
    "iq4_xs": _make_coded(_IQ4_XS),
}
