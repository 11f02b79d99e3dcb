"""IQ2_S as llama.cpp quantizes it; the block's layout is in quant/iq2_s.py."""

from ..cpu.simd import inline, load_i32
from .codebook_blocks import make_number_of, make_quantize, put_nibbles
from .codebook_search import COLUMN, LOST, Rules, spaced
from .codebook_words import load_byte, put_byte

_number_of = make_number_of(8)


@inline
def _put_group(words, signs, numbers, out, group):
    """Two points, each of 10 bits, and 16 signs; two groups share a byte of high bits."""
    high = 0
    for i in range(2):
        number = _number_of(load_i32(words + COLUMN * i), numbers)
        put_byte(out + 2 + 2 * group + i, number)
        put_byte(out + 34 + 2 * group + i, load_i32(signs + 4 * i))
        high |= number >> 8 << 2 * i
    to = out + 66 + group // 2
    put_byte(to, load_byte(to) | high << 4 * (group % 2))


@inline
def _put_scales(levels, out):
    put_nibbles(levels, out + 74, 8)


quantize = make_quantize(
    Rules(
        dimensions=8,
        group=16,
        inverses=spaced(5, 9, 0.1),
        energy=2.0,
        flat=0.25,
        even=False,
        least=1e-8,
        again=LOST,
        factor=0.9875,
    ),
    82,
    _put_group,
    _put_scales,
)
