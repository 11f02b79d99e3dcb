"""IQ2_XS as llama.cpp quantizes it; the block's layout is in quant/iq2_xs.py."""

from ..cpu.simd import inline, load_i32
from .codebook_blocks import make_number_of, make_quantize, put_nibbles
from .codebook_search import COLUMN, LOST, Rules, spaced
from .codebook_words import put_byte

_number_of = make_number_of(8)


@inline
def _put_group(words, signs, numbers, out, group):
    """Two points, each with seven signs above its 9 bits."""
    for i in range(2):
        number = _number_of(load_i32(words + COLUMN * i), numbers)
        word = number | load_i32(signs + 4 * i) << 9
        to = out + 2 + 4 * group + 2 * i
        put_byte(to, word)
        put_byte(to + 1, word >> 8)


@inline
def _put_scales(levels, out):
    put_nibbles(levels, out + 66, 8)


quantize = make_quantize(
    Rules(
        dimensions=8,
        group=16,
        inverses=spaced(5, 9, 0.1),
        energy=1.0,
        flat=0.0,
        even=True,
        least=1e-15,
        again=LOST,
        factor=1.0,
    ),
    74,
    _put_group,
    _put_scales,
)
