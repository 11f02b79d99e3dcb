"""The op program: a model's forward pass as flat records, and how a batch is run through it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arena import Arena
from .batch import PAGE_SIZE, Batch, Logits
from .cache import KVCache
from .kernels.records import MAX_ROWS, RECORD_BYTES, STEP
from .rope_table import RopeTables
from .team import Team


@dataclass(frozen=True)
class Op:
    """One record before it has addresses: the kernel's name, its layout and its fields."""

    kernel: str
    layout: Any
    count: str  # the step field that holds the number of tokens it handles
    fields: dict[str, int | float]
    barrier: bool = True


@dataclass(frozen=True)
class OpList:
    """Ops up to the last hidden state (`body`), then those from there to logits (`tail`)."""

    body: Sequence[Op]
    tail: Sequence[Op] = field(default_factory=tuple)


class _Records:
    """An op list as memory that the kernels read."""

    def __init__(
        self, ops: OpList, addresses: dict[str, int], step: NDArray[np.int64], num_threads: int
    ) -> None:
        every = [*ops.body, *ops.tail]
        self.num_body, self.num_all = len(ops.body), len(every)
        line = -(-num_threads // 8) * 8  # whole cache lines; matmuls count for each thread
        self.counters = np.zeros((len(every), line), np.int64)
        self.memory = np.zeros((len(every), RECORD_BYTES // 8), np.int64)
        self.address = self.memory.ctypes.data
        for i, op in enumerate(every):
            record, layout = self.memory[i], op.layout
            record[layout.function // 8] = addresses[op.kernel]
            record[layout.barrier // 8] = int(
                op.barrier or i in (len(ops.body) - 1, len(every) - 1)
            )
            record[layout.counter // 8] = self.counters.ctypes.data + 8 * line * i
            record[layout.count_at // 8] = step.ctypes.data + getattr(STEP, op.count)
            for name, value in op.fields.items():
                at = getattr(layout, name) // 8
                if isinstance(value, float):
                    record[at : at + 1].view(np.float32)[0] = value
                else:
                    record[at] = value


class Program:
    """A model that can run batches. Not thread-safe: one batch at a time.

    Args:
        rows: the ops for at most MAX_ROWS tokens.
        lanes: for more, ending in at most MAX_ROWS rows of logits.
        lanes_many: for more, ending in any number of logits.
        logits: float32 (most rows of a step, vocab_size): where the ops put the logits.
    """

    def __init__(
        self,
        *,
        rows: OpList,
        lanes: OpList,
        lanes_many: OpList,
        step: NDArray[np.int64],
        addresses: dict[str, int],
        arena: Arena,
        cache: KVCache,
        ropes: RopeTables,
        team: Team,
        num_lanes: int,
        logits: NDArray[np.float32],
        max_tokens: int,
        scratch_bytes: int,
        final_softcap: float = 0.0,
    ) -> None:
        self.num_pages, self.max_tokens = cache.num_pages, max_tokens
        self.max_logits = len(logits)
        self._cache, self._arena, self._ropes, self._team = cache, arena, ropes, team
        self._logits, self._lanes, self._softcap = logits, num_lanes, final_softcap
        self._records = {
            name: _Records(ops, addresses, step, team.num_threads)
            for name, ops in (("rows", rows), ("lanes", lanes), ("lanes_many", lanes_many))
        }
        # Blocks: every segment of a step may leave one partly empty.
        slots = (max_tokens + num_lanes) * 2 + MAX_ROWS * num_lanes
        self._token_ids = np.zeros(slots, np.int32)
        self._positions = np.zeros(slots, np.int64)
        self._tables = np.zeros(slots, np.int64)
        self._valid = np.zeros(slots, np.int64)
        self._out_rows = np.zeros(self.max_logits + num_lanes, np.int64)
        scratch = arena.allocate(scratch_bytes * team.num_threads)
        self._step = step
        for name, value in (
            ("scratch", scratch),
            ("scratch_bytes", scratch_bytes),
            ("token_ids", self._token_ids.ctypes.data),
            ("positions", self._positions.ctypes.data),
            ("tables", self._tables.ctypes.data),
            ("valid", self._valid.ctypes.data),
            ("out_rows", self._out_rows.ctypes.data),
        ):
            step[getattr(STEP, name) // 8] = value

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run a batch: write its tokens' K and V into their pages, return the logits asked for.

        Returns:
            float32 (rows, vocab_size), rows in batch order; a view, valid until the next run.
        """
        assert self._records, "the program was closed"
        count = batch.num_tokens
        assert 0 < count <= self.max_tokens, f"{count} tokens in a step of {self.max_tokens}"
        tables = self._check(batch)
        as_rows = count <= MAX_ROWS
        num_outputs = self._fill_rows(batch, tables) if as_rows else self._fill_lanes(batch, tables)
        assert num_outputs <= self.max_logits, f"{num_outputs} logits, at most {self.max_logits}"
        step = self._step
        step[STEP.num_outputs // 8] = num_outputs
        name = "rows" if as_rows else "lanes" if num_outputs <= MAX_ROWS else "lanes_many"
        work = self._records[name]
        work.counters.fill(0)
        num_ops = work.num_all if num_outputs else work.num_body
        self._team.run(work.address, num_ops)
        result = self._logits[:num_outputs]
        if name == "lanes_many" and self._softcap:
            np.multiply(np.tanh(result / self._softcap), self._softcap, out=result)
        return result

    def _check(self, batch: Batch) -> list[NDArray[np.int32]]:
        """Block tables as int32 arrays; also makes the rope tables long enough."""
        tables, longest = [], 0
        for segment in batch.segments:
            end = segment.start + segment.num_tokens
            table = np.ascontiguousarray(segment.block_table, np.int32)
            assert segment.start >= 0 and len(table) * PAGE_SIZE >= end, "block table too short"
            assert not len(table) or (0 <= table.min() and table.max() < self.num_pages), (
                "page id out of range"
            )
            tables.append(table)
            longest = max(longest, end)
        self._ropes.reach(longest)
        return tables

    def _fill_rows(self, batch: Batch, tables: list[NDArray[np.int32]]) -> int:
        at = outputs = 0
        for segment, table in zip(batch.segments, tables, strict=True):
            n = segment.num_tokens
            self._token_ids[at : at + n] = segment.token_ids
            self._positions[at : at + n] = np.arange(segment.start, segment.start + n)
            self._tables[at : at + n] = table.ctypes.data
            outputs = self._want(segment.logits, at, n, outputs)
            at += n
        self._step[STEP.num_tokens // 8] = at
        return outputs

    def _fill_lanes(self, batch: Batch, tables: list[NDArray[np.int32]]) -> int:
        """Each segment starts a block; a block's empty lanes repeat its last token."""
        lanes = self._lanes
        at = outputs = 0
        for segment, table in zip(batch.segments, tables, strict=True):
            n = segment.num_tokens
            blocks = -(-n // lanes)
            end = at + blocks * lanes
            self._token_ids[at : at + n] = segment.token_ids
            self._token_ids[at + n : end] = segment.token_ids[-1]
            self._positions[at:end] = np.minimum(
                np.arange(segment.start, segment.start + blocks * lanes), segment.start + n - 1
            )
            first = at // lanes
            self._tables[first : first + blocks] = table.ctypes.data
            self._valid[first : first + blocks] = lanes
            self._valid[first + blocks - 1] = n - (blocks - 1) * lanes
            outputs = self._want(segment.logits, at, n, outputs)
            at = end
        self._step[STEP.num_tokens // 8] = at
        self._step[STEP.num_blocks // 8] = at // lanes
        return outputs

    def _want(self, which: Logits, at: int, n: int, outputs: int) -> int:
        if which is Logits.NONE:
            return outputs
        first = at if which is Logits.ALL else at + n - 1
        wanted = at + n - first
        assert outputs + wanted <= self.max_logits, "more logits than a step returns"
        self._out_rows[outputs : outputs + wanted] = np.arange(first, at + n)
        return outputs + wanted

    def close(self) -> None:
        """End the threads and let the memory go; the program can't run any more."""
        self._team.close()
        # The arena keeps views of the file: its map goes with the last of them.
        self._records.clear()
        self._arena.clear()
        self._cache.close()
