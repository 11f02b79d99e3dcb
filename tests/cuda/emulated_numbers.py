"""Twins of the words on single numbers: 32-bit words, bytes and halves in them, floats."""

from collections.abc import Callable
from typing import Any

import numpy as np
from emulated_memory import Fault
from emulated_words import as_f32, as_i32, as_i64, twin


# ---- 32-bit words --------------------------------------------------------------------------------
def _unsigned(value: Any) -> Any:
    return value.view(np.uint32)


twin("and32", "i32", "i32")(np.bitwise_and)
twin("or32", "i32", "i32")(np.bitwise_or)
twin("xor32", "i32", "i32")(np.bitwise_xor)
twin("add32", "i32", "i32")(np.add)
twin("sub32", "i32", "i32")(np.subtract)
twin("mul32", "i32", "i32")(np.multiply)


def _shift(name: str, shift: Callable[[Any, Any], Any]) -> None:
    @twin(name, "i32", "i32", masked=True)
    def run(m: Any, value: Any, by: Any) -> Any:
        if by.__class__ is np.int32 and 0 <= by < 32:
            return shift(value, by)
        wrong = _unsigned(by) > 31
        if wrong.any() and (by.__class__ is not np.ndarray or m is None or wrong[m].any()):
            raise Fault(f"{name} by {by if by.__class__ is not np.ndarray else by[wrong][0]}")
        return shift(value, by)


_shift("shl32", np.left_shift)
_shift("sar32", np.right_shift)
_shift("shr32", lambda v, by: (_unsigned(v) >> _unsigned(by)).view(np.int32))
twin("i32", "i64")(as_i32)
twin("i64", "i32")(as_i64)
twin("u64", "i32")(
    lambda v: (
        v.view(np.uint32).astype(np.int64) if v.__class__ is np.ndarray else int(v) % (1 << 32)
    )
)


def _dp4a(x: Any, y: Any, z: Any, kind_: Any) -> Any:
    x, y, z = np.broadcast_arrays(np.atleast_1d(x), np.atleast_1d(y), np.atleast_1d(z))
    x, y = np.ascontiguousarray(x).view(kind_), np.ascontiguousarray(y).view(np.int8)
    pairs = np.multiply(x, y, dtype=np.int16).view(np.int32)
    sums = ((pairs << 16) >> 16) + (pairs >> 16)
    return sums[0::2] + sums[1::2] + z


def _dot(kind_: Any) -> Callable[..., Any]:
    def run(x: Any, y: Any, z: Any) -> Any:
        found = _dp4a(x, y, z, kind_)
        return found if any(v.__class__ is np.ndarray for v in (x, y, z)) else found[0]

    return run


twin("dp4a", "i32", "i32", "i32")(_dot(np.int8))
twin("dp4a_us", "i32", "i32", "i32")(_dot(np.uint8))


@twin("permute_bytes", "i32", "i32", "i32")
def _permute(x: Any, y: Any, order: Any) -> Any:
    arrays = [v for v in (x, y, order) if v.__class__ is np.ndarray]
    both = np.empty((len(arrays[0]) if arrays else 1, 2), np.int32)
    both[:, 0], both[:, 1] = x, y
    octets = both.view(np.uint8)
    if order.__class__ is np.ndarray:
        nibbles = (order[:, None] >> _NIBBLES) & np.int32(15)
        rows = np.arange(0, 8 * len(both), 8)[:, None]
        found = octets.reshape(-1).take(rows + (nibbles & np.int32(7)))
        signs = nibbles > 7
    else:
        nibbles = int(order) >> _NIBBLES & 15
        found = octets.take(nibbles & 7, axis=1)
        signs = np.broadcast_to(nibbles > 7, found.shape)
    if np.count_nonzero(signs):  # all bits as the byte's highest one
        found = np.where(signs, (found >> 7) * np.uint8(255), found)
    whole = np.ascontiguousarray(found).view(np.int32).reshape(-1)
    return whole if arrays else whole[0]


_NIBBLES = np.arange(0, 16, 4, dtype=np.int32)


# ---- numbers -------------------------------------------------------------------------------------
twin("to_f32", "i32")(as_f32)
twin("f32_of", "i64")(as_f32)
twin("bits_f32", "i32")(lambda v: v.view(np.float32))
twin("bits_i32", "f32")(lambda v: v.view(np.int32))
twin("half", "i32")(lambda v: v.astype(np.uint16).view(np.float16).astype(np.float32))
twin("half_high", "i32")(
    lambda v: (v >> np.int32(16)).astype(np.uint16).view(np.float16).astype(np.float32)
)


@twin("pack_half2", "f32", "f32")
def _pack(low: Any, high: Any) -> Any:
    halves = [v.astype(np.float16).view(np.uint16).astype(np.uint32) for v in (low, high)]
    return (halves[0] | halves[1] << np.uint32(16)).view(np.int32)


@twin("order_of", "f32")
def _order_of(v: Any) -> Any:
    bits = np.asarray(v + np.float32(0)).view(np.int32)
    turned = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
    return np.where(np.isnan(v), np.int32(-(2**31) + 1), turned)[()]


@twin("of_order", "i32")
def _of_order(v: Any) -> Any:
    return np.where(v < 0, v ^ np.int32(0x7FFFFFFF), v).view(np.float32)[()]


def _halves(word: Any) -> Any:
    """Both float16 numbers of words (lanes, 2), or of one (1, 2)."""
    return np.ascontiguousarray(np.atleast_1d(word)).view(np.float16).reshape(-1, 2)


def _half2(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of words whose halves a function takes as float64: exact before it is rounded."""

    def run(*words: Any) -> Any:
        found = function(*[_halves(w).astype(np.float64) for w in words]).astype(np.float16)
        whole = np.ascontiguousarray(found).view(np.int32).reshape(-1)
        return whole if any(w.__class__ is np.ndarray for w in words) else whole[0]

    return run


twin("fma_half2", "i32", "i32", "i32")(_half2(lambda x, y, z: x * y + z))
twin("add_half2", "i32", "i32")(_half2(lambda x, y: x + y))

_TINY = np.float32(2.0**-126)


def _flushed(v: Any) -> Any:
    """Numbers below the normal ones become zeros of their sign."""
    return np.where(np.abs(v) < _TINY, np.copysign(np.float32(0), v), v)


def _elementwise(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Arrays stay arrays, and numbers numbers."""

    def run(v: Any) -> Any:
        found = function(v)
        return found if v.__class__ is np.ndarray else np.float32(found)

    return run


twin("exp2", "f32")(_elementwise(lambda v: _flushed(np.exp2(_flushed(v)))))
twin("log2", "f32")(_elementwise(lambda v: np.log2(_flushed(v))))
twin("rsqrt", "f32")(_elementwise(lambda v: np.float32(1) / np.sqrt(v)))
twin("reciprocal", "f32")(_elementwise(lambda v: np.float32(1) / v))
twin("sqrt", "f32")(np.sqrt)
twin("maximum", "f32", "f32")(np.fmax)
twin("minimum", "f32", "f32")(np.fmin)
twin("absolute", "f32")(np.abs)


@twin("nearest", "f32")
def _nearest(v: Any) -> Any:
    wide = np.clip(np.rint(v).astype(np.float64), -(2.0**31), 2.0**31 - 1)
    return np.where(np.isnan(wide), 0, wide).astype(np.int32)[()]


@twin("fma", "f32", "f32", "f32")
def _fma(x: Any, y: Any, z: Any) -> Any:
    found = np.add(np.multiply(x, y, dtype=np.float64), z, dtype=np.float64)
    return found.astype(np.float32)
