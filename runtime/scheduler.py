"""Scheduler: who runs in this step, and on which pages. Integers only: no clock, no device."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from .batch import Logits
from .block_tables import BlockTables
from .chunks import Chunk, Schedule, fit
from .pages import PagePool
from .prefix import Node
from .sequence import Sequence, SequenceState

# So many steps after it a sequence of the background goes before interactive ones that come then.
AGING_STEPS = 1000


@dataclass(slots=True)
class _Prefill:
    """A sequence in prefill as one step sees it."""

    sequence: Sequence
    start: int  # behind what comes with the copy
    source: Node | None  # of a copy into its next page
    next_page: tuple[object, ...] | None  # equal for those that would compute the same page

    @property
    def num_left(self) -> int:
        """Tokens to run."""
        return len(self.sequence.token_ids) - self.start


class Scheduler:
    """Continuous batching over a pool of pages.

        while scheduler.num_running or scheduler.num_waiting:
            schedule = scheduler.schedule(prefill_tokens)
            ...                                   # copy pages, run the chunks
            scheduler.commit(schedule)
            ...                                   # append() a token, or remove() what has ended

    Every step each decoding sequence gets its token; what the limits leave goes to prompts: half of
    it to the oldest, the rest to those with the fewest tokens left. Sequences are admitted by rank
    (arrival; the background AGING_STEPS later) while there are pages for all their tokens. If a
    decoding one needs a page and there is none, the youngest by rank is preempted: it waits with
    its old rank, and runs again what is no longer found. The oldest is never preempted, so all end.
    An interactive sequence that finds no place takes that of younger ones of the background.

    Args:
        pool: where the pages come from; it has the prefix cache.
        max_tokens: of a step.
        max_sequences: that run at the same time; not more than the program takes segments.
        max_logits: rows of logits of a step.
        whole_prompts: texts run whole in a step; no token is generated, no page is shared.

    If a step fails, remove() the sequences of its schedule (or some of them) and go on; a schedule
    that is not committed has changed nothing but who has pages.
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        max_tokens: int,
        max_sequences: int,
        max_logits: int,
        whole_prompts: bool = False,
    ) -> None:
        assert max_tokens > 0 and max_sequences > 0 and max_logits > 0
        assert not (whole_prompts and pool.prefix_cache), "whole prompts share no pages"
        self.pool = pool
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.max_logits = max_logits
        self.whole_prompts = whole_prompts
        self.num_preemptions = 0
        self._running: list[Sequence] = []  # both by rank
        self._waiting: list[Sequence] = []
        self._tables = BlockTables(pool)
        self._schedule: Schedule | None = None
        self._step = 0
        self._arrivals = count(1)
        self._turns = count(1)

    @property
    def num_waiting(self) -> int:
        """Sequences without pages, preempted ones too."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that have pages."""
        return len(self._running)

    @property
    def prefix_query_tokens(self) -> int:
        """Prompt tokens of all sequences that looked for pages in the prefix cache."""
        return self._tables.query_tokens

    @property
    def prefix_hit_tokens(self) -> int:
        """Those of them that were found and did not have to run."""
        return self._tables.hit_tokens

    @property
    def max_sequence_tokens(self) -> int:
        """Positions that one sequence can have at most; the last generated token needs none."""
        positions = self.pool.num_pages * self.pool.page_size
        return min(positions, self.max_tokens) if self.whole_prompts else positions

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        The caller has seen to it that num_prompt + max_new_tokens - 1 and num_prompt are not above
        `max_sequence_tokens`.
        """
        longest = sequence.num_prompt + max(sequence.max_new_tokens, 1) - 1
        assert 0 < sequence.num_prompt and longest <= self.max_sequence_tokens, (
            f"{longest} positions, {self.max_sequence_tokens} is the most"
        )
        assert sequence.state is SequenceState.WAITING and sequence.rank == (0, 0), "added twice"
        other = sequence.wait_for
        more = other is not None or sequence.max_new_tokens or sequence.all_logits
        assert not (self.whole_prompts and more), "of whole prompts only hidden states are made"
        assert other is None or other.rank != (0, 0), "wait_for was not added"
        arrival = self._step + sequence.priority * AGING_STEPS
        sequence.rank = (arrival, next(self._arrivals))
        insort(self._waiting, sequence, key=_rank)

    def append(self, sequence: Sequence, token_id: int) -> None:
        """Add the token that was chosen after everything before was computed."""
        assert sequence.state is SequenceState.RUNNING and sequence.num_pending == 0
        sequence.token_ids.append(token_id)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence in whatever state; its pages are let go at once.

        What was computed and committed of it stays findable. Removing it again does nothing.
        """
        if sequence.state is SequenceState.RUNNING:
            self._stop(sequence)
        elif sequence.state is not SequenceState.FINISHED and sequence.rank != (0, 0):
            del self._waiting[bisect_left(self._waiting, sequence.rank, key=_rank)]
        sequence.state = SequenceState.FINISHED
        sequence.node = None

    def schedule(self, prefill_tokens: int) -> Schedule:
        """Choose what runs in the next step, and give it its pages.

        Args:
            prefill_tokens: most prompt tokens while others decode (nobody decodes: `max_tokens`).
                With 0 prompts wait as long as anybody decodes.
        """
        self._tables.unpin()
        self._step += 1
        preempted: list[Sequence] = []
        decoding = self._choose_decoding()
        while not self._grow(decoding, preempted):
            decoding = self._choose_decoding()  # whose turn it was, they all had to go
        admitted: list[Sequence] = []
        if self._waiting and not preempted and self._budget(decoding, prefill_tokens) > 0:
            admitted = self._admit_waiting(preempted)
        if preempted:
            decoding = [s for s in decoding if s.state is SequenceState.RUNNING]
        budget = self._budget(decoding, prefill_tokens)
        chunks = [self._decode(s) for s in decoding]
        copies: list[tuple[int, int]] = []
        if budget > 0 and len(self._running) > len(decoding):
            # One that has just come may have a single token left to run.
            prefilling = [s for s in self._running if s.num_pending > 1 or s in admitted]
            if self.whole_prompts:
                chunks = self._whole(budget)
            elif prefilling:
                self._prefill(prefilling, budget, chunks, copies)
        self._schedule = Schedule(tuple(chunks), tuple(copies), tuple(preempted))
        return self._schedule

    def commit(self, schedule: Schedule) -> None:
        """Note that the step ran: its tokens are computed, full pages can be found."""
        assert schedule is self._schedule, "not the schedule of this step"
        self._schedule = None
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            if sequence.state is SequenceState.RUNNING:  # not removed meanwhile
                end = chunk.start + chunk.num_tokens
                self._tables.computed(sequence, chunk.start, end)
                if chunk.logits in (Logits.ALL, Logits.HIDDEN):
                    sequence.num_logits = end
        self._tables.unpin()

    def reserve(self, chunks: Iterable[Chunk]) -> bool:
        """Give those that go on behind these chunks of the step their next page, if they need one.

        They would get it in the next step. False, and nothing is done, if there are not enough.
        """
        full = [c.sequence for c in chunks if self._tables.is_full_at(c.sequence, c.end)]
        if len(full) > self.pool.num_available:
            return False
        for sequence in full:
            self._tables.extend(sequence)
        return True

    def check(self) -> None:
        """Assert every invariant; for tests, not for every step."""
        self._tables.check(self._running)
        waits = (SequenceState.WAITING, SequenceState.PREEMPTED)
        assert all(s.state is SequenceState.RUNNING for s in self._running)
        assert all(s.state in waits for s in self._waiting)
        assert not any(s.pages or s.num_computed for s in self._waiting)
        for queue in (self._running, self._waiting):
            assert [s.rank for s in queue] == sorted({s.rank for s in queue})
        assert len(self._running) <= self.max_sequences

    def _choose_decoding(self) -> list[Sequence]:
        """The sequences that get one token, by rank; in turns if there are more than may."""
        decoding = [s for s in self._running if s.num_pending == 1 and not self.whole_prompts]
        limit = min(self.max_tokens, self.max_logits)
        if len(decoding) < limit:
            return decoding
        # If they leave the oldest prompt nothing, it takes its turn with them.
        contenders = list(decoding)
        oldest = next((s for s in self._running if s.num_pending > 1), None)
        if oldest is not None and (len(decoding) >= self.max_tokens or oldest.wants_all):
            contenders.append(oldest)
        contenders.sort(key=lambda s: (s.last_turn, s.rank))
        chosen = contenders[:limit]
        for sequence in chosen:
            sequence.last_turn = next(self._turns)
        return sorted((s for s in chosen if s is not oldest), key=_rank)

    def _budget(self, decoding: list[Sequence], prefill_tokens: int) -> int:
        """Tokens that the prompts may have."""
        budget = self.max_tokens - len(decoding)
        return min(budget, prefill_tokens) if decoding else budget

    def _grow(self, decoding: list[Sequence], preempted: list[Sequence]) -> bool:
        """A page for each that has filled its last one, the oldest first; False: nobody is left."""
        for sequence in decoding:
            if not self._tables.is_full(sequence):
                continue
            while sequence.state is SequenceState.RUNNING and not self.pool.num_available:
                self._preempt(self._running[-1], preempted)
            if sequence.state is SequenceState.RUNNING:
                self._tables.extend(sequence)
        return not decoding or any(s.state is SequenceState.RUNNING for s in decoding)

    def _decode(self, sequence: Sequence) -> Chunk:
        logits = Logits.LAST
        if sequence.wants_all or not sequence.max_new_tokens:
            _, logits = fit(sequence, sequence.num_computed, 1, 1)
        return Chunk(sequence, sequence.num_computed, 1, logits)

    def _admit_waiting(self, preempted: list[Sequence]) -> list[Sequence]:
        """By rank, up to the first for which there is no room; the blocked ones let others pass."""
        admitted = []
        at = 0
        while at < len(self._waiting) and not preempted:
            sequence = self._waiting[at]
            if sequence.blocked:
                at += 1
                continue
            if not self._admit(sequence, preempted):
                break
            del self._waiting[at]
            insort(self._running, sequence, key=_rank)
            admitted.append(sequence)
        return admitted

    def _admit(self, sequence: Sequence, preempted: list[Sequence]) -> bool:
        """Start a sequence if there is room for all its tokens."""
        found = self._tables.find(sequence)
        num_missing = self._num_missing(sequence, found)
        if num_missing > 0 or len(self._running) >= self.max_sequences:
            if not self._make_room(sequence, num_missing, set(found), preempted):
                return False
            found = self._tables.find(sequence)  # without a cache pages went with their users
            if self._num_missing(sequence, found) > 0:
                return False
        self._tables.start(sequence, found)
        sequence.state = SequenceState.RUNNING
        return True

    def _num_missing(self, sequence: Sequence, found: list[int]) -> int:
        """Pages too few to admit a sequence; those that run may soon need one each as well."""
        headroom = min(len(self._running), max(1, self.pool.num_pages // 16))
        return self._tables.num_new(sequence, found) + headroom - self.pool.num_available

    def _make_room(
        self, sequence: Sequence, num_missing: int, found: set[int], preempted: list[Sequence]
    ) -> bool:
        """Preempt younger sequences of a lower priority, if that is enough."""
        victims: list[Sequence] = []
        for victim in reversed(self._running):
            if victim.rank < sequence.rank or (victims and num_missing <= 0):
                break
            if victim.priority > sequence.priority:
                victims.append(victim)
                its_own = (p for p in victim.pages if self.pool.references(p) == 1)
                num_missing -= sum(p not in found for p in its_own)
        if num_missing > 0 or not victims:
            return False
        for victim in victims:
            self._preempt(victim, preempted)
        return True

    def _prefill(
        self,
        sequences: list[Sequence],
        budget: int,
        chunks: list[Chunk],
        copies: list[tuple[int, int]],
    ) -> None:
        """Share out the tokens that this step has for prompts."""
        rows = self.max_logits - len(chunks)
        oldest, *others = [self._look(s) for s in sequences]
        others.sort(key=lambda p: p.num_left)
        most, logits = fit(oldest.sequence, oldest.start, budget, rows)
        kept = min(most, (budget + 1) // 2)
        kept_rows = most if logits is Logits.ALL else min(1, rows)
        budget -= kept
        rows -= kept_rows
        in_work = {oldest.next_page} if most else set()
        given = []
        for prefill in others:
            if prefill.next_page is not None and prefill.next_page in in_work:
                continue  # waits a step or more, and takes the page over
            num_tokens, logits = fit(prefill.sequence, prefill.start, budget, rows)
            if num_tokens:
                budget -= num_tokens
                rows -= {Logits.LAST: 1, Logits.ALL: num_tokens}.get(logits, 0)
                in_work.add(prefill.next_page)
                given.append((prefill, num_tokens, logits))
        given.insert(0, (oldest, *fit(oldest.sequence, oldest.start, budget + kept, kept_rows)))
        for prefill, num_tokens, logits in given:
            if num_tokens:
                chunks.append(Chunk(prefill.sequence, prefill.start, num_tokens, logits))
                if prefill.source is not None:
                    copies.append(self._tables.copy(prefill.sequence, prefill.source))

    def _whole(self, budget: int) -> list[Chunk]:
        """The oldest text, and the others that fit beside it, the shortest first."""
        oldest, *others = self._running
        chunks = []
        for sequence in [oldest, *sorted(others, key=lambda s: s.num_pending)]:
            count = sequence.num_pending
            if count and count <= budget:
                budget -= count
                _, logits = fit(sequence, 0, count, 0)
                chunks.append(Chunk(sequence, 0, count, logits))
        return chunks

    def _look(self, sequence: Sequence) -> _Prefill:
        """Where a sequence in prefill goes on, after all that can be found."""
        self._tables.take_over(sequence)
        source, num_found = self._tables.find_partial(sequence)
        next_page = self._tables.next_page(sequence)
        return _Prefill(sequence, sequence.num_computed + num_found, source, next_page)

    def _preempt(self, sequence: Sequence, preempted: list[Sequence]) -> None:
        """Back into the queue, to run again what will not be found."""
        self._stop(sequence)
        sequence.state = SequenceState.PREEMPTED
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        preempted.append(sequence)
        insort(self._waiting, sequence, key=_rank)

    def _stop(self, sequence: Sequence) -> None:
        del self._running[bisect_left(self._running, sequence.rank, key=_rank)]
        self._tables.let_go(sequence)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
