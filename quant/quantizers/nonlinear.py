"""The sixteen values of IQ4_NL and IQ4_XS: the nearest one, and the scale of the least error.

The search is llama.cpp's (quantize_row_iq4_nl_impl), for 16 blocks of 32 at once, one a lane.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from ..cpu.simd import (
    HAS_MASKS,
    abs_f32x16,
    fill_f32x16,
    inline,
    load_f32x16,
    make,
    store_f32x16,
    vec,
    zero_f32x16,
)
from ..cpu.vector import Builder, Value, constant, declare
from ..iq4_nl import VALUES
from .words import ROUND, equal, greater, less, select, sqrt_f32x16

_F32X16, _I32X16 = vec("f32", 16), vec("i32", 16)
_LEAST = np.float32(VALUES[0])
_ALL_ZERO = np.float32(1e-15)  # a block without a larger |x| has a scale of 0
_EDGES = [(a + b) / 2 for a, b in zip(VALUES[:-1], VALUES[1:], strict=True)]
_LIMIT = 120  # what is further out has the same nearest value
_STEP = 8  # edges are further apart


def _by_edges(b: Builder, x: Value, table: list[float]) -> Value:
    """table[number of edges that are not above x]: a comparison with each; NaN is above all."""
    none = ir.Constant(_F32X16.llvm, None)
    found: Value = constant("f32", [table[0]] * 16)
    for edge, low, high in zip(_EDGES, table[:-1], table[1:], strict=True):
        below = b.fcmp_ordered("<", x, constant("f32", [edge] * 16))
        more = b.select(below, none, constant("f32", [high - low] * 16))
        found = b.fadd(found, more)
    return found


def _by_place(b: Builder, x: Value, table: list[float]) -> Value:
    """The same by looking up what lies around multiples of _STEP: one edge, or none."""
    places = [_STEP * (k if k < 16 else k - 32) for k in range(32)]
    edges, low, high = [], [], []
    for place in places:
        near = [k for k, edge in enumerate(_EDGES) if abs(edge - place) <= _STEP / 2]
        assert len(near) < 2
        below = near[0] if near else sum(edge < place for edge in _EDGES)
        edges.append(_EDGES[near[0]] if near else float("inf"))
        low.append(table[below])
        high.append(table[min(below + 1, 15)])
    floats, words = _F32X16.llvm, _I32X16.llvm
    most, least = (constant("f32", [v] * 16) for v in (_LIMIT, -_LIMIT))
    x = b.select(b.fcmp_ordered("<", x, most), x, most)
    x = b.select(b.fcmp_ordered(">", x, least), x, least)
    place = b.fadd(b.fmul(x, constant("f32", [1 / _STEP] * 16)), constant("f32", [ROUND] * 16))
    index = b.bitcast(place, words)  # its last 5 bits
    name = "llvm.x86.avx512.vpermi2var.ps.512"
    function = declare(b, name, floats, [floats, words, floats])

    def look_up(values: list[float]) -> Value:
        halves = constant("f32", values[:16]), constant("f32", values[16:])
        return b.call(function, [halves[0], index, halves[1]])

    below = b.fcmp_ordered("<", x, look_up(edges))
    return b.select(below, look_up(low), look_up(high))


def _look_up(name: str, table: list[float]) -> Any:
    find = _by_place if HAS_MASKS else _by_edges
    return make(name, 1, lambda a: _F32X16(_F32X16), lambda b, sig, a: find(b, a[0], table))


# The value that is nearest to x, the larger one of two; and its index. Both as float32.
nearest_value = _look_up("nearest_value", [float(v) for v in VALUES])
nearest_index = _look_up("nearest_index", [float(i) for i in range(16)])


@inline
def _sums(x_at, weights, by, by2):
    """Sums of w * q * x and w * q * q over a block, for two inverse scales."""
    zeros = zero_f32x16()
    qx, q2, other_qx, other_q2 = zeros, zeros, zeros, zeros
    for i in range(0, 2048, 64):
        x, w = load_f32x16(x_at + i), load_f32x16(weights + i)
        q = nearest_value(by * x)
        wq = w * q
        qx, q2 = qx + wq * x, q2 + wq * q
        q = nearest_value(by2 * x)
        wq = w * q
        other_qx, other_q2 = other_qx + wq * x, other_q2 + wq * q
    return qx, q2, other_qx, other_q2


@inline
def weigh_block(x_at, importance, weights, sigma):
    """Weights of a block [32][16]: importance * sqrt(sigma + x * x), or (importance 0) x * x."""
    for i in range(0, 2048, 64):
        x = load_f32x16(x_at + i)
        w = x * x
        if importance != 0:
            w = load_f32x16(importance + i) * sqrt_f32x16(sigma + w)
        store_f32x16(weights + i, w)


@inline
def best_scale(x_at, weights):
    """The scales of the least weighted error of 16 blocks [32][16]; 0 of one that is all zero."""
    zeros = zero_f32x16()
    size, top = zeros, zeros
    for i in range(0, 2048, 64):
        x = load_f32x16(x_at + i)
        a = abs_f32x16(x)
        above = greater(a, size)
        top, size = select(above, x, top), select(above, a, size)
    by = fill_f32x16(np.float32(1)) / ((zeros - top) / fill_f32x16(_LEAST))
    by2 = fill_f32x16(np.float32(-7) + _LEAST) / top
    qx, q2, other_qx, other_q2 = _sums(x_at, weights, by, by2)
    scale = select(less(zeros, q2), qx / q2, zeros)
    best = scale * qx
    better = less(zeros, other_q2) & less(best * other_q2, other_qx * other_qx)
    scale = select(better, other_qx / other_q2, scale)
    best = select(better, scale * other_qx, best)
    for k in range(-6, 8, 2):
        by = fill_f32x16(np.float32(k) + _LEAST) / top
        by2 = fill_f32x16(np.float32(k + 1) + _LEAST) / top
        qx, q2, other_qx, other_q2 = _sums(x_at, weights, by, by2)
        for _ in range(2):
            better = less(zeros, q2) & less(best * q2, qx * qx)
            scale = select(better, qx / q2, scale)
            best = select(better, scale * qx, best)
            qx, q2 = other_qx, other_q2
    return select(less(size, fill_f32x16(_ALL_ZERO)), zeros, scale)


@inline
def inverse_or_zero(d):
    """1 / d, or 0 where d is 0."""
    zeros = zero_f32x16()
    return select(equal(d, zeros), zeros, fill_f32x16(np.float32(1)) / d)
