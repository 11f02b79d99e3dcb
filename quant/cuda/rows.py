"""What a format is to kernels that read rows of planes (planes.py): one thread reads a piece.

A piece is 16 bytes of quants and what belongs to them: `groups` runs of `run` consecutive columns,
each with a factor: x = factor * (q + offset) + base, where q are signed bytes. The functions of a
RowFormat are `@inline`, and their vectors hold bits of 32: bytes by fours, or a float32.

* load(row, columns, piece) -> i32 x loaded: from memory that no kernel of a step writes.
* prepare(loaded, piece) -> i32 x prepared: for each group run / 4 words of bytes, then the groups'
  factors, then, if it has them, their bases (float32).
* start(piece, group): the first column of a group.

From these come take_input and dot: `take_input(x, scales, piece)` reads a token's bytes and scales
(kernels/cuda/quantize.py) -> i32 x given, and dot(prepared, given) is their product. Rows of floats
have their own, which read float32 activations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .memory import load_f32, load_f32x2, load_i32x4
from .simt import (
    bits_f32,
    bits_i32,
    dp4a,
    f32_of,
    fma,
    i32,
    inline,
    put,
    put_part,
    to_f32,
    zero,
)

# What the base of a group multiplies. BLOCK: the sum of 32 columns, which are one group, HALF: two
# groups in neighbouring pieces, of which the even one takes it. RUN: the sum of a group of 16.
NO_BASE, BLOCK, HALF, RUN = 0, 1, 2, 3


@dataclass(frozen=True)
class RowFormat:
    """See above. columns: of a piece. is_float: activations are float32, `scales` isn't read."""

    columns: int
    groups: int
    run: int
    loaded: int
    prepared: int
    given: int
    base: int
    is_float: bool
    load: Callable[..., Any]
    prepare: Callable[..., Any]
    start: Callable[..., Any]
    take_input: Callable[..., Any]
    dot: Callable[..., Any]
    offset: int = 0


def quantized(
    *,
    groups: int,
    run: int,
    loaded: int,
    load: Callable[..., Any],
    prepare: Callable[..., Any],
    start: Callable[..., Any],
    base: int = NO_BASE,
    offset: int = 0,
) -> RowFormat:
    """A format of bytes."""
    words = groups * run // 4
    prepared = words + groups * (1 if base == NO_BASE else 2)
    given = prepared + (groups if offset else 0)
    kind = f"i32x{given}"
    nothing, put_words, put_word = zero(kind), put_part(kind, 4), put(kind)
    parts, per_group = run // 16, run // 4
    wide = base in (BLOCK, HALF)
    offsets = np.int32(int.from_bytes(bytes([offset & 255] * 4), "little", signed=True))
    sums_at = words + groups
    starts_at = given - groups

    @inline
    def take_input(x, scales, piece):
        found = nothing()
        for g in range(groups):
            column = start(piece, g)
            for k in range(parts):
                found = put_words(found, g * parts + k, load_i32x4(x + column + 16 * k))
            if wide:
                pair = load_f32x2(scales + (column >> 5) * 8)
                total = pair[1]
                if base == HALF and piece & 1:
                    total = f32_of(0)
                found = put_word(found, words + g, bits_i32(pair[0]))
                found = put_word(found, sums_at + g, bits_i32(total))
            else:
                factor = load_f32(scales + (column >> 5) * 8)
                found = put_word(found, words + g, bits_i32(factor))
            if base == RUN:
                count = i32(0)
                for k in range(per_group):
                    count = dp4a(found[g * per_group + k], i32(0x01010101), count)
                product = to_f32(count) * bits_f32(found[words + g])
                found = put_word(found, sums_at + g, bits_i32(product))
            if offset != 0:
                first = i32(0)
                for k in range(per_group):
                    first = dp4a(found[g * per_group + k], i32(offsets), first)
                found = put_word(found, starts_at + g, first)
        return found

    @inline
    def dot(weights, given):
        total = f32_of(0)
        for g in range(groups):
            count = i32(0)
            if offset != 0:
                count = given[starts_at + g]
            for k in range(per_group):
                count = dp4a(weights[g * per_group + k], given[g * per_group + k], count)
            factor = bits_f32(weights[words + g]) * bits_f32(given[words + g])
            total = fma(factor, to_f32(count), total)
            if base != NO_BASE:
                total = fma(bits_f32(weights[sums_at + g]), bits_f32(given[sums_at + g]), total)
        return total

    return RowFormat(
        columns=groups * run, groups=groups, run=run, loaded=loaded, prepared=prepared,
        given=given, base=base, is_float=False, load=load, prepare=prepare, start=start,
        take_input=take_input, dot=dot, offset=offset,
    )  # fmt: skip
