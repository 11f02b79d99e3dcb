"""RMS norm: y = x / sqrt(mean(x^2) + eps) * weight, into quantized activations or the residual."""

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
from ..records import NORM, NORM_ADD, STEP
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
def inverse_rms(x, columns, eps):
    """1 / sqrt(mean(x^2) + eps) of `columns` values (a multiple of 16) at address x."""
    acc = zero_f32x16()
    for i in range(0, columns, 16):
        v = load_f32x16(x + 4 * i)
        acc = fma_f32x16(v, v, acc)
    return np.float32(1) / sqrt_f32(sum_f32x16(acc) / np.float32(columns) + eps)


@kernel
def norm_rows(op, step, thread):
    """A token a piece of work."""
    count = load_i64(load_i64(op + NORM.count_at))
    columns = load_i64(op + NORM.columns)
    weight = load_i64(op + NORM.weight)
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        t = atomic_add(load_i64(op + NORM.counter), 1)
        if t >= count:
            return 0
        x = load_i64(op + NORM.x) + t * load_i64(op + NORM.x_stride)
        r = fill_f32x16(inverse_rms(x, columns, load_f32(op + NORM.eps)))
        for i in range(0, columns, 16):
            v = load_f32x16(x + 4 * i) * r
            store_f32x16(y + 4 * i, v * load_f32x16(weight + 4 * i))
        put_row(op, t, 0, columns, y)


@kernel
def norm_add_rows(op, step, thread):
    """x += norm(y): the norm after a block, before the residual addition."""
    count = load_i64(load_i64(op + NORM_ADD.count_at))
    columns = load_i64(op + NORM_ADD.columns)
    weight = load_i64(op + NORM_ADD.weight)
    while True:
        t = atomic_add(load_i64(op + NORM_ADD.counter), 1)
        if t >= count:
            return 0
        x = load_i64(op + NORM_ADD.x) + t * load_i64(op + NORM_ADD.x_stride)
        y = load_i64(op + NORM_ADD.y) + t * load_i64(op + NORM_ADD.y_stride)
        r = fill_f32x16(inverse_rms(y, columns, load_f32(op + NORM_ADD.eps)))
        for i in range(0, columns, 16):
            v = load_f32x16(y + 4 * i) * r * load_f32x16(weight + 4 * i)
            store_f32x16(x + 4 * i, load_f32x16(x + 4 * i) + v)


@inline
def inverse_rms_lanes(x, columns, eps):
    """The same for LANES tokens: x is [columns][LANES]."""
    acc, more = _zero(), _zero()
    for i in range(0, columns, 2):
        v = _load(x + i * LANES * 4)
        acc = _fma(v, v, acc)
        v = _load(x + (i + 1) * LANES * 4)
        more = _fma(v, v, more)
    mean = (acc + more) * _fill(np.float32(1) / np.float32(columns))
    return _fill(np.float32(1)) / _sqrt(mean + _fill(eps))


@kernel
def norm_lanes(op, step, thread):
    """A block of LANES tokens a piece of work."""
    count = (load_i64(load_i64(op + NORM.count_at)) + LANES - 1) // LANES
    columns = load_i64(op + NORM.columns)
    weight = load_i64(op + NORM.weight)
    y = load_i64(step + STEP.scratch) + thread * load_i64(step + STEP.scratch_bytes)
    while True:
        t = atomic_add(load_i64(op + NORM.counter), 1)
        if t >= count:
            return 0
        x = load_i64(op + NORM.x) + t * columns * LANES * 4
        r = inverse_rms_lanes(x, columns, load_f32(op + NORM.eps))
        for start in range(0, columns, 32):
            for i in range(32):
                at = (start + i) * LANES * 4
                _store(y + i * LANES * 4, _load(x + at) * r * _splat(weight + 4 * (start + i)))
            put_lanes(op, t, start, y)


@kernel
def norm_add_lanes(op, step, thread):
    """x += norm(y), a block of LANES tokens a piece of work."""
    count = (load_i64(load_i64(op + NORM_ADD.count_at)) + LANES - 1) // LANES
    columns = load_i64(op + NORM_ADD.columns)
    weight = load_i64(op + NORM_ADD.weight)
    while True:
        t = atomic_add(load_i64(op + NORM_ADD.counter), 1)
        if t >= count:
            return 0
        x = load_i64(op + NORM_ADD.x) + t * columns * LANES * 4
        y = load_i64(op + NORM_ADD.y) + t * columns * LANES * 4
        r = inverse_rms_lanes(y, columns, load_f32(op + NORM_ADD.eps))
        for i in range(columns):
            at = i * LANES * 4
            _store(x + at, _fma(_load(y + at) * r, _splat(weight + 4 * i), _load(x + at)))
