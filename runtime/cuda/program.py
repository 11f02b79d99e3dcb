"""DeviceProgram: a model on one GPU that runs batches, and runs ahead of them.

A step is one upload, one graph (or, for chunks, a list of launches) and one download of the best
candidates of each row. When all is given to the device the next step is, too, with tokens that the
device guesses: so the device works while the host samples. `Runs` says what may be done so.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..batch import PAGE_SIZE, Batch, Logits, Segment
from ..candidates import CandidateRows
from ..kernels.cuda.launch import Launch, Work
from ..kernels.cuda.launches.attention import choose_splits
from ..program import Op
from .edits import edits_of
from .graphs import Graphs
from .plan import Bucket, Modes, Planner, fill_up_singles, fill_up_tiles
from .steps import Layout, PageTables, Placed, StepArrays, covers, next_batch, place

if TYPE_CHECKING:
    from .arena import DeviceArena
    from .cache import DeviceKVCache
    from .device import Device, Event
    from .hidden import DeviceHiddenStates
    from .sampling import DeviceSampling

_MOST = 64  # kept: graphs of steps that follow others, graphs of others, plans of chunks


@dataclass(slots=True)
class Flight:
    """A step that was given to the device."""

    batch: Batch
    placed: Placed
    bucket: Bucket
    arrived: "Event"  # its candidates are on the host
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # guessed

    @property
    def side(self) -> int:
        """Where its logits are."""
        return self.bucket.side


@dataclass(frozen=True, slots=True)
class Guesses:
    """What a step's tokens are chosen from: a batch, in a flight, and its segments that go on.

    rows: of each of those the row of logits.
    """

    batch: Batch
    flight: Flight
    kept: list[int]
    rows: list[int]


class DeviceProgram:
    """Has the interface of runtime.program.Program. Not thread-safe: one batch at a time.

    Args:
        body: the ops up to the last hidden state. tails: from there to logits, on either side;
            encoders have none.
        step_base: where a step's arrays lie. states: the hidden states of the layers before, if the
            first is not among its own, else 0.
        max_tokens: of a step. max_singles: of them single ones whose attention is in pieces, so
            that singles times pieces are at most max_pieces. max_logits: rows of logits.
        num_heads: of queries, and of keys.
        owned: closing the program closes the device.
    """

    gives_candidates = True
    waiting_share = 0.0

    def __init__(
        self,
        device: "Device",
        arena: "DeviceArena",
        cache: "DeviceKVCache",
        *,
        body: Sequence[Op],
        tails: Sequence[Sequence[Op]],
        planner: Planner,
        modes: Modes,
        tables: PageTables,
        arrays: StepArrays,
        step_base: int,
        sampling: "DeviceSampling | None",
        hidden: "DeviceHiddenStates",
        states: int,
        num_heads: tuple[int, int],
        max_tokens: int,
        max_singles: int,
        max_pieces: int,
        max_logits: int,
        causal: bool,
        owned: bool,
    ) -> None:
        self.num_pages, self.max_tokens, self.max_logits = cache.num_pages, max_tokens, max_logits
        self.causal, self.device, self._owned = causal, device, owned
        self._arena, self._cache, self._hidden = arena, cache, hidden
        self._body, self._tails, self._planner, self._modes = body, tails, planner, modes
        self._tables, self._arrays, self._step_base = tables, arrays, step_base
        self._sampling, self._num_heads, self._states = sampling, num_heads, states
        self._max_singles, self._max_pieces = max_singles, max_pieces
        self._graphs, self._further = Graphs(device, _MOST), Graphs(device, _MOST)
        self._plans: OrderedDict[Bucket, list[Work]] = OrderedDict()
        self._side = 0
        self._arrivals = device.event(), device.event()
        self._ahead: Flight | None = None
        self._last: Flight | None = None
        self._closed = False

    # -- batches ---------------------------------------------------------------------------------
    def run(self, batch: Batch) -> CandidateRows:
        """Run a batch: write its tokens' K and V into their pages, return the rows asked for.

        Returns:
            Rows in batch order, valid until the next run.
        """
        assert not self._closed, "the program was closed"
        count = batch.num_tokens
        assert 0 < count <= self.max_tokens, f"{count} tokens in a step of {self.max_tokens}"
        try:
            return self._run(batch)
        except BaseException:
            self._forget()
            raise

    def _run(self, batch: Batch) -> CandidateRows:
        ahead, self._ahead = self._ahead, None
        kept = self._follows(batch, ahead)
        if ahead is not None and kept is not None:
            rows = self._finish(batch, ahead, kept)
            if all(
                ahead.tokens[ahead.placed.rows[i]] == segment.token_ids[0]
                for i, segment in zip(kept, batch.segments, strict=True)
            ):
                return rows
            self._ahead = None  # a guess was wrong
        self._check(batch)
        flight = self._start(batch)
        return self._finish(batch, flight, list(range(len(flight.placed.outputs))))

    def _forget(self) -> None:
        """After an error nothing is known of what the device has: a copy or launch may be lost."""
        self._ahead = None
        self._tables.forget()
        if self._sampling is not None:
            self._sampling.forget()

    def _finish(self, batch: Batch, flight: Flight, kept: list[int]) -> CandidateRows:
        """Start what should follow, then wait for a batch; kept: its rows in that step."""
        self._last = flight
        if self._sampling is None:
            return _no_rows()
        self._ahead = self._run_ahead(batch, kept, flight)
        flight.arrived.wait()
        return self._sampling.rows(flight.side, kept)

    def _check(self, batch: Batch) -> None:
        for segment in batch.segments:
            table = segment.block_table
            end = segment.start + segment.num_tokens
            assert self.causal or segment.start == 0, "an encoder's text runs in one step"
            assert segment.start >= 0 and len(table) * PAGE_SIZE >= end, "block table too short"
            assert not len(table) or (0 <= table.min() and table.max() < self.num_pages), (
                "page id out of range"
            )

    def _start(self, batch: Batch, guesses: Guesses | None = None) -> Flight:
        """Give a batch to the device; guesses: its tokens are for the device to choose."""
        placed = place(batch, causal=self.causal, max_singles=self._max_singles)
        outputs = len(placed.outputs)
        assert outputs <= self.max_logits, f"{outputs} rows of logits, at most {self.max_logits}"
        self._side ^= 1
        bucket = self._bucket(placed, self._side)
        layout = Layout.of(bucket)
        flight = Flight(batch, placed, bucket, self._arrivals[self._side])
        sampling, edits = self._sampling, edits_of(batch)
        if sampling is None or not outputs:
            self._give(self._arrays.fill(batch, placed, bucket, layout))
            self._launch(bucket)
            flight.arrived.record()
            return flight
        further = guesses is not None and self._is_further(placed, bucket, guesses)
        if further:  # the device makes the step's arrays of those that are there
            self._give(self._arrays.extend(batch))
        else:
            self._give(self._arrays.fill(batch, placed, bucket, layout))
        if guesses is None:
            self._launch(bucket)
        else:
            count = sampling.list_guesses(guesses.batch, guesses.kept, guesses.rows, placed.rows)
            step = layout.addresses(self._step_base)
            choice = sampling.choose(guesses.flight.bucket.side, count, step, further=further)
            if further:
                self._launch_further(bucket, choice, sampling.select(self._side, outputs, edits))
            else:
                self._give(choice)
                self._launch(bucket)
        if not further:
            self._give(sampling.select(self._side, outputs, edits))
        guessed = 0 if guesses is None else placed.num_tokens
        flight.tokens = sampling.fetch(self._side, outputs, guessed, flight.arrived)
        return flight

    def _give(self, work: Sequence[Work]) -> None:
        if work:
            self.device.run(work)

    def _is_further(self, placed: Placed, bucket: Bucket, guesses: "Guesses") -> bool:
        """Whether a step is the one before it with all positions one further."""
        before = guesses.flight
        return (
            bucket.is_decode
            and replace(bucket, side=0) == replace(before.bucket, side=0)
            and len(guesses.kept) == len(before.batch.segments)
            and placed.rows == before.placed.rows
            and placed.outputs == before.placed.outputs
            and guesses.rows == list(range(len(guesses.rows)))
        )

    def _bucket(self, placed: Placed, side: int) -> Bucket:
        outputs = len(placed.outputs)
        if placed.tiles:
            # Those beyond the single tokens are the chunks' first: done twice, with equal results.
            singles = min(fill_up_singles(placed.num_singles), placed.num_tokens)
            tiles = fill_up_tiles(len(placed.tiles))
        else:
            singles, tiles = self._modes.fill_up(placed.num_tokens), 0
        return Bucket(
            tokens=self._modes.fill_up(placed.num_tokens),
            singles=singles,
            splits=self._splits(max(singles, 1), placed.longest),
            tiles=tiles,
            outputs=self._modes.fill_up(outputs) if outputs else 0,
            side=side if outputs else 0,
        )

    def _splits(self, singles: int, longest: int) -> int:
        wanted = choose_splits(singles, longest, *self._num_heads)
        return max(1, min(wanted, self._max_pieces // singles))

    def _launch_further(
        self, bucket: Bucket, choice: Sequence[Work], after: Sequence[Work]
    ) -> None:
        """The same with the choice of its tokens before it, and the selection of others after."""
        of = bucket, tuple(choice), tuple(after)
        self._further.launch(of, lambda: [*choice, *self._plan(bucket), *after])

    def _launch(self, bucket: Bucket) -> None:
        """The body and tail of a step."""
        if bucket.is_decode:
            self._graphs.launch(bucket, lambda: self._plan(bucket))
            return
        if bucket not in self._plans:
            self._plans[bucket] = self._plan(bucket)
            if len(self._plans) > _MOST:
                self._plans.popitem(last=False)
        self._plans.move_to_end(bucket)
        self.device.run(self._plans[bucket])

    def _plan(self, bucket: Bucket) -> list[Work]:
        addresses = Layout.of(bucket).addresses(self._step_base)
        works = self._planner.plan(self._body, bucket, addresses)
        if bucket.outputs:
            works += self._planner.plan(self._tails[bucket.side], bucket, addresses)
        self.device.load([work.kernel for work in works if isinstance(work, Launch)])
        return works

    # -- ahead -----------------------------------------------------------------------------------
    def _run_ahead(self, batch: Batch, rows: list[int], flight: Flight) -> Flight | None:
        """Start the batch that should follow, if there are guesses and it needs no new page."""
        segments = batch.segments
        kept = [i for i, segment in enumerate(segments) if segment.guess is not None]
        if not kept or any(segment.logits is not Logits.LAST for segment in segments):
            return None
        assert all(segments[i].sequence_id >= 0 for i in kept), "guesses of nobody's tokens"
        if not all(covers(segments[i]) for i in kept):
            return None
        following = next_batch(batch, kept)
        return self._start(following, Guesses(batch, flight, kept, [rows[i] for i in kept]))

    def _follows(self, batch: Batch, ahead: Flight | None) -> list[int] | None:
        """Where the batch's rows are among those that were run ahead; None: it wasn't."""
        if ahead is None or len(batch.segments) > len(ahead.batch.segments):
            return None
        places = {s.sequence_id: i for i, s in enumerate(ahead.batch.segments)}
        found = []
        for segment in batch.segments:
            i = places.get(segment.sequence_id, -1)
            if i < 0 or segment.num_tokens != 1 or segment.logits is not Logits.LAST:
                return None
            run = ahead.batch.segments[i]
            if run.start != segment.start or run.edits is not segment.edits:
                return None
            if run.table_version != segment.table_version and _page(run) != _page(segment):
                return None
            found.append(i)
        return found

    # -- states, pages --------------------------------------------------------------------
    def hidden_states(self, segment: int, tokens: slice = slice(None)) -> NDArray[np.float32]:
        """What the last run left of a segment of its batch whose `logits` was HIDDEN.

        Returns:
            float32 (of its tokens those that `tokens` selects, dim): the last hidden states after
            the output norm; a copy.
        """
        assert self._last is not None and not self._closed
        first = self._last.placed.rows[segment]
        count = self._last.batch.segments[segment].num_tokens
        return self._hidden.read(range(first, first + count)[tokens], lanes=False)

    def run_hidden(self, batch: Batch, states: NDArray[np.float32]) -> CandidateRows:
        """`run` from the states that the layers before gave, float32 (tokens, dim), in batch order.

        They stand in the place of embeddings, by their rows: those are the batch's token ids.
        """
        assert self._states, "the first layer is the model's first"
        self.device.write(self._states, np.ascontiguousarray(states, np.float32))
        rows, ends, segments = np.arange(len(states), dtype=np.int32), 0, []
        for segment in batch.segments:
            first, ends = ends, ends + segment.num_tokens
            # Nothing is run ahead: the next states don't come from here.
            segments.append(replace(segment, token_ids=rows[first:ends], guess=None))
        return self.run(Batch(tuple(segments)))

    def last_states(self) -> NDArray[np.float32]:
        """What `hidden_states` gives of all segments of the last run, which were all HIDDEN."""
        assert self._last is not None
        count = len(self._last.batch.segments)
        return np.concatenate([self.hidden_states(i) for i in range(count)])

    def lower_priority(self, nice: int) -> None:
        """The GPU has no such thing."""

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
        """Give the device back; the program can't run any more."""
        if self._closed:
            return
        self._closed = True
        self._ahead = self._last = None
        self._graphs.close()
        self._further.close()
        self._plans.clear()
        if self._owned:
            self.device.close()  # and all that it has given
        else:
            self._arena.clear()


def _page(segment: Segment) -> int:
    """Of its first token."""
    return int(segment.block_table[segment.start // PAGE_SIZE])


def _no_rows() -> CandidateRows:
    def fetch(number: int, token: int | None = None) -> NDArray[np.float32]:
        raise AssertionError(f"row {number} of none")

    nothing = np.empty((0, 1), np.float32)
    return CandidateRows(
        nothing.astype(np.int32), nothing, nothing[:, 0], np.empty(0, np.bool_), fetch
    )
