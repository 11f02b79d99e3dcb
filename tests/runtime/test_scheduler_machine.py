"""Scheduler under any mix of what an engine does, on a device that knows what each slot holds."""

from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llamba.runtime import scheduler as scheduler_module
from llamba.runtime.batch import Logits
from llamba.runtime.chunks import Chunk, Schedule
from llamba.runtime.pages import PagePool
from llamba.runtime.scheduler import Scheduler
from llamba.runtime.sequence import Sequence, SequenceState

Content = tuple[int, ...] | None  # of a slot: all tokens up to its own; None: rubbish
SMALL = st.integers(0, 1)
TOKENS = st.lists(SMALL, min_size=1, max_size=14)


class Device:
    """Pages whose slots hold, in place of K and V, all the tokens these depend on."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.slots: list[list[Content]] = [[None] * page_size for _ in range(num_pages)]

    def copy(self, copies: tuple[tuple[int, int], ...]) -> None:
        for source, target in copies:
            self.slots[target] = list(self.slots[source])

    def holds(self, pages: list[int], tokens: list[int], num_tokens: int) -> bool:
        """The block table has exactly these tokens' KV."""
        size = self.page_size
        at = range(num_tokens)
        return all(self.slots[pages[i // size]][i % size] == tuple(tokens[: i + 1]) for i in at)

    def run(self, chunks: tuple[Chunk, ...]) -> None:
        """All chunks at once: none may see what another one writes."""
        for chunk in chunks:
            self.write(chunk)
        for chunk in chunks:
            sequence = chunk.sequence
            end = chunk.start + chunk.num_tokens
            assert self.holds(sequence.pages, sequence.token_ids, end), chunk

    def write(self, chunk: Chunk, rubbish: bool = False) -> None:
        sequence = chunk.sequence
        for i in range(chunk.start, chunk.start + chunk.num_tokens):
            content = None if rubbish else tuple(sequence.token_ids[: i + 1])
            self.slots[sequence.pages[i // self.page_size]][i % self.page_size] = content


class SchedulerMachine(RuleBasedStateMachine):
    """An engine with a scheduler, and the rules that every schedule must follow."""

    num_steps = 0  # rules run, by all examples together

    @initialize(
        num_pages=st.integers(3, 10),
        page_size=st.integers(2, 4),
        max_tokens=st.integers(1, 12),
        max_sequences=st.integers(1, 5),
        max_logits=st.integers(1, 5),
        prefix_cache=st.sampled_from([True, True, True, False]),
        whole_prompts=st.sampled_from([False, False, False, False, True]),
    )
    def begin(
        self,
        num_pages: int,
        page_size: int,
        max_tokens: int,
        max_sequences: int,
        max_logits: int,
        prefix_cache: bool,
        whole_prompts: bool,
    ) -> None:
        self.pool = PagePool(
            num_pages, page_size=page_size, prefix_cache=prefix_cache and not whole_prompts
        )
        self.scheduler = Scheduler(
            self.pool,
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logits=max_logits,
            whole_prompts=whole_prompts,
        )
        self.device = Device(num_pages, page_size)
        self.live: list[Sequence] = []
        self.ended: list[list[int]] = []  # their tokens
        self.logits: dict[Sequence, list[int]] = {}  # every(): positions that came
        self.mirrors: dict[Sequence, tuple[int, list[int]]] = {}

    # What clients do

    def add(
        self,
        token_ids: list[int],
        max_new_tokens: int,
        priority: int = 0,
        all_logits: bool = False,
        hidden: Literal["", "last", "all"] = "",
        namespace: int = 0,
        wait_for: Sequence | None = None,
    ) -> Sequence:
        token_ids = token_ids[: self.scheduler.max_sequence_tokens]
        if self.scheduler.whole_prompts:
            max_new_tokens, all_logits, wait_for = 0, False, None
        room = self.scheduler.max_sequence_tokens - len(token_ids) + 1
        sequence = Sequence(
            token_ids,
            max_new_tokens=0 if hidden else min(max_new_tokens, room),
            priority=priority,
            all_logits=all_logits and not hidden,
            hidden=hidden,
            namespace=namespace,
            wait_for=wait_for,
        )
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    @rule(
        token_ids=TOKENS,
        max_new_tokens=st.integers(0, 9),
        priority=SMALL,
        all_logits=st.sampled_from([False, False, False, True]),
        hidden=st.sampled_from(["", "", "", "", "last", "all"]),
        namespace=st.sampled_from([0, 0, 0, 1]),
    )
    def submit(
        self,
        token_ids: list[int],
        max_new_tokens: int,
        priority: int,
        all_logits: bool,
        hidden: Literal["", "last", "all"],
        namespace: int,
    ) -> None:
        """A prompt that likely begins like others."""
        SchedulerMachine.num_steps += 1
        self.add(token_ids, max_new_tokens, priority, all_logits, hidden, namespace)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), more=st.lists(SMALL, max_size=4), max_new_tokens=st.integers(0, 6))
    def next_turn(self, data: st.DataObject, more: list[int], max_new_tokens: int) -> None:
        """A conversation goes on."""
        SchedulerMachine.num_steps += 1
        self.add(data.draw(st.sampled_from(self.ended)) + more, max_new_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), n=st.integers(1, 3), priority=SMALL)
    def best_of(self, data: st.DataObject, n: int, priority: int) -> None:
        """More answers to a prompt."""
        SchedulerMachine.num_steps += 1
        first = data.draw(st.sampled_from(self.live))
        prompt = first.token_ids[: first.num_prompt]
        for _ in range(n):
            self.add(prompt, 4, priority, namespace=first.namespace, wait_for=first)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """In whatever state."""
        SchedulerMachine.num_steps += 1
        self.end(data.draw(st.sampled_from(self.live)))

    @rule(data=st.data(), namespace=SMALL, more=st.lists(SMALL, min_size=1, max_size=4))
    def adopt(self, data: st.DataObject, namespace: int, more: list[int]) -> None:
        """A page comes back from a file."""
        SchedulerMachine.num_steps += 1
        size = self.pool.page_size
        chains = [c[1] for c in self.pool.cached_chains() if c[0] == namespace]
        parent = data.draw(st.sampled_from([(), *chains]))
        parent = parent[: len(parent) // size * size]
        free = self.pool.num_free
        page = self.pool.adopt(namespace, parent, tuple(more[:size]))
        if page is None:
            assert self.pool.num_free >= free  # it may even replace a shorter one
            return
        for i in range(len(more[:size])):
            self.device.slots[page][i] = parent + tuple(more[: i + 1])

    # What the engine does

    @rule(prefill_tokens=st.integers(1, 12))
    def step(self, prefill_tokens: int) -> None:
        """One that works."""
        SchedulerMachine.num_steps += 1
        self.run_step(prefill_tokens)

    @rule(prefill_tokens=st.integers(0, 12), data=st.data())
    def step_with_cancel(self, prefill_tokens: int, data: st.DataObject) -> None:
        """A client goes away while the step runs."""
        SchedulerMachine.num_steps += 1
        schedule = self.schedule(prefill_tokens)
        self.device.copy(schedule.copies)
        self.device.run(schedule.chunks)
        if self.live:
            self.end(data.draw(st.sampled_from(self.live)))
        self.scheduler.check()
        self.commit(schedule)

    @rule(
        prefill_tokens=st.integers(0, 12),
        copied=st.booleans(),
        num_run=st.integers(0, 3),
        remove=st.sampled_from(["all", "some", "none"]),
    )
    def failed_step(self, prefill_tokens: int, copied: bool, num_run: int, remove: str) -> None:
        """Something raises: some chunks have left rubbish, nothing is committed."""
        SchedulerMachine.num_steps += 1
        schedule = self.schedule(prefill_tokens)
        if copied:
            self.device.copy(schedule.copies)
            for chunk in schedule.chunks[:num_run]:
                self.device.write(chunk, rubbish=True)
        for i, chunk in enumerate(schedule.chunks):
            if remove == "all" or (remove == "some" and i % 2):
                self.end(chunk.sequence)

    def run_step(self, prefill_tokens: int) -> Schedule:
        schedule = self.schedule(prefill_tokens)
        if prefill_tokens % 2:
            self.reserve([c for c in schedule.chunks if c.logits is Logits.LAST])
        self.device.copy(schedule.copies)
        self.device.run(schedule.chunks)
        self.commit(schedule)
        return schedule

    def reserve(self, chunks: list[Chunk]) -> None:
        """Their next tokens' pages, a step early: all of them or none."""
        counts = [len(c.sequence.pages) for c in chunks]
        done = self.scheduler.reserve(chunks)
        self.scheduler.check()
        for chunk, count in zip(chunks, counts, strict=True):
            room = len(chunk.sequence.pages) * self.pool.page_size
            assert room > chunk.end if done else len(chunk.sequence.pages) == count

    def commit(self, schedule: Schedule) -> None:
        self.scheduler.commit(schedule)
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            if sequence not in self.live:
                continue
            if chunk.logits is Logits.ALL or (chunk.logits is Logits.HIDDEN and every(sequence)):
                end = chunk.start + chunk.num_tokens
                self.logits.setdefault(sequence, []).extend(range(chunk.start, end))
            if sequence.num_pending == 0:
                if chunk.logits is not Logits.NONE and sequence.max_new_tokens:
                    # The same text goes on in the same way: much to be shared.
                    token_id = hash(tuple(sequence.token_ids)) % 7 % 2
                    self.scheduler.append(sequence, token_id)
                if sequence.num_new == sequence.max_new_tokens:
                    self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        if every(sequence) and sequence.prompt_done:
            assert self.logits.pop(sequence) == list(range(sequence.num_prompt))
        self.scheduler.remove(sequence)
        self.live.remove(sequence)
        self.mirrors.pop(sequence, None)
        self.ended = [*self.ended[-4:], list(sequence.token_ids)]
        assert sequence.state is SequenceState.FINISHED and not sequence.pages

    # What every schedule must be

    def schedule(self, prefill_tokens: int) -> Schedule:
        scheduler = self.scheduler
        before = [s for s in self.live if s.state is SequenceState.RUNNING]
        computed = {s: s.num_computed for s in before}
        decoding = {s for s in before if s.num_pending == 1}
        schedule = scheduler.schedule(prefill_tokens)
        scheduler.check()
        chunks = {c.sequence: c for c in schedule.chunks}
        running = [s for s in self.live if s.state is SequenceState.RUNNING]
        running.sort(key=lambda s: s.rank)
        assert len(chunks) == len(schedule.chunks) and set(chunks) <= set(running)
        if scheduler.whole_prompts:
            self.check_whole(schedule, running)
            return schedule

        # Limits.
        rows = [c.num_tokens for c in schedule.chunks if c.logits is Logits.ALL]
        rows += [1 for c in schedule.chunks if c.logits is Logits.LAST]
        assert sum(rows) <= scheduler.max_logits
        assert sum(c.num_tokens for c in chunks.values()) <= scheduler.max_tokens
        prompts = [c for s, c in chunks.items() if s not in decoding]
        if len(prompts) < len(chunks):
            assert sum(c.num_tokens for c in prompts) <= prefill_tokens

        # Whoever decodes gets its token, unless there are more than may or no page is left.
        if len(decoding) < min(scheduler.max_tokens, scheduler.max_logits):
            assert decoding <= {*chunks, *schedule.preempted}
        # The youngest are preempted, or those that an interactive one replaces; not the oldest.
        if schedule.preempted:
            assert min(self.live, key=lambda s: s.rank) not in schedule.preempted
            others = [s for s in before if s in running]
            for victim in schedule.preempted:
                assert not victim.pages and not victim.num_computed
                assert all(s.rank < victim.rank or s.priority == 0 for s in others)
        # The oldest prompt gets half or more of what decoding leaves.
        left = [s for s in running if s not in decoding and s.num_pending]
        budget = scheduler.max_tokens - (len(chunks) - len(prompts))
        budget = min(budget, prefill_tokens) if len(prompts) < len(chunks) else budget
        if left and budget > 0 and not every(left[0]) and scheduler.max_logits > len(decoding):
            assert chunks[left[0]].num_tokens >= min((budget + 1) // 2, left[0].num_pending - 1, 1)
            if left[0].num_computed == computed.get(left[0]):
                start = chunks[left[0]].start
                want = min((budget + 1) // 2, len(left[0].token_ids) - start)
                assert chunks[left[0]].num_tokens >= want
        # Progress.
        if not chunks and (prefill_tokens or not decoding):
            assert not scheduler.num_running and not scheduler.num_waiting

        targets = dict((t, s) for s, t in schedule.copies)
        assert len(targets) == len(schedule.copies)
        for target, source in targets.items():
            assert self.pool.references(target) == 1 and self.pool.references(source) >= 1
        for chunk in chunks.values():
            self.check_chunk(chunk, set(targets))
        return schedule

    def check_whole(self, schedule: Schedule, running: list[Sequence]) -> None:
        """Texts run as a whole, as many as fit, the oldest in any case; nothing is shared."""
        assert not schedule.copies
        sizes = {c.sequence: c.num_tokens for c in schedule.chunks}
        assert sum(sizes.values()) <= self.scheduler.max_tokens
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            assert chunk.start == 0 and chunk.num_tokens == len(sequence.token_ids)
            assert chunk.logits is (Logits.HIDDEN if sequence.hidden else Logits.NONE)
        pages = [page for sequence in running for page in sequence.pages]
        assert len(set(pages)) == len(pages)
        left = [s for s in running if s.num_pending]
        if left and left[0] is running[0]:
            assert left[0] in sizes
        room = self.scheduler.max_tokens - sum(sizes.values())
        assert all(s in sizes or len(s.token_ids) > room for s in left)
        if not sizes and not any(s.num_pending == 0 for s in running):
            assert not self.scheduler.num_running and not self.scheduler.num_waiting

    def check_chunk(self, chunk: Chunk, targets: set[int]) -> None:
        sequence, size = chunk.sequence, self.pool.page_size
        end = chunk.start + chunk.num_tokens
        assert 0 < chunk.num_tokens and end <= len(sequence.token_ids) <= len(sequence.pages) * size
        if chunk.start > sequence.num_computed:
            assert sequence.pages[chunk.start // size] in targets
        if not sequence.prompt_done and every(sequence):
            first = len(self.logits.get(sequence, []))
            wanted = Logits.HIDDEN if sequence.hidden else Logits.ALL
            assert chunk.logits in (wanted, Logits.NONE)
            assert (chunk.logits is wanted) == (chunk.start >= first)
            assert chunk.start <= first and (chunk.start == first or end <= first)
        elif end == len(sequence.token_ids) and sequence.max_new_tokens:
            assert chunk.logits is Logits.LAST
        elif end == len(sequence.token_ids) and sequence.hidden:
            assert chunk.logits is Logits.HIDDEN
        else:
            assert chunk.logits is Logits.NONE
        # All that could be found was found: brute force over everything that is findable.
        boundary = sequence.num_computed % size == 0
        if self.pool.prefix_cache and boundary and not every(sequence):
            if sequence.num_pending > 1:
                tokens = sequence.token_ids[:-1]
                found = [c for n, c, _ in self.pool.cached_chains() if n == sequence.namespace]
                assert chunk.start == max([0, *(common(c, tokens) for c in found)])
        # A mirror of the block table by the protocol of table_version.
        version, mirror = self.mirrors.get(sequence, (-1, []))
        if version != sequence.table_version:
            mirror = []
        mirror = mirror + sequence.pages[len(mirror) :]
        assert mirror == sequence.pages
        self.mirrors[sequence] = (sequence.table_version, mirror)

    @invariant()
    def sound(self) -> None:
        """Books agree, and whatever can be found is what it says."""
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        states = [s.state for s in self.live]
        assert states.count(SequenceState.RUNNING) == self.scheduler.num_running
        assert len(states) - self.scheduler.num_running == self.scheduler.num_waiting
        size = self.pool.page_size
        for _, tokens, page in self.pool.cached_chains():
            for i in range((len(tokens) - 1) // size * size, len(tokens)):
                assert self.device.slots[page][i % size] == tokens[: i + 1]
        for sequence in self.live:
            num_computed = sequence.num_computed
            assert self.device.holds(sequence.pages, sequence.token_ids, num_computed)

    def teardown(self) -> None:
        """All that are left come to their end, and nothing stays behind."""
        if not hasattr(self, "scheduler"):
            return
        work = sum(len(s.token_ids) + s.max_new_tokens for s in self.live)
        for _ in range(20 * work + 1):
            if not self.live:
                break
            assert self.run_step(1).chunks
        assert not self.live, "a sequence does not end"
        self.scheduler.check()
        assert self.pool.num_used == 0
        if not self.pool.prefix_cache:
            assert self.pool.num_free == self.pool.num_pages


def every(sequence: Sequence) -> bool:
    """Something of each of its prompt tokens is wanted."""
    return sequence.all_logits or sequence.hidden == "all"


def common(a: tuple[int, ...], b: list[int]) -> int:
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)


def run_machine(max_examples: int, derandomize: bool) -> int:
    """Rules run."""
    SchedulerMachine.num_steps = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_module, "AGING_STEPS", 6)
        run_state_machine_as_test(
            SchedulerMachine,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=50,
                deadline=None,
                derandomize=derandomize,
                database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
    return SchedulerMachine.num_steps


def test_any_mix_of_submit_step_cancel_preempt_fail() -> None:
    assert run_machine(1400, derandomize=True) >= 50_000


@pytest.mark.slow
def test_any_mix_at_random() -> None:
    assert run_machine(8000, derandomize=False) >= 250_000
