"""A step's flat arrays, as kernels read them: who is where in the batch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .batch import Batch, Logits
from .kernels.records import STEP

if TYPE_CHECKING:
    from .adapters import AdapterScales

Tables = Sequence[int]  # the address of each segment's block table

_FEW = 4  # a segment of at most so many tokens is packed whatever it costs
_OWN_BLOCKS = 8  # partly filled blocks of one sequence in a step; what is more is packed


class StepArrays:
    """The arrays of the step's header, for steps of at most `max_tokens` tokens.

    In rows a token has the slot of its number. In lanes there are first the packed tokens, then
    blocks of consecutive positions of one sequence; empty lanes repeat the token before them.

    Args:
        causal: False: a token sees its segment, which is a whole text, to the end.
        scales: the adapters' of each token, if there are any; those of empty lanes don't matter.
    """

    def __init__(
        self,
        step: NDArray[np.int64],
        *,
        max_tokens: int,
        max_logits: int,
        lanes: int,
        causal: bool = True,
        scales: "AdapterScales | None" = None,
    ) -> None:
        self._step, self._lanes, self._scales = step, lanes, scales
        self.num_slots = slots_of(max_tokens, lanes)
        self._token_ids = np.zeros(self.num_slots, np.int32)
        self._positions = np.zeros(self.num_slots, np.int64)
        # A causal model's tokens see to their own position.
        self._ends = self._positions if causal else np.zeros(self.num_slots, np.int64)
        self._tables = np.zeros(self.num_slots, np.int64)
        self._valid = np.zeros(self.num_slots // lanes, np.int64)
        self._out_rows = np.zeros(max_logits + lanes, np.int64)
        self.max_logits = max_logits
        self.hidden_slots: dict[int, Sequence[int]] = {}  # of the last step's HIDDEN segments
        for name, array in (
            ("token_ids", self._token_ids),
            ("positions", self._positions),
            ("ends", self._ends),
            ("tables", self._tables),
            ("valid", self._valid),
            ("out_rows", self._out_rows),
        ):
            step[getattr(STEP, name) // 8] = array.ctypes.data

    def fill_rows(self, batch: Batch, tables: Tables) -> int:
        """One token after the other; returns how many rows of logits are wanted."""
        at, wanted = 0, []
        self.hidden_slots.clear()
        for number, (segment, table) in enumerate(zip(batch.segments, tables, strict=True)):
            n = segment.num_tokens
            self._put(at, segment.token_ids, segment.start, table)
            self._see(at, n, segment.start + n - 1)
            self._adapt(at, n, segment.adapters)
            if segment.logits is Logits.HIDDEN:
                self.hidden_slots[number] = range(at, at + n)
            else:
                wanted += _wanted(segment.logits, range(at, at + n))
            at += n
        return self._finish(at, 0, at, wanted)

    def fill_lanes(self, batch: Batch, tables: Tables) -> int:
        """Packed tokens, then whole blocks; returns how many rows of logits are wanted."""
        lanes, segments = self._lanes, batch.segments
        packed = self._choose_packed([s.num_tokens for s in segments])
        packed_at, num_packed = 0, sum(packed)
        at = -(-num_packed // lanes) * lanes
        self._valid[: at // lanes] = lanes
        if num_packed % lanes:
            self._valid[at // lanes - 1] = num_packed % lanes
        wanted: list[int] = []
        self.hidden_slots.clear()
        for number, (segment, table, tail) in enumerate(zip(segments, tables, packed, strict=True)):
            n, ids, start = segment.num_tokens, segment.token_ids, segment.start
            here = n - tail
            slots = [*range(at, at + here), *range(packed_at, packed_at + tail)]
            if segment.logits is Logits.HIDDEN:
                self.hidden_slots[number] = slots
            else:
                wanted += _wanted(segment.logits, slots)
            if here:
                self._put(at, ids[:here], start, table)
                self._see(at, here, start + n - 1)
                self._adapt(at, here, segment.adapters)
                blocks = -(-here // lanes)
                end = at + blocks * lanes
                self._repeat(at + here, end)
                self._valid[at // lanes : end // lanes] = lanes
                self._valid[end // lanes - 1] = here - (blocks - 1) * lanes
                at = end
            if tail:
                self._put(packed_at, ids[here:], start + here, table)
                self._see(packed_at, tail, start + n - 1)
                self._adapt(packed_at, tail, segment.adapters)
                packed_at += tail
        self._repeat(num_packed, -(-num_packed // lanes) * lanes)
        return self._finish(at, num_packed, at // lanes, wanted)

    def ask(self, wanted: Sequence[int]) -> int:
        """Want the logits of other slots of the step that was filled; returns how many."""
        assert len(wanted) <= self.max_logits, (
            f"{len(wanted)} rows of logits, at most {self.max_logits} a step"
        )
        self._out_rows[: len(wanted)] = wanted
        if self._scales is not None:
            self._scales.take_outputs(wanted)
        self._step[STEP.num_outputs // 8] = len(wanted)
        return len(wanted)

    def _choose_packed(self, counts: list[int]) -> list[int]:
        """How many tokens of each segment, from its end, are packed.

        A packed token costs a lane, but its attention reads the pages for it alone: single tokens
        are packed, a chunk's tail where it fills a block that is there anyway.
        """
        lanes = self._lanes
        packed = [n if n <= _FEW else 0 for n in counts]
        total, own = sum(packed), 0
        for i, n in enumerate(counts):
            tail = n % lanes
            if n <= _FEW or not tail:
                continue
            if total % lanes and total % lanes + tail <= lanes:
                packed[i] = tail
            elif own < _OWN_BLOCKS:
                own += 1
                continue
            else:
                packed[i] = tail
            total += tail
        return packed

    def _put(self, at: int, ids: NDArray[np.int32], start: int, table: int) -> None:
        n = len(ids)
        if n == 1:  # decode: cheaper than slices
            self._token_ids[at], self._positions[at], self._tables[at] = ids[0], start, table
            return
        self._token_ids[at : at + n] = ids
        self._positions[at : at + n] = np.arange(start, start + n)
        self._tables[at : at + n] = table

    def _see(self, at: int, n: int, end: int) -> None:
        """The last position that `n` tokens see, where that isn't their own."""
        if self._ends is not self._positions:
            self._ends[at : at + n] = end

    def _adapt(self, at: int, n: int, scales: Sequence[float]) -> None:
        """The adapters' scales of `n` tokens."""
        if self._scales is not None:
            self._scales.put(at, at + n, scales)

    def _repeat(self, first: int, end: int) -> None:
        """Empty lanes do the work of the token before them, and nobody reads it."""
        if first < end:
            for array in (self._token_ids, self._positions, self._ends, self._tables):
                array[first:end] = array[first - 1]

    def _finish(self, tokens: int, packed: int, blocks: int, wanted: Sequence[int]) -> int:
        step = self._step
        step[STEP.num_tokens // 8] = tokens
        step[STEP.num_packed // 8] = packed
        step[STEP.num_blocks // 8] = blocks
        return self.ask(wanted)


def slots_of(max_tokens: int, lanes: int) -> int:
    """Slots of a step: tokens, the packed block that isn't full, and the others that aren't."""
    return (-(-max_tokens // lanes) + 1 + _OWN_BLOCKS) * lanes


def _wanted(which: Logits, slots: Sequence[int]) -> list[int]:
    if which is Logits.NONE:
        return []
    return list(slots) if which is Logits.ALL else [slots[-1]]
