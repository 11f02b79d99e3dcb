"""Elements of checkpoints to float32, and float32 to the bytes of a tensor."""

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def to_float32(raw: NDArray, dtype: str) -> Float32:
    """Elements as they lie in the file (`StoredTensor.raw`), in one of FLOATS, as numbers."""
    if dtype == "BF16":
        bits = raw.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    if dtype.startswith("F8_"):
        return _fp8_values(dtype)[raw]
    return raw.astype(np.float32)


@functools.cache
def _fp8_values(dtype: str) -> Float32:
    """What each of the 256 bytes means (OCP 8-bit floating point, 2023)."""
    bits = np.arange(256)
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if dtype == "F8_E4M3" else (5, 2, 15)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    normal = np.ldexp(1 + mantissa / (1 << mantissa_bits), exponent - bias)
    tiny = np.ldexp(mantissa / (1 << mantissa_bits), 1 - bias)
    values = np.where(exponent == 0, tiny, normal)
    if dtype == "F8_E4M3":  # no infinities: all ones are not a number
        values = np.where((bits & 0x7F) == 0x7F, np.nan, values)
    else:
        special = np.where(mantissa == 0, np.inf, np.nan)
        values = np.where(exponent == 31, special, values)
    return np.where(bits & 0x80, -values, values).astype(np.float32)


def scaled(
    raw: NDArray, dtype: str, scale: Float32, block: tuple[int, int] | None, size: int
) -> Iterator[Float32]:
    """Numbers times the scale of their block of rows and columns, or of their row, or of all.

    raw: (..., rows, columns), as `to_float32` takes it. scale: (..., blocks of rows, blocks of
    columns), or any shape whose axes are the first of `raw`. Yields whole rows in order, (n,
    columns), of about `size` elements. ValueError: shapes that don't fit each other.
    """
    columns = raw.shape[-1]
    lead = (1, *raw.shape[:-1])
    if block is not None and scale.ndim >= 2:
        if raw.ndim < 2:
            raise ValueError(f"blocks for shape {raw.shape}")
        for blocks, each, count in zip(scale.shape[-2:], block, raw.shape[-2:], strict=True):
            if blocks * each < count:
                raise ValueError(f"shape {scale.shape} in blocks of {block} for {raw.shape}")
        scales = np.broadcast_to(scale, (*lead[:-1], *scale.shape[-2:]))
    else:
        block = None
        scale = scale.reshape(*scale.shape, *(1,) * (raw.ndim - scale.ndim))
        scales = np.broadcast_to(scale, (*lead, scale.shape[-1]))
    rows = raw.reshape(-1, columns)
    step = max(1, size // columns)
    for first in range(0, len(rows), step):
        values = to_float32(rows[first : first + step], dtype)
        *outer, row = np.unravel_index(np.arange(first, first + len(values)), lead)
        if block is not None:
            row = row // block[0]
        factors = scales[(*outer, row)]
        if block is not None:
            factors = factors.repeat(block[1], -1)[:, :columns]
        yield values * factors


def to_bytes(values: Float32, form: str) -> NDArray[np.uint8]:
    """Numbers in a format, as bytes: F32, F16, BF16 (both to the nearest, ties to even), Q8_0.

    values: finite. Q8_0: rows of a multiple of 32; as llama.cpp computes it, operation by
    operation.
    """
    if form == "F32":
        encoded: NDArray = np.ascontiguousarray(values, "<f4")
    elif form == "F16":
        with np.errstate(over="ignore"):  # checked where the result is
            encoded = np.ascontiguousarray(values.astype("<f2"))
    elif form == "BF16":
        bits = np.ascontiguousarray(values, "<f4").view("<u4")
        encoded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    elif form == "Q8_0":
        encoded = _q8_0(values)
    else:
        raise ValueError(f"{form} is not a format that checkpoints are converted to")
    return encoded.reshape(-1).view(np.uint8)


def _q8_0(values: Float32) -> NDArray[np.uint8]:
    """Blocks of 32: a float16 scale, a 127th of the largest, and the numbers by it as int8."""
    blocks = values.reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    steps = blocks * inverse
    # To the nearest, halves away from zero; the sum of a float32 and 0.5 would round once more.
    whole = np.trunc(steps)
    rounded = whole + np.where(np.abs(steps - whole) >= 0.5, np.copysign(np.float32(1), steps), 0)
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = scale.astype("<f2").view(np.uint8)
    out[:, 2:] = rounded.astype(np.int8).view(np.uint8)
    return out


def mxfp4_blocks(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """4-bit floats as ggml lays them: a block is its scale, then 16 bytes.

    codes: (rows, blocks, 16), byte i the elements 2 i (low half) and 2 i + 1. scales: (rows,
    blocks). Returns bytes of which byte j of a block has the elements j and j + 16.
    """
    halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
    out = np.empty((*codes.shape[:-1], 17), np.uint8)
    out[..., 0] = scales
    out[..., 1:] = halves[..., :16] | (halves[..., 16:] << 4)
    return out.reshape(-1)
