"""A step's arrays on the device: who is where in a batch, and where its pages are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..batch import PAGE_SIZE, Batch, Logits, Segment
from ..kernels.cuda.launch import TILE_TOKENS, Launch, StepAddresses
from .plan import Bucket

if TYPE_CHECKING:
    from .device import Device, Event, HostBuffer

_STAGES = 4  # uploads under way at most
_UPDATE = np.dtype([("address", "<i8"), ("page", "<i4"), ("unused", "<i4")])


@dataclass(frozen=True, slots=True)
class Layout:
    """A bucket's arrays, as offsets from the first."""

    token_ids: int
    positions: int
    ends: int
    tables: int
    out_rows: int
    tiles: int
    num_bytes: int

    @classmethod
    def of(cls, bucket: Bucket) -> "Layout":
        """Packed, so that one short copy brings them."""
        at, places = 0, []
        tokens, outputs = bucket.tokens, max(bucket.outputs, 1)
        for size in (8 * tokens, 4 * tokens, 4 * tokens, 4 * tokens, 4 * outputs):
            places.append(at)
            at += -(-size // 16) * 16
        tables, token_ids, positions, ends, out_rows = places
        return cls(token_ids, positions, ends, tables, out_rows, at, at + 16 * bucket.tiles)

    def addresses(self, base: int) -> StepAddresses:
        """Where they lie on the device."""
        return StepAddresses(
            token_ids=base + self.token_ids,
            positions=base + self.positions,
            ends=base + self.ends,
            tables=base + self.tables,
            out_rows=base + self.out_rows,
            tiles=base + self.tiles,
        )


@dataclass(slots=True)
class Placed:
    """Where a batch's tokens are among the rows of a step.

    rows: of each segment the first. outputs: the rows whose logits are wanted, in batch order.
    """

    order: list[int]  # of segments in the rows
    rows: list[int]
    outputs: list[int]
    num_singles: int
    num_tokens: int
    tiles: list[tuple[int, int, int]]
    longest: int


def place(batch: Batch, *, causal: bool, max_singles: int) -> Placed:
    """Single tokens first, whose attention is in pieces; then chunks, in pieces of tokens.

    max_singles: more of them are handled as chunks of one token.
    """
    segments, left = batch.segments, max_singles
    single = []
    for segment in segments:
        single.append(causal and segment.num_tokens == 1 and left > 0)
        left -= single[-1]
    order = sorted(range(len(segments)), key=lambda i: not single[i])
    rows, at, longest = [0] * len(segments), 0, 1
    tiles: list[tuple[int, int, int]] = []
    for i in order:
        segment = segments[i]
        rows[i], n = at, segment.num_tokens
        longest = max(longest, segment.start + n)
        if not single[i]:
            for first in range(0, n, TILE_TOKENS):
                count = min(TILE_TOKENS, n - first)
                tiles.append((at + first, count, segment.start + first))
        at += n
    outputs: list[int] = []
    for row, segment in zip(rows, segments, strict=True):
        if segment.logits is Logits.LAST:
            outputs.append(row + segment.num_tokens - 1)
        elif segment.logits is Logits.ALL:
            outputs += range(row, row + segment.num_tokens)
    return Placed(order, rows, outputs, sum(single), at, tiles, longest)


class PageTables:
    """The block tables on the device: a row of page ids for each sequence that was seen lately.

    Args:
        rows: sequences of a step at most, and those of the step before it.
        width: pages of the longest sequence.
        spare_page: of tokens that only fill up a step.
    """

    def __init__(
        self, device: "Device", base: int, *, rows: int, width: int, spare_page: int
    ) -> None:
        self._base, self._width, self._num_rows = base, width, rows
        self._rows: dict[int, int] = {}  # by sequence, the longest unseen first
        self._known: dict[int, tuple[int, NDArray[np.int32]]] = {}  # version, page ids
        self._free = list(range(rows, 0, -1))  # row 0: the spare page
        self._anonymous = -1
        self.updates: list[tuple[int, NDArray[np.int32]]] = []  # address, page ids
        device.write(base, np.full(width, spare_page, np.int32))

    @staticmethod
    def num_bytes(rows: int, width: int) -> int:
        """What `base` must have."""
        return 4 * width * (rows + 1)

    @property
    def spare(self) -> int:
        """Address of the row of tokens that only fill up."""
        return self._base

    def address(self, segment: Segment) -> int:
        """Of a segment's row; what is new in it is added to `updates`."""
        key, table = segment.sequence_id, segment.block_table
        if key < 0:  # whoever runs batches without an engine
            self._anonymous -= 1
            key = self._anonymous
        row = self._rows.pop(key, None)
        if row is None:
            row = self._free.pop() if self._free else self._evict()
        self._rows[key] = row
        at = self._base + 4 * self._width * row
        version, known = self._known.get(key, (-1, table[:0]))
        start = len(known) if version == segment.table_version and key >= 0 else 0
        if start > len(table):
            start = 0
        assert len(table) <= self._width, f"{len(table)} pages, a sequence has {self._width}"
        if start < len(table):
            new = np.ascontiguousarray(table[start:], np.int32)
            self.updates.append((at + 4 * start, new))
            self._known[key] = segment.table_version, table
        return at

    def _evict(self) -> int:
        oldest = next(iter(self._rows))
        self._known.pop(oldest, None)
        return self._rows.pop(oldest)

    def forget(self) -> None:
        """Nothing is known of what is on the device."""
        self._known.clear()


class StepArrays:
    """Brings batches to the device.

    Args:
        base: device memory of `num_bytes`, as the function of that name says.
        largest: of them what comes after the arrays of any step.
    """

    def __init__(
        self,
        device: "Device",
        base: int,
        tables: PageTables,
        num_bytes: int,
        *,
        largest: int,
        causal: bool,
    ) -> None:
        self._device, self._base, self._tables, self._causal = device, base, tables, causal
        self._num_bytes, self._largest = num_bytes, largest
        self._stages: list[tuple[HostBuffer, Event]] = [
            (device.host_buffer(num_bytes), device.event()) for _ in range(_STAGES)
        ]
        for _, event in self._stages:
            event.record()  # nothing is under way
        self._turn = 0

    @staticmethod
    def num_bytes(max_tokens: int, max_outputs: int, width: int) -> int:
        """Device memory for the largest step."""
        updates = _UPDATE.itemsize * (max_tokens + 4 * width)
        return StepArrays.largest(max_tokens, max_outputs) + updates

    @staticmethod
    def largest(max_tokens: int, max_outputs: int) -> int:
        """Of it, what the largest step's own arrays take."""
        return 20 * max_tokens + 4 * max_outputs + 16 * (2 * max_tokens + 8) + 256

    def fill(self, batch: Batch, placed: Placed, bucket: Bucket, layout: Layout) -> list[Launch]:
        """Upload; returns launches that must come before the step's."""
        self._tables.updates.clear()
        buffer, event = self._next_stage()
        self._fill(buffer.array, batch, placed, bucket, layout)
        self._device.upload(self._base, buffer, 0, layout.num_bytes)
        launches = self._update_tables(buffer, layout.num_bytes)
        event.record()
        return launches

    def extend(self, batch: Batch) -> list[Launch]:
        """Upload only what pages there are new; returns launches as `fill`."""
        self._tables.updates.clear()
        for segment in batch.segments:
            self._tables.address(segment)
        if not self._tables.updates:
            return []
        buffer, event = self._next_stage()
        launches = self._update_tables(buffer, self._largest)
        event.record()
        return launches

    def _next_stage(self) -> "tuple[HostBuffer, Event]":
        """A host buffer whose last upload is over."""
        self._turn = (self._turn + 1) % _STAGES
        buffer, event = self._stages[self._turn]
        event.wait()
        return buffer, event

    def _fill(
        self,
        host: NDArray[np.uint8],
        batch: Batch,
        placed: Placed,
        bucket: Bucket,
        layout: Layout,
    ) -> None:
        def view(at: int, count: int, kind: type) -> NDArray:
            return host[at : at + count * np.dtype(kind).itemsize].view(kind)

        tokens = bucket.tokens
        token_ids = view(layout.token_ids, tokens, np.int32)
        positions = view(layout.positions, tokens, np.int32)
        ends = view(layout.ends, tokens, np.int32)
        tables = view(layout.tables, tokens, np.int64)
        for segment, row in zip(batch.segments, placed.rows, strict=True):
            n, address = segment.num_tokens, self._tables.address(segment)
            if n == 1:
                token_ids[row] = segment.token_ids[0]
                positions[row] = ends[row] = segment.start
                tables[row] = address
                continue
            token_ids[row : row + n] = segment.token_ids
            positions[row : row + n] = np.arange(segment.start, segment.start + n)
            tables[row : row + n] = address
            ends[row : row + n] = (
                positions[row : row + n] if self._causal else segment.start + n - 1
            )
        end = placed.num_tokens
        token_ids[end:] = positions[end:] = ends[end:] = 0
        tables[end:] = self._tables.spare
        rows = view(layout.out_rows, max(bucket.outputs, 1), np.int32)
        rows[:] = 0
        rows[: len(placed.outputs)] = placed.outputs
        tiles = view(layout.tiles, 4 * bucket.tiles, np.int32).reshape(-1, 4)
        tiles[:] = 0
        if placed.tiles:
            tiles[: len(placed.tiles), :3] = placed.tiles

    def _update_tables(self, buffer: "HostBuffer", at: int) -> list[Launch]:
        """Page ids that the device doesn't have yet: one launch puts them to their places."""
        updates = self._tables.updates
        if not updates:
            return []
        at = -(-at // 16) * 16
        room = (self._num_bytes - at) // _UPDATE.itemsize
        count = sum(len(pages) for _, pages in updates)
        if count > room:  # the first step of many long sequences
            for address, pages in updates:
                self._device.write(address, pages)
            return []
        listed = buffer.array[at : at + count * _UPDATE.itemsize].view(_UPDATE)
        first = 0
        for address, pages in updates:
            n = len(pages)
            listed["address"][first : first + n] = address + 4 * np.arange(n)
            listed["page"][first : first + n] = pages
            first += n
        self._device.upload(self._base + at, buffer, at, count * _UPDATE.itemsize)
        return [Launch("tables:put_pages", (-(-count // 128), 1, 1), (self._base + at, count))]


def next_batch(batch: Batch, kept: Sequence[int]) -> Batch:
    """The batch one token further of those segments; the token ids are for the device to write."""
    segments = []
    for i in kept:
        s = batch.segments[i]
        segments.append(
            Segment(
                s.token_ids[-1:],
                s.start + s.num_tokens,
                s.block_table,
                Logits.LAST,
                s.adapters,
                sequence_id=s.sequence_id,
                table_version=s.table_version,
                edits=s.edits,
            )
        )
    return Batch(tuple(segments))


def covers(segment: Segment) -> bool:
    """Whether its pages hold the position after it, too."""
    return len(segment.block_table) * PAGE_SIZE > segment.start + segment.num_tokens
