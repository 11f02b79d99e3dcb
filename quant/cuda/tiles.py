"""Tiles: 16 rows of a quantized weight, laid together as tensor cores take them.

A tile is 16 rows (missing ones are zero), cut into steps of 256 columns, or of 128 where blocks are
shorter (missing columns are zero). Of a step, first come the quants in pieces of 512 bytes: 16 for
each thread of a warp, lane = 4 * g + t, which holds rows g and g + 8. Then upper bits, scales and
factors. What a thread multiplies at once is a unit of 32 columns: 16 bytes,

    [half of the unit][row g, row g + 8][four columns]

where t stands for columns 8t..8t+3 and 8t+4..8t+7; where scales are one a 16, for columns 4t..4t+3
and 16+4t... (The sum doesn't mind the order if activations come in the same one.)

The formats of NATIVE keep their bits. The others become signed bytes with float32 scales:
x = scale * byte, or scale * byte - minimum.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import FORMATS_BY_NAME
from ..iq4_nl import TABLE as IQ4_NL_TABLE
from ..mxfp4 import TABLE as MXFP4_TABLE
from ..mxfp4 import half_power

ROWS = 16  # of a tile
UNIT = 32  # columns


@dataclass(frozen=True)
class Layout:
    """A kind of tiles. columns, bytes: of a step; words: 32-bit words of it that a thread holds."""

    columns: int
    bytes: int
    words: int


LAYOUTS = {
    "q4_k": Layout(256, 2048 + 256, 24),
    "q5_k": Layout(256, 2048 + 512 + 256, 28),
    "q6_k": Layout(256, 2048 + 1024 + 256 + 32, 36),
    "q8_0": Layout(128, 2048 + 128, 20),
    "q4_0": Layout(128, 1024 + 128, 12),
    "q5_0": Layout(128, 1024 + 256 + 128, 16),
    # Bytes with a scale a 32 columns; the same with minima; a scale a 16.
    "bytes": Layout(128, 2048 + 256, 24),
    "bytes_minima": Layout(128, 2048 + 256 + 256, 32),
    "bytes_16": Layout(128, 2048 + 512, 32),
}
NATIVE = ("q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q5_0")
# The formats that have tiles, and in which layout.
TILES = {name: name for name in NATIVE} | {
    "q4_1": "bytes_minima",
    "q5_1": "bytes_minima",
    "iq4_nl": "bytes",
    "iq4_xs": "bytes",
    "mxfp4": "bytes",
    "q3_k": "bytes_16",
}


def tile_bytes(name: str, columns: int) -> int:
    """Bytes of a tile: from one to the next."""
    layout = LAYOUTS[TILES[name]]
    return -(-columns // layout.columns) * layout.bytes


def num_tiles(rows: int) -> int:
    """Tiles of a matrix."""
    return -(-rows // ROWS)


def tile(name: str, data: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """A file's rows (rows, bytes) -> tiles (num_tiles, tile_bytes)."""
    layout = LAYOUTS[TILES[name]]
    source = FORMATS_BY_NAME[name.upper()]
    steps = -(-columns // layout.columns)
    blocks = np.ascontiguousarray(data).view(source.block).reshape(len(data), -1)
    height = num_tiles(len(data)) * ROWS
    if name in NATIVE:
        blocks = _padded(blocks, height, steps * layout.columns // source.block_len)
        # tile, half of the rows, g, step, block of the step
        parts = _NATIVE[name](blocks.reshape(-1, 2, 8, steps, blocks.shape[1] // steps))
    else:
        parts = _bytes_parts(name, blocks, height, steps * layout.columns)
    found = [np.ascontiguousarray(p).view(np.uint8).reshape(*p.shape[:2], -1) for p in parts]
    out = np.concatenate(found, axis=2)
    return out.reshape(len(out), -1)


def _padded(array: NDArray, rows: int, columns: int) -> NDArray:
    """With zeros below and to the right."""
    found = np.zeros((rows, columns), array.dtype)
    found[: len(array), : array.shape[1]] = array
    return found


Parts = list[NDArray]  # each (tile, step, ...)


def _eights(q: NDArray) -> NDArray:
    """(tile, half, g, step, unit, 32 bytes) -> (tile, step, unit, g, t, k, half, 4)."""
    shaped = q.reshape(*q.shape[:5], 4, 2, 4)
    return shaped.transpose(0, 3, 4, 2, 5, 6, 1, 7)


def _factors(d: NDArray) -> NDArray:
    """(tile, half, g, step, unit) -> (tile, step, g, unit, half)."""
    return d.transpose(0, 3, 2, 4, 1)


def _q4_k(b: NDArray) -> Parts:
    """A piece is 64 columns: a unit in the low nibbles, one in the high. Then 16 bytes a row."""
    b = b[..., 0]
    quants = _eights(b["qs"].reshape(*b.shape, 4, 32))
    head = b.view(np.uint8).reshape(*b.shape, b.dtype.itemsize)[..., :16]
    return [quants, head.transpose(0, 3, 1, 2, 4)]


def _q5_k(b: NDArray) -> Parts:
    """As Q4_K; the fifth bits of all units lie as one unit of bytes, unit u's in bit u."""
    quants, head = _q4_k(b)
    upper = _eights(b["qh"])
    return [quants, upper, head]


def _q6_k(b: NDArray) -> Parts:
    """Pieces of 64 of 128 columns (low nibbles; the high ones are 64 columns on), by 4t and 16+4t.

    Then the upper bits of 128 columns (bits 2u of unit u), second bit inverted, which makes the six
    a signed number; 16 bytes of scales a row, plus 128; the factors of rows g, g + 8 together.
    """
    b = b[..., 0]
    low = b["ql"].reshape(*b.shape, 2, 2, 2, 4, 4)  # ..., half of columns, piece, k, t, 4
    low = low.transpose(0, 3, 4, 5, 2, 7, 6, 1, 8)
    high = b["qh"].reshape(*b.shape, 2, 2, 4, 4) ^ np.uint8(0xAA)
    high = high.transpose(0, 3, 4, 2, 6, 5, 1, 7)
    scales = b["scales"].view(np.uint8) ^ np.uint8(0x80)
    return [low, high, scales.transpose(0, 3, 1, 2, 4), b["d"].transpose(0, 3, 2, 1)]


def _q8_0(b: NDArray) -> Parts:
    """A piece a unit; then for each g the factors (unit, row g or g + 8)."""
    return [_eights(b["qs"]), _factors(b["d"])]


def _nibble_words(b: NDArray) -> NDArray:
    """Of each unit, columns 8t.. in low and 8t+4.. in high nibbles: (..., step, unit, t, 4)."""
    qs = b["qs"]
    columns = np.concatenate([qs & 15, qs >> 4], axis=-1).reshape(*b.shape, 4, 2, 4)
    return columns[..., 0, :] | columns[..., 1, :] << 4


def _paired(words: NDArray) -> NDArray:
    """(tile, half, g, step, unit, t, 4) -> (tile, step, pair, g, t, unit of it, half, 4)."""
    shape = words.shape
    shaped = words.reshape(*shape[:4], 2, 2, 4, 4)
    return shaped.transpose(0, 3, 4, 2, 6, 5, 1, 7)


def _q4_0(b: NDArray) -> Parts:
    """A piece is two units, of each a word of nibbles for rows g and g + 8: signed ones, q - 8."""
    return [_paired(_nibble_words(b) ^ np.uint8(0x88)), _factors(b["d"])]


def _q5_0(b: NDArray) -> Parts:
    """As Q4_0; then a word for each row with the fifth bits, inverted: of columns 8t + 4k + i of
    unit u bit 2u + k of byte i.
    """
    spread = b["qh"][..., None] >> np.arange(32, dtype=np.uint32) & 1
    shaped = spread.astype(np.uint8).reshape(*b.shape, 4, 2, 4) ^ np.uint8(1)  # unit, t, k, i
    shift = np.arange(8, dtype=np.uint8).reshape(4, 1, 2, 1)
    bits = (shaped << shift).sum(axis=(4, 6), dtype=np.uint8)  # tile, half, g, step, t, i
    return [_paired(_nibble_words(b)), bits.transpose(0, 3, 2, 4, 1, 5), _factors(b["d"])]


_NATIVE: dict[str, Callable[[NDArray], Parts]] = {
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q5_0": _q5_0,
}


def _bytes_parts(name: str, blocks: NDArray, rows: int, columns: int) -> Parts:
    """Steps of four units, a piece each; for each g the scales (unit, row g or g + 8, half of the
    unit where there are two), then the minima alike.
    """
    q, scales, minima = (
        None if a is None else a.reshape(len(blocks), -1)
        for a in as_bytes(name, blocks.reshape(-1))
    )
    assert q is not None and scales is not None
    shape = (rows // ROWS, 2, 8, -1, 4)
    q = _padded(q, rows, columns)
    if TILES[name] == "bytes_16":
        scales = _padded(scales, rows, columns // 16)
        halves = q.reshape(*shape, 2, 4, 4).transpose(0, 3, 4, 2, 6, 5, 1, 7)
        return [halves, scales.reshape(*shape, 2).transpose(0, 3, 2, 4, 1, 5)]
    scales = _padded(scales, rows, columns // UNIT)
    parts = [_eights(q.reshape(*shape, UNIT)), _factors(scales.reshape(shape))]
    if minima is not None:
        parts.append(_factors(_padded(minima, rows, columns // UNIT).reshape(shape)))
    return parts


def as_bytes(
    name: str, blocks: NDArray
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32] | None]:
    """Blocks (n,) of a format that isn't native: bytes, scales and minima of `TILES`' layout."""
    if name == "mxfp4":
        return _looked_up(MXFP4_TABLE, blocks["qs"], 16), half_power(blocks["e"]), None
    d = blocks["d"].astype(np.float32)
    if name == "iq4_nl":
        return _looked_up(IQ4_NL_TABLE, blocks["qs"], 16), d, None
    if name == "iq4_xs":
        low = np.stack([blocks["scales_l"] & 15, blocks["scales_l"] >> 4], axis=-1).reshape(-1, 8)
        high = blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
        steps = ((low | high.astype(np.uint8) << 4) - np.int16(32)).astype(np.float32)
        return _looked_up(IQ4_NL_TABLE, blocks["qs"], 16), d[:, None] * steps, None
    return _by_decoding(name, blocks, d)


def _looked_up(table: NDArray[np.float32], qs: NDArray[np.uint8], group: int) -> NDArray[np.int8]:
    grouped = qs.reshape(len(qs), -1, 1, group)
    indices = np.concatenate([grouped & 15, grouped >> 4], axis=2)
    return table.astype(np.int8)[indices].reshape(len(qs), -1)


def _by_decoding(
    name: str, blocks: NDArray, d: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32] | None]:
    """The bytes are what the format's own decoder makes of blocks whose factors are one."""
    plain = blocks.copy()
    plain["d"] = 1
    decode = FORMATS_BY_NAME[name.upper()].decode
    if name == "q3_k":
        scales = _q3_k_scales(blocks)
        plain["scales"] = _Q3_K_ONES
        return decode(plain).astype(np.int8), (d[:, None] * scales).reshape(-1), None
    plain["m"] = 0
    return decode(plain).astype(np.int8), d, -blocks["m"].astype(np.float32)


# Twelve bytes that mean the scale 33 - 32 = 1 sixteen times.
_Q3_K_ONES = np.array([0x11] * 8 + [0xAA] * 4, np.uint8)


def _q3_k_scales(blocks: NDArray) -> NDArray[np.float32]:
    packed = blocks["scales"]
    low = np.concatenate([packed[:, :8] & 0x0F, packed[:, :8] >> 4], axis=1)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    return (low | high << 4).astype(np.float32) - np.float32(32)
