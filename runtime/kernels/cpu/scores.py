"""Scores of prefill attention, LANES queries side by side: who sees whom, soft caps, ALiBi."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from ....quant.cpu.simd import (
    LANES,
    absolute,
    convert,
    exp_lanes,
    fill,
    inline,
    load,
    load_f32,
    load_i64,
    make,
    maximum,
    store,
)
from ....quant.cpu.vector import I32, Builder, splat, vec
from ..records import ATTENTION, STEP

_int = types.int64
_float, _ints = vec("f32", LANES), vec("i32", LANES)
_load, _store, _fill = load("f32", LANES), store("f32", LANES), fill("f32", LANES)
_fill_int = fill("i32", LANES)
_max, _abs = maximum(LANES), absolute(LANES)
_to_float = convert("sitofp", _ints, _float)


def _mask_code(b: Builder, sig: Any, args: Any) -> Any:
    """(scores, first, last, position): -1e30 where position is outside first..last of a lane."""
    v, first, last, position = args
    p = splat(b, b.trunc(position, I32), LANES)
    seen = b.and_(b.icmp_signed(">=", p, first), b.icmp_signed("<=", p, last))
    return b.select(seen, v, ir.Constant(v.type, [-1e30] * LANES))


def _least_code(b: Builder, sig: Any, args: Any) -> Any:
    return b.select(b.icmp_signed("<", *args), *args)


_least = make("least", 2, lambda a: _ints(_ints, _ints), _least_code)
_mask = make("mask", 4, lambda a: _float(_float, _ints, _ints, _int), _mask_code)
_lane = make(
    "lane_numbers",
    0,
    lambda a: _ints(),
    lambda b, s, a: ir.Constant(_ints.llvm, list(range(LANES))),
)


@inline
def seen_by_block(op, step, block):
    """(position, begin, near, far) of a block of consecutive positions.

    position: of its first token, whose window begins at `begin`. near, far: the last position that
    the first token sees, and the last one.
    """
    valid = load_i64(load_i64(step + STEP.valid) + 8 * block)
    position = load_i64(load_i64(step + STEP.positions) + 8 * block * LANES)
    ends = load_i64(step + STEP.ends) + 8 * block * LANES
    near, far = load_i64(ends), load_i64(ends + 8 * (valid - 1))
    window, ahead = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.ahead)
    if ahead > 0:
        near, far = min(near, position + ahead), min(far, position + valid - 1 + ahead)
    begin = max(0, position - window + 1) if window > 0 else 0
    return position, begin, near, far


@inline
def seen_by_lanes(op, step, block):
    """(first, last): what each lane of the block sees."""
    valid = load_i64(load_i64(step + STEP.valid) + 8 * block)
    position = load_i64(load_i64(step + STEP.positions) + 8 * block * LANES)
    ends = load_i64(step + STEP.ends) + 8 * block * LANES
    window, ahead = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.ahead)
    last = _fill_int(np.int32(load_i64(ends)))
    if load_i64(ends + 8 * (valid - 1)) > load_i64(ends):  # causal
        last = last + _lane()
    if ahead > 0:
        last = _least(last, _fill_int(np.int32(position + ahead)) + _lane())
    first = _fill_int(np.int32(0))
    if window > 0:
        first = _fill_int(np.int32(position + 1 - window)) + _lane()
    return first, last


@inline
def _cap(v, cap):
    """cap * tanh(v / cap)."""
    one, two = _fill(np.float32(1)), _fill(np.float32(2))
    e = exp_lanes(v * _fill(np.float32(2) / cap))
    return (one - two / (e + one)) * _fill(cap)


@inline
def change_scores(op, step, block, scores, count, at, head, inside, unit):
    """Cap, ALiBi and mask of `count` scores, the first of position `at`, in place; the largest.

    inside: every lane sees all of them. unit: what a score of 1 is in memory.
    """
    cap, slopes = load_f32(op + ATTENTION.softcap) * unit, load_i64(op + ATTENTION.slopes)
    position = load_i64(load_i64(step + STEP.positions) + 8 * block * LANES)
    first, last = seen_by_lanes(op, step, block)
    here = _fill_int(np.int32(position)) + _lane()
    top = _fill(np.float32(-1e30))
    for j in range(count):
        s = _load(scores + j * LANES * 4)
        if cap != np.float32(0):
            s = _cap(s, cap)
        if slopes != 0:
            distance = _abs(_to_float(here + _fill_int(np.int32(-(at + j)))))
            s = s - distance * _fill(load_f32(slopes + 4 * head) * unit)
        if not inside:
            s = _mask(s, first, last, at + j)
        _store(scores + j * LANES * 4, s)
        top = _max(top, s)
    return top
