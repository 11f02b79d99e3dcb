"""IQ3_S as llama.cpp quantizes it; the block's layout is in quant/iq3_s.py.

But for blocks of which some groups of 32 are all zero and others not: llama.cpp 0c1e570 leaves such
a group's place to the next one, so that the values after it come out wrong. Here they don't.
"""

from ..cpu.simd import inline, load_i32
from .codebook_blocks import make_number_of, make_quantize, put_nibbles
from .codebook_search import ALL_IF_ONE, COLUMN, Rules, spaced
from .codebook_words import put_byte

_number_of = make_number_of(4)


@inline
def _put_group(words, signs, numbers, out, group):
    """Eight points and 32 signs."""
    high = 0
    for i in range(8):
        number = _number_of(load_i32(words + COLUMN * i), numbers)
        put_byte(out + 2 + 8 * group + i, number)
        high |= number >> 8 << i
    put_byte(out + 66 + group, high)
    for i in range(4):
        put_byte(out + 74 + 4 * group + i, load_i32(signs + 4 * i))


@inline
def _put_scales(levels, out):
    put_nibbles(levels, out + 106, 4)


quantize = make_quantize(
    Rules(
        dimensions=4,
        group=32,
        inverses=spaced(15, 9, 0.2),
        energy=2.0,
        flat=0.0,
        even=False,
        least=1e-45,
        again=ALL_IF_ONE,
        factor=1.033,
    ),
    110,
    _put_group,
    _put_scales,
)
