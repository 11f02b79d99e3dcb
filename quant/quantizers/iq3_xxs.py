"""IQ3_XXS as llama.cpp quantizes it; the block's layout is in quant/iq3_xxs.py."""

from ..cpu.simd import inline, load_i32, store_i32
from .codebook_blocks import make_number_of, make_quantize
from .codebook_search import COLUMN, LOST, Rules, spaced
from .codebook_words import put_byte

_number_of = make_number_of(4)


@inline
def _put_group(words, signs, numbers, out, group):
    """Eight points, and four times seven signs in a word."""
    for i in range(8):
        number = _number_of(load_i32(words + COLUMN * i), numbers)
        put_byte(out + 2 + 8 * group + i, number)
    word = 0
    for i in range(4):
        word |= load_i32(signs + 4 * i) << 7 * i
    store_i32(out + 66 + 4 * group, word)


@inline
def _put_scales(levels, out):
    """Levels to the highest four bits of the words with signs."""
    for i in range(8):
        word = out + 66 + 4 * i
        store_i32(word, load_i32(word) | load_i32(levels + 4 * i) << 28)


quantize = make_quantize(
    Rules(
        dimensions=4,
        group=32,
        inverses=spaced(15, 15, 0.2),
        energy=2.0,
        flat=0.0,
        even=True,
        least=1e-8,
        again=LOST,
        factor=1.0125,
    ),
    98,
    _put_group,
    _put_scales,
)
