"""Norms: y = (x - m) * r * weight + bias, into quantized activations, in place or onto a residual.

r is 1 / sqrt(mean((x - m)^2) + eps); m is 0 (RMS) or the mean of x (LAYER). With NORM_NONE, m is 0
and r 1: what only quantizes, or adds, is a norm as well.
"""

import numpy as np

from ....quant.cpu.simd import (
    LANES,
    call,
    fill,
    fill_f32x16,
    fma,
    fma_f32x16,
    inline,
    kernel,
    load,
    load_f32,
    load_f32x16,
    load_i64,
    load_splat,
    sqrt_f32,
    store,
    store_f32x16,
    sum_f32x16,
    zero,
    zero_f32x16,
)
from ....quant.cpu.threads import atomic_add
from ....quant.cpu.vector import vec
from ..records import NORM, NORM_ADD, NORM_LAYER, NORM_NONE, STEP
from .lanes import put_lanes
from .quantize import put_row

_load, _store, _zero, _fill, _splat = (
    load("f32", LANES),
    store("f32", LANES),
    zero("f32", LANES),
    fill("f32", LANES),
    load_splat("f32", LANES),
)
_fma = fma(LANES)
_sqrt = call(f"llvm.sqrt.v{LANES}f32", vec("f32", LANES), 1)


@inline
def _mean(x, columns, kind):
    """m of `columns` values (a multiple of 16) at address x."""
    acc = zero_f32x16()
    if kind == NORM_LAYER:
        for i in range(0, columns, 16):
            acc = acc + load_f32x16(x + 4 * i)
    return sum_f32x16(acc) / np.float32(columns)


@inline
def inverse_deviation(x, columns, mean, kind, eps):
    """r of `columns` values (a multiple of 16) at address x."""
    m, acc = fill_f32x16(mean), zero_f32x16()
    if kind == NORM_NONE:
        return np.float32(1)
    for i in range(0, columns, 16):
        v = load_f32x16(x + 4 * i) - m
        acc = fma_f32x16(v, v, acc)
    return np.float32(1) / sqrt_f32(sum_f32x16(acc) / np.float32(columns) + eps)


@inline
def norm_row(x, y, columns, weight, bias, kind, eps):
    """The norm of a row at x, to y, which may be x; weight and bias (or 0) are addresses."""
    mean = _mean(x, columns, kind)
    m, r = fill_f32x16(mean), fill_f32x16(inverse_deviation(x, columns, mean, kind, eps))
    for i in range(0, columns, 16):
        v = (load_f32x16(x + 4 * i) - m) * r
        store_f32x16(y + 4 * i, v * load_f32x16(weight + 4 * i))
    if bias != 0:
        for i in range(0, columns, 16):
            store_f32x16(y + 4 * i, load_f32x16(y + 4 * i) + load_f32x16(bias + 4 * i))


@kernel
def norm_rows(op, step, thread):
    """A token a piece of work."""
    count = load_i64(load_i64(op + NORM.count_at))
    columns, out = load_i64(op + NORM.columns), load_i64(op + NORM.out)
    weight, bias = load_i64(op + NORM.weight), load_i64(op + NORM.bias)
    kind, eps, stride = (
        load_i64(op + NORM.kind),
        load_f32(op + NORM.eps),
        load_i64(op + NORM.x_stride),
    )
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        t = atomic_add(load_i64(op + NORM.counter), 1)
        if t >= count:
            return 0
        norm_row(load_i64(op + NORM.x) + t * stride, y, columns, weight, bias, kind, eps)
        if out != 0:
            for i in range(0, columns, 16):
                store_f32x16(out + t * stride + 4 * i, load_f32x16(y + 4 * i))
        put_row(op, t, 0, columns, y)


@kernel
def norm_add_rows(op, step, thread):
    """x += scale * norm(y): the norm after a block, before the residual addition."""
    count = load_i64(load_i64(op + NORM_ADD.count_at))
    columns, kind = load_i64(op + NORM_ADD.columns), load_i64(op + NORM_ADD.kind)
    weight, bias = load_i64(op + NORM_ADD.weight), load_i64(op + NORM_ADD.bias)
    scale, eps = fill_f32x16(load_f32(op + NORM_ADD.scale)), load_f32(op + NORM_ADD.eps)
    spare = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        t = atomic_add(load_i64(op + NORM_ADD.counter), 1)
        if t >= count:
            return 0
        x = load_i64(op + NORM_ADD.x) + t * load_i64(op + NORM_ADD.x_stride)
        y = load_i64(op + NORM_ADD.y) + t * load_i64(op + NORM_ADD.y_stride)
        norm_row(y, spare, columns, weight, bias, kind, eps)
        for i in range(0, columns, 16):
            v = load_f32x16(spare + 4 * i) * scale
            store_f32x16(x + 4 * i, load_f32x16(x + 4 * i) + v)


@inline
def mean_lanes(x, columns, kind):
    """m of LANES tokens: x is [columns][LANES]."""
    acc = _zero()
    if kind == NORM_LAYER:
        for i in range(columns):
            acc = acc + _load(x + i * LANES * 4)
    return acc * _fill(np.float32(1) / np.float32(columns))


@inline
def inverse_deviation_lanes(x, columns, mean, kind, eps):
    """r of LANES tokens: x is [columns][LANES]."""
    acc, more = _zero(), _zero()
    if kind == NORM_NONE:
        return _fill(np.float32(1))
    for i in range(0, columns, 2):
        v = _load(x + i * LANES * 4) - mean
        acc = _fma(v, v, acc)
        v = _load(x + (i + 1) * LANES * 4) - mean
        more = _fma(v, v, more)
    mean_square = (acc + more) * _fill(np.float32(1) / np.float32(columns))
    return _fill(np.float32(1)) / _sqrt(mean_square + _fill(eps))


@kernel
def norm_lanes(op, step, thread):
    """A block of LANES tokens a piece of work."""
    count = (load_i64(load_i64(op + NORM.count_at)) + LANES - 1) // LANES
    columns, stride = load_i64(op + NORM.columns), load_i64(op + NORM.x_stride)
    weight, bias = load_i64(op + NORM.weight), load_i64(op + NORM.bias)
    kind, out = load_i64(op + NORM.kind), load_i64(op + NORM.out)
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        t = atomic_add(load_i64(op + NORM.counter), 1)
        if t >= count:
            return 0
        base = t * stride * LANES * 4
        x = load_i64(op + NORM.x) + base
        m = mean_lanes(x, columns, kind)
        r = inverse_deviation_lanes(x, columns, m, kind, load_f32(op + NORM.eps))
        for start in range(0, columns, 32):
            some = min(32, columns - start)
            for i in range(some):
                v = (_load(x + (start + i) * LANES * 4) - m) * r
                _store(y + i * LANES * 4, v * _splat(weight + 4 * (start + i)))
            if bias != 0:
                for i in range(some):
                    v = _load(y + i * LANES * 4) + _splat(bias + 4 * (start + i))
                    _store(y + i * LANES * 4, v)
            if out != 0:
                for i in range(some):
                    _store(out + base + (start + i) * LANES * 4, _load(y + i * LANES * 4))
            put_lanes(op, t, start, y)


@kernel
def norm_add_lanes(op, step, thread):
    """x += scale * norm(y), a block of LANES tokens a piece of work."""
    count = (load_i64(load_i64(op + NORM_ADD.count_at)) + LANES - 1) // LANES
    columns, kind = load_i64(op + NORM_ADD.columns), load_i64(op + NORM_ADD.kind)
    weight, bias = load_i64(op + NORM_ADD.weight), load_i64(op + NORM_ADD.bias)
    scale, eps = _fill(load_f32(op + NORM_ADD.scale)), load_f32(op + NORM_ADD.eps)
    while True:
        t = atomic_add(load_i64(op + NORM_ADD.counter), 1)
        if t >= count:
            return 0
        x = load_i64(op + NORM_ADD.x) + t * load_i64(op + NORM_ADD.x_stride) * LANES * 4
        y = load_i64(op + NORM_ADD.y) + t * load_i64(op + NORM_ADD.y_stride) * LANES * 4
        m = mean_lanes(y, columns, kind)
        r = inverse_deviation_lanes(y, columns, m, kind, eps) * scale
        for i in range(columns):
            at = i * LANES * 4
            v = _fma((_load(y + at) - m) * r, _splat(weight + 4 * i), _load(x + at))
            if bias != 0:
                v = _fma(_splat(bias + 4 * i), scale, v)
            _store(x + at, v)
