"""What a tensor format is: its block's layout and the meaning of its bytes, in plain NumPy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

CHUNK_ELEMENTS = 1 << 16  # decoded at a time, so that the intermediates stay in the cache


@dataclass(frozen=True)
class Format:
    """One tensor format; `type_id` is GGUF's number of it, `block.itemsize` the bytes a block."""

    name: str
    type_id: int
    block_len: int  # elements a block
    block: np.dtype
    decode: Callable[[NDArray], NDArray[np.float32]] = field(repr=False, compare=False)

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row; ValueError when `columns` is not a whole number of blocks."""
        if columns % self.block_len:
            raise ValueError(
                f"{self.name}: rows of {columns} elements are not whole blocks of {self.block_len}"
            )
        return columns // self.block_len * self.block.itemsize

    def dequantize(self, data: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.float32]:
        """Bytes of whole rows, in any array shape -> float32 of `shape`, a fresh array.

        Equal bit for bit to gguf-py's dequantize. ValueError when bytes and shape disagree.
        """
        expected = prod(shape[:-1]) * self.row_bytes(shape[-1])
        if data.size != expected:
            raise ValueError(
                f"{self.name} of shape {tuple(shape)}: {data.size} bytes, expected {expected}"
            )
        blocks = np.ascontiguousarray(data, np.uint8).reshape(-1).view(self.block)
        out = np.empty((len(blocks), self.block_len), np.float32)
        step = max(1, CHUNK_ELEMENTS // self.block_len)
        with np.errstate(over="ignore", invalid="ignore"):  # damaged scales may be inf or NaN
            for at in range(0, len(blocks), step):
                out[at : at + step] = self.decode(blocks[at : at + step])
        return out.reshape(shape)


def nibbles(qs: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
    """Unpack 4-bit values: of each `group` bytes the low halves, then the high ones.

    uint8 (n, bytes) -> uint8 (n, 2 * bytes).
    """
    grouped = qs.reshape(len(qs), -1, 1, group)
    halves = [grouped & np.uint8(0x0F), grouped >> np.uint8(4)]
    return np.concatenate(halves, axis=2).reshape(len(qs), -1)


def crumbs(qs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack the 2-bit values of Q2_K and Q3_K: bits 2j and 2j + 1 of 32 bytes are 32 elements.

    uint8 (n, 64) -> uint8 (n, 256).
    """
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (qs.reshape(len(qs), 2, 1, 32) >> shifts & np.uint8(3)).reshape(len(qs), 256)


def bits(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Spread 32 bits, lowest first: uint32 (n,) -> uint8 (n, 32) of 0 and 1."""
    spread = words[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return spread.astype(np.uint8)


def k_scales(blocks: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Unpack the 6-bit scales and minima of Q4_K and Q5_K and multiply them by d and dmin.

    Blocks (n,) -> scales and minima, float32 (n, 8, 1). Bytes 0-3 hold scales 0-3 in their low 6
    bits, bytes 4-7 minima 0-3; bytes 8-11 hold the low 4 bits of scales 4-7 (low nibble) and of
    minima 4-7 (high), whose upper 2 bits are on top of bytes 0-3 and 4-7.
    """
    packed: NDArray[np.uint8] = blocks["scales"]
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (rest & 0x0F) | (first >> 2 & 0x30)], axis=1)
    minima = np.concatenate([second & 0x3F, (rest >> 4) | (second >> 2 & 0x30)], axis=1)
    d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
    return (d * scales.astype(np.float32))[:, :, None], (dmin * minima.astype(np.float32))[
        :, :, None
    ]
