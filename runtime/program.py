"""The op program: a model's forward pass as flat records, and how a batch is run through it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .adapters import AdaptedRecords, active_adapters
from .arena import Arena
from .batch import PAGE_SIZE, Batch
from .cache import KVCache
from .hidden import HiddenStates
from .kernels.records import RECORD_BYTES, STEP
from .rope_table import RopeTables
from .step import StepArrays
from .team import Team

if TYPE_CHECKING:
    from .adapters import AdapterScales, Delta


@dataclass(frozen=True)
class Op:
    """One record before it has addresses: the kernel's name, its layout and its fields."""

    kernel: str
    layout: Any
    count: str  # the step field that holds the number of tokens it handles
    fields: dict[str, Any]
    barrier: bool = True
    deltas: "tuple[Delta, ...]" = ()  # what adapters add to its result


class _Records:
    """An op list as memory that the kernels read."""

    def __init__(
        self,
        ops: Sequence[Op],
        addresses: dict[str, int],
        step: NDArray[np.int64],
        num_threads: int,
    ) -> None:
        self.num_ops = len(ops)
        line = -(-num_threads // 8) * 8  # whole cache lines; matmuls count for each thread
        self.counters = np.zeros((len(ops), line), np.int64)
        self.memory = np.zeros((len(ops), RECORD_BYTES // 8), np.int64)
        self.address = self.memory.ctypes.data
        for i, op in enumerate(ops):
            record, layout = self.memory[i], op.layout
            record[layout.function // 8] = addresses[op.kernel]
            record[layout.barrier // 8] = int(op.barrier or i == len(ops) - 1)
            record[layout.counter // 8] = self.counters.ctypes.data + 8 * line * i
            record[layout.count_at // 8] = step.ctypes.data + getattr(STEP, op.count)
            for name, value in op.fields.items():
                at = getattr(layout, name) // 8
                if isinstance(value, float):
                    record[at : at + 1].view(np.float32)[0] = value
                else:
                    record[at] = value


LANES = 0  # the key of the body in lanes
_FEW_TOKENS = 8  # of a chunk, that cost less in rows than as a block in lanes


class Program:
    """A model that can run batches. Not thread-safe: one batch at a time.

    Args:
        bodies: the ops up to the last hidden state, in layouts of rows by the most tokens that they
            take, and in lanes (key LANES) for more and for chunks.
        tails: from there to so many rows of logits at most, by that number; by its negative where
            the hidden state is in lanes. Encoders have none.
        logits: float32 (most rows of a step, vocab_size): where the ops put the logits.
        hidden: where the bodies put the last hidden state.
        states: float32 (tokens, dim): where they find that of the layers before, if their first is
            not the model's.
        causal: False: a token sees its whole segment, which must be all of a text.
        scales: the adapters' of each token, if there are any.
    """

    def __init__(
        self,
        *,
        bodies: Mapping[int, Sequence[Op]],
        tails: Mapping[int, Sequence[Op]],
        step: NDArray[np.int64],
        addresses: dict[str, int],
        arena: Arena,
        cache: KVCache,
        ropes: RopeTables,
        team: Team,
        num_lanes: int,
        logits: NDArray[np.float32],
        hidden: HiddenStates,
        states: NDArray[np.float32] | None = None,
        causal: bool = True,
        scales: "AdapterScales | None" = None,
        max_tokens: int,
        scratch_bytes: int,
    ) -> None:
        self.num_pages, self.max_tokens = cache.num_pages, max_tokens
        self.max_logits = len(logits)
        self._cache, self._arena, self._ropes, self._team = cache, arena, ropes, team
        self._logits, self._hidden, self._states = logits, hidden, states
        self._as_rows = True  # how the last step was laid out
        self._tail: Callable[[int], _Records] = {}.__getitem__  # its records, by limit
        self._limits = sorted({abs(limit) for limit in (*bodies, *tails) if limit != LANES})
        self._has_lanes, self._has_rows = LANES in bodies, any(limit != LANES for limit in bodies)

        def records(ops: Sequence[Op]) -> _Records:
            return _Records(ops, addresses, step, team.num_threads)

        self._bodies = {key: records(ops) for key, ops in bodies.items()}
        self._tails = {key: records(ops) for key, ops in tails.items()}
        self._adapted = None
        if scales is not None:
            self._adapted = AdaptedRecords(records, bodies), AdaptedRecords(records, tails)
        self._arrays = StepArrays(
            step,
            max_tokens=max_tokens,
            max_logits=self.max_logits,
            lanes=num_lanes,
            causal=causal,
            scales=scales,
        )
        self.causal = causal
        scratch = arena.allocate(scratch_bytes * team.num_threads)
        self._step = step
        for name, value in (
            ("scratch", scratch),
            ("scratch_bytes", scratch_bytes),
        ):
            step[getattr(STEP, name) // 8] = value

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run a batch: write its tokens' K and V into their pages, return the logits asked for.

        Returns:
            float32 (rows, vocab_size), rows in batch order; a view, valid until the next run.
        """
        assert self._bodies, "the program was closed"
        count = batch.num_tokens
        assert 0 < count <= self.max_tokens, f"{count} tokens in a step of {self.max_tokens}"
        tables = self._check(batch)  # some may be copies, which must live as long as the step
        as_rows = self._as_rows = self._in_rows(batch, count)
        fill = self._arrays.fill_rows if as_rows else self._arrays.fill_lanes
        num_outputs = fill(batch, [table.ctypes.data for table in tables])
        body, tail = self._bodies.__getitem__, self._tails.__getitem__
        if self._adapted is not None and (active := active_adapters(batch)):
            body, tail = (partial(records.of, active) for records in self._adapted)
        self._run(body(self._limit(count) if as_rows else LANES))
        self._tail = tail
        return self._give(num_outputs)

    def _give(self, num_outputs: int) -> NDArray[np.float32]:
        """The logits of the tokens that are wanted of the last step."""
        assert self.causal or not num_outputs, "an encoder gives hidden states only"
        if num_outputs:
            limit = self._limit(num_outputs)
            self._run(self._tail(limit if self._as_rows else -limit))
        return self._logits[:num_outputs]

    def logits_of(self, segment: int, tokens: slice = slice(None)) -> NDArray[np.float32]:
        """Logits of tokens of a segment that was HIDDEN in the last run: max_logits at a time.

        Returns:
            float32 (of its tokens those that `tokens` selects, vocab_size); a view, valid until
            the next run or call.
        """
        assert self._bodies, "the program was closed"
        return self._give(self._arrays.ask(self._arrays.hidden_slots[segment][tokens]))

    def hidden_states(self, segment: int, tokens: slice = slice(None)) -> NDArray[np.float32]:
        """What the last run left of a segment of its batch whose `logits` was HIDDEN.

        Returns:
            float32 (of its tokens those that `tokens` selects, dim): the last hidden states after
            the output norm; a copy.
        """
        assert self._bodies, "the program was closed"
        slots = self._arrays.hidden_slots[segment][tokens]
        return self._hidden.read(slots, lanes=not self._as_rows)

    def run_hidden(self, batch: Batch, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """`run` from the states that the layers before gave, float32 (tokens, dim), in batch order.

        Token ids don't matter: the states stand in the place of embeddings, by their rows.
        """
        assert self._states is not None, "the first layer is the model's first"
        self._states[: len(states)] = states
        rows, ends = np.arange(len(states), dtype=np.int32), 0
        segments = []
        for segment in batch.segments:
            first, ends = ends, ends + segment.num_tokens
            segments.append(replace(segment, token_ids=rows[first:ends]))
        return self.run(Batch(tuple(segments)))

    def last_states(self) -> NDArray[np.float32]:
        """What `hidden_states` gives of all segments of the last run, which were all HIDDEN."""
        slots = list(chain.from_iterable(self._arrays.hidden_slots.values()))
        return self._hidden.read(slots, lanes=not self._as_rows)

    def _in_rows(self, batch: Batch, count: int) -> bool:
        """Whether a step is laid out in rows: few tokens, or single ones of many sequences."""
        if not self._has_lanes or (self._has_rows and count <= _FEW_TOKENS):
            return True
        if not self._has_rows:
            return False
        return count == len(batch.segments) and count <= self._limits[-1]

    def _limit(self, count: int) -> int:
        return next(limit for limit in self._limits if count <= limit)

    def _run(self, work: _Records) -> None:
        work.counters.fill(0)
        self._team.run(work.address, work.num_ops)

    def _check(self, batch: Batch) -> list[NDArray[np.int32]]:
        """Block tables as int32 arrays; also makes the rope tables long enough."""
        tables, longest = [], 0
        for segment in batch.segments:
            end = segment.start + segment.num_tokens
            table = np.ascontiguousarray(segment.block_table, np.int32)
            assert self.causal or segment.start == 0, "an encoder's text runs in one step"
            assert segment.start >= 0 and len(table) * PAGE_SIZE >= end, "block table too short"
            assert not len(table) or (0 <= table.min() and table.max() < self.num_pages), (
                "page id out of range"
            )
            tables.append(table)
            longest = max(longest, end)
        self._ropes.reach(longest)
        return tables

    def lower_priority(self, nice: int) -> None:
        """Of the threads beside the caller's; runtime/priority.py."""
        self._team.lower_priority(nice)

    @property
    def waiting_share(self) -> float:
        """The share of all steps' time that threads waited for the last; runtime/team.py."""
        return self._team.waited_s / max(self._team.ran_s, 1e-9)

    @property
    def page_nbytes(self) -> int:
        """Bytes of a KV page, all layers."""
        return self._cache.page_nbytes

    def copy_page(self, source: int, target: int) -> None:
        """Copy a KV page, between steps."""
        self._cache.copy_page(source, target)

    def read_page(self, page: int) -> bytes:
        """A KV page's bytes, for write_page of a program of the same model and settings."""
        return self._cache.read_page(page)

    def write_page(self, page: int, data: bytes) -> None:
        """Put back what read_page gave."""
        self._cache.write_page(page, data)

    def close(self) -> None:
        """End the threads and let the memory go; the program can't run any more."""
        self._team.close()
        # The arena keeps views of the file: its map goes with the last of them.
        self._bodies.clear()
        self._tails.clear()
        self._adapted = None
        self._arena.clear()
        self._cache.close()
