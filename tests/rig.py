"""Runs one compiled kernel at a time: its record, the step's header, and memory with fences.

Tests reach it through the fixture `rig` of conftest.py.
"""

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamba.quant import FORMATS_BY_NAME, Format, jit
from llamba.quant.target import target
from llamba.runtime.arena import Activations, Arena
from llamba.runtime.kernels.records import (
    ACTIVATION_ORDER,
    MATMUL,
    NATURAL,
    PAIR16,
    PAIR32,
    RECORD_BYTES,
    STEP,
)

LANES = target().lanes
PAGE = 32
QUANTIZED = list(ACTIVATION_ORDER)
FORMATS = {f.name.lower(): f for f in FORMATS_BY_NAME.values()}
FENCE = 256  # bytes around what kernels write
FENCE_BYTE = 0xA5
SCRATCH_BYTES = 1 << 20
_KIND = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)
_PAGE_BYTES = mmap.PAGESIZE


class Fenced:
    """An array between fences; `check` fails when a kernel wrote beside it."""

    def __init__(self, shape: Sequence[int], dtype: Any = np.float32, fill: Any = None) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._raw = np.full(size + 2 * FENCE, FENCE_BYTE, np.uint8)
        self.array = self._raw[FENCE : FENCE + size].view(dtype).reshape(shape)
        if fill is not None:
            self.array[...] = fill

    @property
    def at(self) -> int:
        """Address of the array."""
        return self.array.ctypes.data

    def check(self) -> None:
        """Both fences are as they were."""
        assert (self._raw[:FENCE] == FENCE_BYTE).all(), "written before the buffer"
        assert (self._raw[len(self._raw) - FENCE :] == FENCE_BYTE).all(), "written past the buffer"


class LastBytes:
    """Bytes that end where readable memory ends, as the last tensor of a file may."""

    def __init__(self, data: NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        size = -(-raw.size // _PAGE_BYTES) * _PAGE_BYTES
        self._map = mmap.mmap(-1, size + _PAGE_BYTES)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(base + size, _PAGE_BYTES, 0) == 0
        self.at = base + size - raw.size
        ctypes.memmove(self.at, raw.ctypes.data, raw.size)


class Rig:
    """Calls kernels as thread 1 of 2, with a scratch area of its own between fences."""

    def __init__(self) -> None:
        self.arena = Arena()
        self._kept: list[Any] = []
        self.scratch = Fenced((SCRATCH_BYTES,), np.uint8, 0x7F)
        self.step = np.zeros(len(STEP), np.int64)
        self._counter = np.zeros(8, np.int64)
        self.set_step(scratch=self.scratch.at - SCRATCH_BYTES, scratch_bytes=SCRATCH_BYTES)
        self.set_step(num_threads=2)

    def set_step(self, **fields: int | NDArray[Any]) -> None:
        """Fill fields of the header; arrays by their address."""
        for name, value in fields.items():
            self.step[getattr(STEP, name) // 8] = (
                self.keep(value) if isinstance(value, np.ndarray) else value
            )

    def keep(self, array: NDArray[Any]) -> int:
        """Address of an array, kept alive."""
        array = np.ascontiguousarray(array)
        self._kept.append(array)
        return array.ctypes.data

    def last(self, data: NDArray[Any]) -> int:
        """Address of a copy that ends at unreadable memory."""
        self._kept.append(LastBytes(data))
        return self._kept[-1].at

    def run(
        self, kernel: str, layout: Any, count: str = "num_tokens", **fields: int | float
    ) -> None:
        """Run `file:function` with a record of `fields`; `count` is a field of the header."""
        name = f"runtime.kernels.cpu.{kernel}"
        record = np.zeros(RECORD_BYTES // 8, np.int64)
        self._counter[:] = 0
        if layout is MATMUL:
            fields = {"factor": 1.0} | fields
        every = fields | {
            "counter": self._counter.ctypes.data,
            "count_at": self.step.ctypes.data + getattr(STEP, count),
        }
        for field, value in every.items():
            at = getattr(layout, field) // 8
            if isinstance(value, float):
                record[at : at + 1].view(np.float32)[0] = value
            else:
                record[at] = value
        _KIND(jit.load([name])[name])(record.ctypes.data, self.step.ctypes.data, 1)
        self.scratch.check()

    # -- activations -----------------------------------------------------------------------------
    def buffers(
        self, tokens: int, columns: int, orders: int, *, lanes: bool, width: int = 0
    ) -> Activations:
        """An op's output buffers for `tokens` rows, `width` of them side by side, or lanes."""
        if lanes:
            whole = -(-tokens // LANES) * LANES
            return Activations.in_lanes(self.arena, whole, columns, orders, LANES)
        if width:
            return Activations.few(self.arena, tokens, columns, orders, width, LANES)
        return Activations.rows(self.arena, tokens, columns, orders)

    def read(self, at: int, shape: Sequence[int], dtype: Any = np.float32) -> NDArray[Any]:
        """A copy of the array at an address."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(ctypes.string_at(at, size), dtype).reshape(shape).copy()

    def rows_input(
        self, q: NDArray[np.int8], step: NDArray[np.float32], order: int
    ) -> dict[str, int]:
        """A matmul record's input fields: int8 (tokens, columns), scales (tokens, groups)."""
        tokens, columns = q.shape
        group = columns // step.shape[1]
        sums = step * q.reshape(tokens, -1, group).sum(axis=2, dtype=np.int32).astype(np.float32)
        return {
            "q": self.last(np.take(q, order_of(order, columns), axis=1)),
            "q_stride": columns,
            "scale": self.last(step),
            "scale_stride": 4 * step.shape[1],
            "sums": self.last(sums),
        }

    def lanes_input(self, q: NDArray[np.int8], step: NDArray[np.float32]) -> dict[str, int]:
        """The same in lanes; int8 (tokens, columns), scales (tokens, columns/32)."""
        q, step = padded(q), padded(step)
        blocks, columns = len(q) // LANES, q.shape[1]
        groups = q.reshape(len(q), -1, 16).sum(axis=2, dtype=np.int32)
        fours = q.reshape(blocks, LANES, columns // 4, 4).transpose(0, 2, 1, 3)
        return {
            "q": self.last(fours),
            "q_stride": columns,
            "scale": self.last(to_lanes(step)),
            "sums": self.last(to_lanes(groups)),
        }

    def few_input(
        self, q: NDArray[np.int8], step: NDArray[np.float32], width: int
    ) -> dict[str, int]:
        """The same with `width` tokens side by side, in the words of kernels/cpu/quantize.py."""
        missing, share = -len(q) % width, LANES // width
        q, step = np.pad(q, ((0, missing), (0, 0))), np.pad(step, ((0, missing), (0, 0)))
        blocks = len(q) // width
        groups = q.reshape(len(q), -1, 16).sum(axis=2, dtype=np.int32)
        sums = np.zeros((*groups.shape, share), np.int32)
        sums[:, :, 0] = groups
        pieces = q.reshape(blocks, width, -1, 4 * share).transpose(0, 2, 1, 3)

        def spread(x: NDArray[Any]) -> int:
            return self.last(x.reshape(blocks, width, -1, share).transpose(0, 2, 1, 3))

        return {
            "q": self.last(pieces),
            "q_stride": q.shape[1],
            "scale": spread(np.repeat(step[:, :, None], share, axis=2)),
            "sums": spread(sums),
        }


def order_of(order: int, columns: int) -> NDArray[np.int64]:
    """Which column lies where, by the words of quant/cpu/activations.py."""
    places = np.arange(columns)
    if order == NATURAL:
        return places
    if order == PAIR32:  # of each 128 the 32-groups 0, 2, 1, 3
        return places.reshape(-1, 4, 32)[:, [0, 2, 1, 3]].reshape(-1)
    assert order == PAIR16  # of each 128, then 64, the even 16-groups, then the odd ones
    parts, at = [], 0
    for size in [128] * (columns // 128) + [n for n in (64, 32) if columns % 128 & n]:
        groups = places[at : at + size].reshape(-1, 2, 16)
        parts += [groups[:, 0].reshape(-1), groups[:, 1].reshape(-1)]
        at += size
    return np.concatenate(parts)


def padded(x: NDArray[Any]) -> NDArray[Any]:
    """Whole blocks of LANES tokens: zeros behind."""
    return np.pad(x, ((0, -len(x) % LANES), (0, 0)))


def to_lanes(x: NDArray[Any]) -> NDArray[Any]:
    """(tokens, columns) -> [block][column][lane]; tokens a multiple of LANES."""
    blocks = len(x) // LANES
    return np.ascontiguousarray(x.reshape(blocks, LANES, -1).transpose(0, 2, 1))


def from_lanes(x: NDArray[Any]) -> NDArray[Any]:
    """[block][column][lane] -> (tokens, columns)."""
    return x.transpose(0, 2, 1).reshape(-1, x.shape[1])


def quantize(x: NDArray[np.float32], group: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 and a scale for each `group` columns, in plain NumPy."""
    parts = x.reshape(len(x), -1, group)
    step = np.abs(parts).max(axis=2) / np.float32(127)
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    q = np.rint(parts * inverse[:, :, None]).astype(np.int8)
    return q.reshape(x.shape), step


def dequantize(q: NDArray[np.int8], step: NDArray[np.float32]) -> NDArray[np.float64]:
    """What int8 activations stand for."""
    return q * np.repeat(step.astype(np.float64), q.shape[1] // step.shape[1], axis=1)


# Where a block's scales are: the rest of it are quants.
_SCALE_FIELDS = ("d", "m", "dmin", "scales")
# Fields that hold both: the scales' bits.
_SCALE_BITS: dict[tuple[str, str], Any] = {
    ("IQ2_XXS", "groups"): [0, 0xF0000000],
    ("IQ3_XXS", "signs"): 0xF0000000,
    ("IQ1_S", "qh"): 0x7000,
}
# Where zeros as quants are not the lowest weight: what that is, as a multiple of theirs.
_LOWEST = {
    "IQ2_XXS": -43 / 8, "IQ2_XS": -43 / 8, "IQ2_S": -43 / 8, "IQ3_XXS": -62 / 4, "IQ3_S": -15,
    "IQ1_S": 9 / 7, "IQ1_M": 9 / 7,
}  # fmt: skip


def magnitudes(fmt: Format, raw: NDArray[np.uint8], columns: int) -> NDArray[np.float64]:
    """(rows, columns): how large the terms are that a kernel adds up for each weight.

    Kernels multiply unsigned quants and take the offset or the minimum off afterwards, so a weight
    near 0 may be the difference of two large terms: |w - lowest| + |lowest|.
    """
    if fmt.block_len == 1:
        return np.abs(fmt.dequantize(raw, (len(raw), columns)).astype(np.float64))
    w = fmt.dequantize(raw, (len(raw), columns)).astype(np.float64)
    blocks = np.ascontiguousarray(raw).view(fmt.block).copy()
    for name in blocks.dtype.names or ():
        if (fmt.name, name) in _SCALE_BITS:
            blocks[name] &= np.array(_SCALE_BITS[fmt.name, name], blocks.dtype[name].base)
        elif name not in _SCALE_FIELDS:
            blocks[name] = -128 if fmt.name == "Q8_0" else 0
    lowest = fmt.dequantize(blocks.view(np.uint8), w.shape).astype(np.float64)
    lowest *= _LOWEST.get(fmt.name, 1)
    return np.abs(w - lowest) + np.abs(lowest)


class Layout:
    """Where the tokens of a step in lanes go: packed ones first, then chunks, block by block.

    Empty lanes hold a copy of a token, with its position and table.
    """

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._ends: list[int] = []
        self._tables: list[int] = []
        self._valid: list[int] = []
        self._whole = False
        self.num_packed = 0
        self.places: list[NDArray[np.int64]] = []  # of each run's tokens

    @property
    def num_blocks(self) -> int:
        """Blocks of the step."""
        return -(-len(self._positions) // LANES)

    def _add(self, start: int, tokens: int, table: NDArray[np.int32], end: int | None) -> None:
        at = len(self._positions)
        self.places.append(np.arange(at, at + tokens))
        self._positions += range(start, start + tokens)
        self._ends += range(start, start + tokens) if end is None else [end] * tokens
        self._tables += [table.ctypes.data] * tokens

    def _fill(self) -> None:
        """End the last block."""
        empty = -len(self._positions) % LANES
        self._positions += self._positions[-1:] * empty
        self._ends += self._ends[-1:] * empty
        self._tables += self._tables[-1:] * empty

    def pack(
        self, start: int, tokens: int, table: NDArray[np.int32], end: int | None = None
    ) -> None:
        """Tokens of a sequence that share blocks with others; they see to their own place, or to
        the position `end`.
        """
        assert not self._whole
        self._add(start, tokens, table, end)
        self.num_packed += tokens

    def chunk(
        self, start: int, tokens: int, table: NDArray[np.int32], end: int | None = None
    ) -> None:
        """Tokens of a sequence in blocks of their own."""
        self._close_packed()
        self._add(start, tokens, table, end)
        self._fill()
        blocks = -(-tokens // LANES)
        self._valid += [LANES] * (blocks - 1) + [tokens - (blocks - 1) * LANES]

    def _close_packed(self) -> None:
        if not self._whole:
            self._whole = True
            self._fill()
            blocks = -(-self.num_packed // LANES)
            self._valid += [min(LANES, self.num_packed - i * LANES) for i in range(blocks)]

    def into(self, rig: Rig) -> None:
        """Fill the header of a rig."""
        self._close_packed()
        rig.set_step(
            num_tokens=len(self._positions),
            num_blocks=self.num_blocks,
            num_packed=self.num_packed,
            positions=np.array(self._positions, np.int64),
            ends=np.array(self._ends, np.int64),
            tables=np.array(self._tables, np.int64),
            valid=np.array(self._valid, np.int64),
        )

    def place(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """(tokens, columns) of each run -> all slots; empty ones as the last token before them."""
        every = np.arange(len(self._positions))
        given = np.concatenate(self.places)
        source = np.searchsorted(given, every, side="right") - 1
        return np.concatenate(list(parts))[source]
