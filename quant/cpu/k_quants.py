"""What Q4_K and Q5_K share: super-blocks of 256 with eight 6-bit scales and minima.

Each 64 bytes of nibbles hold 128 elements: the low nibbles are 32-groups 0 and 2, the high ones 1
and 3. Activations in the order `PAIR32` match that, so the dot product needs no shuffle of bytes.
"""

from typing import Any

from llvmlite import ir

from .floats import widen_code
from .prefetch import prefetch_ahead
from .simd import (
    address,
    convert,
    dot4_x16,
    fma_f32x8,
    fma_f32x16,
    inline,
    load_f32x8,
    load_i8x64,
    make,
    shuffle,
    store_f32x8,
    store_i8x32,
    sum_f32x8,
    sum_f32x16,
    to_f32x16,
    vec,
    zero_f32x8,
    zero_f32x16,
    zero_i32x16,
)
from .vector import F16, I16, I32, Builder, Value, constant, lanes, pointer


def _scale_bytes(b: Builder, sig: Any, args: Any) -> Value:
    """Block header (d, dmin, 12 packed bytes) -> 8 scales and 8 minima as bytes, in registers."""
    v = b.load(pointer(b, args[0]), align=1, typ=vec("i8", 16).llvm)
    words = ir.VectorType(I32, 4)
    none = ir.Constant(v.type, None)
    base = lanes(b, v, none, [4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15])
    top = lanes(b, v, none, [16] * 4 + [4, 5, 6, 7] + [16] * 4 + [8, 9, 10, 11])
    base = b.lshr(b.bitcast(base, words), constant("i32", [0, 0, 0, 4]))
    base = b.and_(base, constant("i32", [0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F]))
    top = b.and_(
        b.lshr(b.bitcast(top, words), constant("i32", [2] * 4)), constant("i32", [0x30303030] * 4)
    )
    return b.bitcast(b.or_(base, top), v.type)


def _half_splat(index: int, count: int) -> Any:
    """The f16 at an address + 2 * index, in each lane as f32."""
    kind = vec("f32", count)

    def code(b: Builder, sig: Any, args: Any) -> Value:
        pair = b.load(pointer(b, args[0]), align=1, typ=ir.VectorType(F16, 2))
        wide = widen_code(b, pair)
        return lanes(b, wide, wide, [index] * count)

    return make("half_splat", 1, lambda a: kind(address), code)


scale_bytes = make("scale_bytes", 1, lambda a: vec("i8", 16)(address), _scale_bytes)
_d8, _dmin8 = _half_splat(0, 8), _half_splat(1, 8)
_scales8 = shuffle("i8", 16, list(range(8)))
_minima8 = shuffle("i8", 16, list(range(8, 16)))
_to_i32x8 = convert("zext", vec("i8", 8), vec("i32", 8))
_to_f32x8 = convert("sitofp", vec("i32", 8), vec("f32", 8))
_first = [[4 * c + g for g in (0, 2) for _ in range(8)] for c in range(2)]
_second = [[4 * c + g for g in (1, 3) for _ in range(8)] for c in range(2)]
_low0, _low1 = (shuffle("f32", 8, order) for order in _first)
_high0, _high1 = (shuffle("f32", 8, order) for order in _second)
_lower_half, _upper_half = (
    shuffle("i8", 64, list(range(32))),
    shuffle("i8", 64, list(range(32, 64))),
)


def nibbles64(first: int, high_bits: int | None) -> list[Any]:
    """Intrinsics (at the block) -> u8x64: low and high nibbles of the first and second 64 bytes."""
    kind = vec("i8", 64)
    shorts = ir.VectorType(I16, 32)

    def part(chunk: int, which: int) -> Any:
        def code(b: Builder, sig: Any, args: Any) -> Value:
            at = pointer(b, b.add(args[0], ir.Constant(args[0].type, first + 64 * chunk)))
            x = b.load(at, align=1, typ=kind.llvm)
            if which:
                x = b.lshr(x, constant("i8", [4] * 64))
            else:
                x = b.and_(x, constant("i8", [15] * 64))
            if high_bits is None:
                return x
            # Bit 4 * chunk + which + {0, 2} of each byte is the fifth bit of the two groups.
            at = pointer(b, b.add(args[0], ir.Constant(args[0].type, high_bits)))
            h = b.load(at, align=1, typ=vec("i8", 32).llvm)
            h = b.bitcast(lanes(b, h, h, list(range(32)) * 2), shorts)
            bits = [4 * chunk + which] * 16 + [4 * chunk + which + 2] * 16
            h = b.shl(h, constant("i16", [max(0, 4 - n) for n in bits]))
            h = b.lshr(h, constant("i16", [max(0, n - 4) for n in bits]))
            return b.or_(x, b.and_(b.bitcast(h, kind.llvm), constant("i8", [16] * 64)))

        return make(f"nibbles64_{chunk}{which}", 1, lambda a: kind(address), code)

    return [part(c, w) for c in range(2) for w in range(2)]


def make_k_format(block_bytes: int, first: int, high_bits: int | None) -> tuple[Any, Any]:
    """(dot_row, unpack_row) of Q4_K or Q5_K; see CpuFormat."""
    low0, high0, low1, high1 = nibbles64(first, high_bits)
    ahead = prefetch_ahead(block_bytes)

    @inline
    def dot_row(w, groups, q, scale, sums):
        # Two sums, so that one addition's latency is not the loop's.
        acc, more, accm = zero_f32x16(), zero_f32x16(), zero_f32x8()
        for _ in range(groups >> 3):
            ahead(w)
            h = scale_bytes(w)
            s = _to_f32x8(_to_i32x8(_scales8(h, h))) * (_d8(w) * load_f32x8(scale))
            m = _to_f32x8(_to_i32x8(_minima8(h, h))) * _dmin8(w)
            accm = fma_f32x8(m, load_f32x8(sums), accm)
            d = dot4_x16(zero_i32x16(), low0(w), load_i8x64(q))
            acc = fma_f32x16(to_f32x16(d), _low0(s, s), acc)
            d = dot4_x16(zero_i32x16(), high0(w), load_i8x64(q + 64))
            more = fma_f32x16(to_f32x16(d), _high0(s, s), more)
            d = dot4_x16(zero_i32x16(), low1(w), load_i8x64(q + 128))
            acc = fma_f32x16(to_f32x16(d), _low1(s, s), acc)
            d = dot4_x16(zero_i32x16(), high1(w), load_i8x64(q + 192))
            more = fma_f32x16(to_f32x16(d), _high1(s, s), more)
            w += block_bytes
            q += 256
            scale += 32
            sums += 32
        return sum_f32x16(acc + more) - sum_f32x8(accm)

    @inline
    def unpack_row(w, groups, u, stride, scale, minima):
        for _ in range(groups >> 3):
            h = scale_bytes(w)
            store_f32x8(scale, _to_f32x8(_to_i32x8(_scales8(h, h))) * _d8(w))
            store_f32x8(minima, _to_f32x8(_to_i32x8(_minima8(h, h))) * _dmin8(w))
            x = low0(w)
            store_i8x32(u, _lower_half(x, x))
            store_i8x32(u + 2 * stride, _upper_half(x, x))
            x = high0(w)
            store_i8x32(u + stride, _lower_half(x, x))
            store_i8x32(u + 3 * stride, _upper_half(x, x))
            u += 4 * stride
            x = low1(w)
            store_i8x32(u, _lower_half(x, x))
            store_i8x32(u + 2 * stride, _upper_half(x, x))
            x = high1(w)
            store_i8x32(u + stride, _lower_half(x, x))
            store_i8x32(u + 3 * stride, _upper_half(x, x))
            w += block_bytes
            u += 4 * stride
            scale += 32
            minima += 32

    return dot_row, unpack_row
