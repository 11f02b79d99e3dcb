"""IQ2_XXS as llama.cpp quantizes it; the block's layout is in quant/iq2_xxs.py."""

import numpy as np

from ..cpu.simd import inline, load_i32, store_f32x16, store_i32, store_i64
from .codebook_blocks import FREE, RECORDS, make_number_of, make_quantize
from .codebook_search import ALL, COLUMN, RECORD, START, WEIGHTS, Rules, X, spaced
from .codebook_words import put_byte
from .scale_search import fit_positive
from .words import gather_tile

_number_of = make_number_of(8)
# In the scratch memory: the records' addresses; values, weights and levels with groups in lanes.
_ADDRESSES = -(-FREE // 64) * 64
_VALUES, _WEIGHTS, _LEVELS = _ADDRESSES + 128, _ADDRESSES + 2176, _ADDRESSES + 4224
_SCALES = _ADDRESSES + 6272


@inline
def _find_starts(scratch):
    """As if the codes could be any of 0 to 4: the scales of 16 groups."""
    for i in range(16):
        store_i64(scratch + _ADDRESSES + 8 * i, scratch + RECORDS + RECORD * i)
    for i in range(0, 128, 64):
        gather_tile(scratch + _ADDRESSES, X + i, scratch + _VALUES + 16 * i)
        gather_tile(scratch + _ADDRESSES, WEIGHTS + i, scratch + _WEIGHTS + 16 * i)
    values, weights = scratch + _VALUES, scratch + _WEIGHTS
    scales = fit_positive(values, weights, scratch + _LEVELS, 32, np.float32(4))
    store_f32x16(scratch + _SCALES, scales)
    for i in range(16):
        store_i32(scratch + RECORDS + RECORD * i + START, load_i32(scratch + _SCALES + 4 * i))


@inline
def _put_group(words, signs, numbers, out, group):
    """Four points, and four times seven signs in a word."""
    word = 0
    for i in range(4):
        number = _number_of(load_i32(words + COLUMN * i), numbers)
        put_byte(out + 2 + 8 * group + i, number)
        word |= load_i32(signs + 4 * i) << 7 * i
    store_i32(out + 6 + 8 * group, word)


@inline
def _put_scales(levels, out):
    """Levels to the highest four bits of the words with signs."""
    for i in range(8):
        word = out + 6 + 8 * i
        store_i32(word, load_i32(word) | load_i32(levels + 4 * i) << 28)


quantize = make_quantize(
    Rules(
        dimensions=8,
        group=32,
        inverses=spaced(5, 6, 0.1),
        energy=1.0,
        flat=0.0,
        even=True,
        least=1e-15,
        again=ALL,
        factor=1.0,
    ),
    66,
    _put_group,
    _put_scales,
    _find_starts,
)
