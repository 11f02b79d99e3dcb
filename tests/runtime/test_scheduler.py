"""Scheduler, rule by rule: what is in a step, who comes in, who has to go, what is found."""

import random
from collections.abc import Iterable

import pytest

from llamba.runtime.batch import Logits
from llamba.runtime.chunks import Schedule
from llamba.runtime.pages import PagePool
from llamba.runtime.scheduler import AGING_STEPS, Scheduler
from llamba.runtime.sequence import Sequence, SequenceState


def make(
    num_pages: int = 64,
    *,
    page_size: int = 4,
    max_tokens: int = 16,
    max_sequences: int = 8,
    max_logits: int = 8,
    prefix_cache: bool = True,
) -> Scheduler:
    pool = PagePool(num_pages, page_size=page_size, prefix_cache=prefix_cache)
    return Scheduler(
        pool, max_tokens=max_tokens, max_sequences=max_sequences, max_logits=max_logits
    )


def prompt(num_tokens: int, kind: int = 0) -> list[int]:
    """Tokens that no prompt of another kind begins with."""
    return [1000 * kind + i for i in range(num_tokens)]


def add(
    scheduler: Scheduler, num_tokens: int, kind: int = 0, *, new: int = 4, priority: int = 0
) -> Sequence:
    sequence = Sequence(prompt(num_tokens, kind), max_new_tokens=new, priority=priority)
    scheduler.add(sequence)
    return sequence


def finish(scheduler: Scheduler, schedule: Schedule) -> None:
    """What the engine does behind a step: commit, choose tokens, remove what has all of them."""
    scheduler.commit(schedule)
    for chunk in schedule.chunks:
        sequence = chunk.sequence
        if sequence.state is SequenceState.RUNNING and not sequence.num_pending:
            if sequence.num_new < sequence.max_new_tokens:
                scheduler.append(sequence, 7000 + sequence.num_new)
            if sequence.num_new == sequence.max_new_tokens:
                scheduler.remove(sequence)
    scheduler.check()


def step(scheduler: Scheduler, prefill_tokens: int = 16) -> dict[Sequence, tuple[int, int]]:
    """Run a step; returns (start, num_tokens) of each sequence that was in it."""
    schedule = scheduler.schedule(prefill_tokens)
    scheduler.check()
    finish(scheduler, schedule)
    return {c.sequence: (c.start, c.num_tokens) for c in schedule.chunks}


def steps_until(scheduler: Scheduler, ended: Iterable[Sequence], prefill_tokens: int = 16) -> int:
    """Run until these have ended; returns how many steps that took."""
    waited_for = list(ended)
    for num_steps in range(10_000):
        if all(s.state is SequenceState.FINISHED for s in waited_for):
            return num_steps
        assert step(scheduler, prefill_tokens), "nothing runs, but something waits"
    raise AssertionError("no end")


# What is in a step


def test_a_long_prompt_runs_in_chunks_and_only_its_last_one_has_logits() -> None:
    scheduler = make(max_tokens=16)
    sequence = add(scheduler, 40)
    seen = []
    for _ in range(3):
        schedule = scheduler.schedule(5)  # nobody decodes: the limit of prompts doesn't count
        [chunk] = schedule.chunks
        seen.append((chunk.start, chunk.num_tokens, chunk.logits))
        finish(scheduler, schedule)
    assert seen == [(0, 16, Logits.NONE), (16, 16, Logits.NONE), (32, 8, Logits.LAST)]
    assert step(scheduler)[sequence] == (40, 1)


def test_decoding_goes_on_beside_a_prompt() -> None:
    scheduler = make()
    talking = [add(scheduler, 3, kind, new=20) for kind in (1, 2)]
    step(scheduler)
    long = add(scheduler, 40, 3)
    for start in (0, 6, 12):
        ran = step(scheduler, prefill_tokens=6)
        assert ran[long] == (start, 6)
        assert all(ran[s][1] == 1 for s in talking)


def test_no_prompt_runs_beside_decoding_with_a_budget_of_nothing() -> None:
    scheduler = make()
    talking = add(scheduler, 3, 1, new=3)
    step(scheduler)
    long = add(scheduler, 10, 2)
    assert list(step(scheduler, 0)) == [talking]
    assert list(step(scheduler, 0)) == [talking]
    assert list(step(scheduler, 0)) == [long]


def test_half_for_the_oldest_prompt_and_the_rest_for_the_shortest() -> None:
    scheduler = make(max_tokens=16)
    oldest, middle, short = (add(scheduler, n, k) for k, n in enumerate((60, 50, 5), 1))
    assert step(scheduler) == {oldest: (0, 8), short: (0, 5), middle: (0, 3)}
    assert step(scheduler) == {short: (5, 1), oldest: (8, 8), middle: (3, 7)}


def test_what_the_others_leave_goes_to_the_oldest_prompt() -> None:
    scheduler = make(max_tokens=16)
    oldest, short = add(scheduler, 60, 1), add(scheduler, 2, 2)
    assert step(scheduler) == {oldest: (0, 14), short: (0, 2)}


def test_a_short_prompt_is_not_stuck_behind_a_long_one() -> None:
    scheduler = make(256, page_size=32, max_tokens=512)
    talking = [add(scheduler, 20, kind, new=500) for kind in range(3)]
    step(scheduler)
    long = add(scheduler, 2000, 4)
    step(scheduler, 64)
    short = add(scheduler, 50, 5)
    assert step(scheduler, 64)[short] == (0, 32)
    step(scheduler, 64)
    assert short.num_new == 1 and long.num_computed > 64 and talking[0].num_new == 4


def test_no_logits_for_a_prompt_without_an_answer() -> None:
    scheduler = make()
    sequence = add(scheduler, 5, new=0)
    schedule = scheduler.schedule(16)
    assert [c.logits for c in schedule.chunks] == [Logits.NONE]
    scheduler.commit(schedule)
    assert sequence.prompt_done and not sequence.num_pending
    assert not scheduler.schedule(16).chunks  # the engine should have removed it
    scheduler.remove(sequence)


def test_more_decode_than_a_step_has_tokens_take_turns() -> None:
    scheduler = make(max_tokens=2, max_sequences=5, max_logits=9)
    sequences = [add(scheduler, 2, kind, new=40) for kind in range(5)]
    while not all(s.prompt_done for s in sequences):
        step(scheduler)
    before = [s.num_new for s in sequences]
    for _ in range(20):
        assert len(step(scheduler)) == 2
    assert {s.num_new - n for s, n in zip(sequences, before, strict=True)} == {8}


def test_more_decode_than_a_step_has_rows_take_turns() -> None:
    scheduler = make(max_tokens=8, max_sequences=5, max_logits=3)
    sequences = [add(scheduler, 2, kind, new=40) for kind in range(5)]
    while not all(s.prompt_done for s in sequences):
        step(scheduler)
    before = [s.num_new for s in sequences]
    for _ in range(20):
        assert len(step(scheduler)) == 3
    assert {s.num_new - n for s, n in zip(sequences, before, strict=True)} == {12}


@pytest.mark.parametrize(("max_tokens", "all_logits"), [(2, False), (8, True)])
def test_a_prompt_takes_its_turn_where_decoding_takes_all(
    max_tokens: int, all_logits: bool
) -> None:
    scheduler = make(max_tokens=max_tokens, max_sequences=3, max_logits=2)
    talking = [add(scheduler, 1, kind, new=30) for kind in (1, 2)]
    step(scheduler)
    late = Sequence(prompt(5), max_new_tokens=1, all_logits=all_logits)
    scheduler.add(late)
    scheduler._admit_waiting([])  # while nobody decodes; the usual step has no room for it
    assert late.state is SequenceState.RUNNING
    assert steps_until(scheduler, [late]) <= 16
    assert all(s.state is SequenceState.RUNNING for s in talking)


def test_a_prompt_ends_one_token_early_where_no_row_is_left() -> None:
    scheduler = make(max_logits=1)
    first, second = add(scheduler, 3, 1), add(scheduler, 4, 2)
    assert step(scheduler) == {first: (0, 3), second: (0, 3)}
    assert {second: (3, 1)}.items() <= (step(scheduler) | step(scheduler)).items()


# All logits of a prompt


def test_logits_of_all_prompt_tokens_come_in_chunks_of_rows() -> None:
    scheduler = make(max_logits=4)
    for _ in range(2):  # no hit the second time: a page has no logits
        sequence = Sequence(prompt(10), max_new_tokens=2, all_logits=True)
        scheduler.add(sequence)
        seen = []
        while sequence.state is not SequenceState.FINISHED:
            schedule = scheduler.schedule(16)
            seen += [(c.start, c.num_tokens, c.logits) for c in schedule.chunks]
            finish(scheduler, schedule)
        all_rows = [(0, 4, Logits.ALL), (4, 4, Logits.ALL), (8, 2, Logits.ALL)]
        assert seen == [*all_rows, (10, 1, Logits.LAST)]
        assert sequence.num_cached == 0


def test_logits_come_once_though_the_prompt_is_preempted() -> None:
    scheduler = make(6, max_logits=3, max_tokens=8)
    talking = add(scheduler, 6, 1, new=10)
    step(scheduler)
    sequence = Sequence(prompt(12), max_new_tokens=2, all_logits=True)
    scheduler.add(sequence)
    rows: list[int] = []
    while sequence.state is not SequenceState.FINISHED:
        schedule = scheduler.schedule(2)
        for c in schedule.chunks:
            if c.sequence is sequence and c.logits is Logits.ALL:
                rows += range(c.start, c.start + c.num_tokens)
        finish(scheduler, schedule)
    assert rows == list(range(12)) and sequence.num_preemptions
    assert talking.state is SequenceState.FINISHED


def test_logits_come_once_though_other_tokens_run_again() -> None:
    scheduler = make(16, max_logits=4, max_tokens=16)
    sequence = Sequence(prompt(12), max_new_tokens=1, all_logits=True, priority=1)
    scheduler.add(sequence)
    assert step(scheduler) == {sequence: (0, 4)}
    scheduler.max_sequences = 1
    urgent = add(scheduler, 16, 1, new=1)
    step(scheduler)
    assert sequence.num_preemptions == 1
    scheduler.pool.free(scheduler.pool.allocate(scheduler.pool.num_available))  # evicts all
    steps_until(scheduler, [urgent])
    seen = []
    while sequence.state is not SequenceState.FINISHED:
        schedule = scheduler.schedule(16)
        seen += [(c.start, c.num_tokens, c.logits) for c in schedule.chunks]
        finish(scheduler, schedule)
    assert seen == [(0, 4, Logits.NONE), (4, 4, Logits.ALL), (8, 4, Logits.ALL)]


# Who comes in


def test_admission_needs_pages_for_the_whole_prompt() -> None:
    scheduler = make(8, page_size=4)
    first = add(scheduler, 16, 1, new=3)
    large = add(scheduler, 20, 2)
    small = add(scheduler, 2, 3)
    while first.state is not SequenceState.FINISHED:
        assert list(step(scheduler)) == [first]  # the small one would fit, but came later
    assert set(step(scheduler)) == {large, small}


def test_too_long_for_the_pool_is_refused() -> None:
    scheduler = make(4, page_size=4)
    assert scheduler.max_sequence_tokens == 16
    exact = add(scheduler, 10, new=7)  # the last token is never run
    steps_until(scheduler, [exact])
    for num_tokens, new in ((10, 8), (17, 0), (0, 1)):
        with pytest.raises(AssertionError):
            add(scheduler, num_tokens, new=new)
    with pytest.raises(AssertionError):
        scheduler.add(exact)
    with pytest.raises(AssertionError):
        stranger = Sequence([1], max_new_tokens=1)
        scheduler.add(Sequence([1], max_new_tokens=1, wait_for=stranger))


def test_the_background_waits_but_not_for_ever() -> None:
    scheduler = make(max_sequences=1)
    running = add(scheduler, 3, 1, new=3)
    later = add(scheduler, 3, 2, priority=1)
    sooner = add(scheduler, 3, 3)
    steps_until(scheduler, [running])
    assert list(step(scheduler)) == [sooner]
    scheduler.remove(sooner)
    scheduler._step += AGING_STEPS + 1  # so many steps later
    newest = add(scheduler, 3, 4)
    assert list(step(scheduler)) == [later]
    steps_until(scheduler, [later, newest])


def test_the_background_ends_while_interactive_ones_keep_coming() -> None:
    scheduler = make(12, max_sequences=2, max_tokens=8)
    background = [add(scheduler, 9, 500 + kind, new=12, priority=1) for kind in range(3)]
    kind = 0
    for _ in range(2 * AGING_STEPS):
        if scheduler.num_running + scheduler.num_waiting < 6:
            kind += 1
            add(scheduler, 5 + kind % 7, kind % 400, new=1 + kind % 9)
        step(scheduler, 4)
    assert all(s.state is SequenceState.FINISHED for s in background)


def test_an_interactive_one_takes_the_place_of_the_youngest_of_the_background() -> None:
    scheduler = make(max_sequences=2)
    old, young = (add(scheduler, 6, k, new=30, priority=1) for k in (1, 2))
    step(scheduler)
    step(scheduler)
    urgent = add(scheduler, 5, 3, new=2)
    schedule = scheduler.schedule(16)
    assert schedule.preempted == (young,) and young.state is SequenceState.PREEMPTED
    assert {c.sequence for c in schedule.chunks} == {old, urgent}
    finish(scheduler, schedule)
    steps_until(scheduler, [urgent])
    # Its pages are still there: only the last token runs again.
    assert step(scheduler)[young] == (7, 1)
    steps_until(scheduler, [old, young])


def test_an_interactive_one_takes_the_pages_of_the_background_if_that_is_enough() -> None:
    scheduler = make(16)
    chat = add(scheduler, 20, 1, new=30)
    jobs = [add(scheduler, 14, k, new=30, priority=1) for k in (2, 3)]
    while not jobs[-1].prompt_done:
        step(scheduler)
    too_large = add(scheduler, 44, 4)
    assert not scheduler.schedule(16).preempted
    scheduler.remove(too_large)
    add(scheduler, 12, 5)
    assert scheduler.schedule(16).preempted == (jobs[1],)
    assert chat.state is jobs[0].state is SequenceState.RUNNING


def test_who_has_waited_long_enough_keeps_its_place() -> None:
    scheduler = make(max_sequences=2)
    old, young = (add(scheduler, 6, k, new=30, priority=1) for k in (1, 2))
    step(scheduler)
    scheduler._step += AGING_STEPS + 1
    late = add(scheduler, 5, 3, new=2)
    assert not scheduler.schedule(16).preempted
    steps_until(scheduler, [late])
    assert old.num_preemptions == young.num_preemptions == 0


def test_a_long_prompt_does_not_starve_behind_short_ones() -> None:
    scheduler = make(40, max_tokens=8, max_sequences=4)
    for kind in range(1, 4):
        add(scheduler, 6, kind)
    long = add(scheduler, 100, 9, new=2)
    num_steps = 0
    while long.state is not SequenceState.FINISHED and num_steps < 80:
        num_steps += 1
        add(scheduler, 6, 10 + num_steps)
        step(scheduler, 4)
    assert long.state is SequenceState.FINISHED


# Who has to go


def test_the_youngest_is_preempted_and_goes_on_where_it_was() -> None:
    scheduler = make(5, page_size=4)
    old = add(scheduler, 7, 1, new=10)
    step(scheduler)
    young = add(scheduler, 6, 2, new=6)
    text = []
    while not young.num_preemptions and old.state is not SequenceState.FINISHED:
        text = list(young.token_ids)
        step(scheduler)
    assert young.state is SequenceState.PREEMPTED and not young.pages and young.token_ids == text
    assert scheduler.num_waiting == scheduler.num_preemptions == 1
    add(scheduler, 1, 3)  # came later, and must not overtake it
    num_cached = young.num_cached
    steps_until(scheduler, [old])
    ran = step(scheduler)
    assert young in ran and ran[young][0] > 0  # one of its two pages was taken, one is found
    assert young.num_cached == num_cached == 0
    steps_until(scheduler, [young])
    assert young.token_ids[6:] == [7000 + i for i in range(6)]


def test_preempted_in_prefill_it_finds_what_it_had_computed() -> None:
    scheduler = make(10, page_size=4, max_tokens=8)
    old = add(scheduler, 8, 1, new=12)
    step(scheduler)
    young = add(scheduler, 24, 2, new=2)
    computed = 0
    while not young.num_preemptions and old.state is not SequenceState.FINISHED:
        step(scheduler, 2)
        computed = young.num_computed or computed
    assert young.state is SequenceState.PREEMPTED and 0 < computed < 24
    scheduler.remove(old)
    step(scheduler)
    assert young.num_computed >= computed + 8 - 4 and young.num_cached == 0
    steps_until(scheduler, [young])


def test_if_those_whose_turn_it_was_must_go_it_is_the_turn_of_others() -> None:
    scheduler = make(5, page_size=2, max_tokens=1, max_sequences=2)
    old, young = add(scheduler, 3, 1, new=8), add(scheduler, 1, 2, new=8)
    while old.state is not SequenceState.FINISHED:
        assert step(scheduler), "a step without work"
    assert young.num_preemptions
    steps_until(scheduler, [young])


def test_64_mixed_sequences_in_24_pages_all_end() -> None:
    scheduler = make(24, page_size=32, max_tokens=512, max_sequences=16, max_logits=64)
    draw = random.Random(0)
    sequences = []
    for kind in range(64):
        num_tokens = draw.choice([10, 50, 150, 300])
        sequences.append(add(scheduler, num_tokens, kind, new=draw.randint(1, 120)))
    steps_until(scheduler, sequences, 64)
    for sequence in sequences:
        assert sequence.token_ids[sequence.num_prompt :] == [
            7000 + i for i in range(sequence.max_new_tokens)
        ]
    assert scheduler.num_preemptions and scheduler.pool.num_evictions
    assert scheduler.pool.num_used == 0


# What is found


def test_the_next_turn_runs_only_what_is_new() -> None:
    scheduler = make()
    first = add(scheduler, 22, new=3)
    steps_until(scheduler, [first])
    again = Sequence([*first.token_ids, 1, 2, 3], max_new_tokens=1)
    scheduler.add(again)
    schedule = scheduler.schedule(16)
    [chunk] = schedule.chunks
    # 24 tokens were run: 6 pages; the last generated one was not.
    assert (chunk.start, chunk.num_tokens, schedule.copies) == (24, 4, ())
    finish(scheduler, schedule)
    assert again.num_cached == 24
    assert (scheduler.prefix_query_tokens, scheduler.prefix_hit_tokens) == (22 + 28, 24)


def test_an_edit_in_the_middle_keeps_what_is_before_it() -> None:
    scheduler = make()
    steps_until(scheduler, [add(scheduler, 30, new=1)])
    edited = prompt(30)
    edited[18] = 5
    sequence = Sequence(edited, max_new_tokens=1)
    scheduler.add(sequence)
    schedule = scheduler.schedule(16)
    [chunk], [(source, target)] = schedule.chunks, schedule.copies
    assert (chunk.start, chunk.num_tokens) == (18, 12)  # exactly the new ones
    assert target == sequence.pages[4] and source not in sequence.pages
    finish(scheduler, schedule)
    assert sequence.num_cached == 18 and sequence.num_new == 1


def test_the_last_token_runs_always() -> None:
    scheduler = make()
    for num_tokens in (16, 17, 18):
        steps_until(scheduler, [add(scheduler, num_tokens, num_tokens, new=1)])
        again = add(scheduler, num_tokens, num_tokens, new=1)
        assert step(scheduler) == {again: (num_tokens - 1, 1)}
        assert again.num_cached == num_tokens - 1


def test_the_source_of_a_copy_stays_until_the_step_is_over() -> None:
    scheduler = make(4, page_size=4)
    pool = scheduler.pool
    steps_until(scheduler, [add(scheduler, 6, 1, new=1)])
    other = add(scheduler, 6, 1, new=1)
    schedule = scheduler.schedule(16)
    [(source, _)] = schedule.copies
    assert pool.references(source) == 1 and pool.num_cached == 0
    pool.free(pool.allocate(1))
    with pytest.raises(AssertionError):
        pool.allocate(2)  # the source is not to be had
    scheduler.remove(other)
    assert pool.references(source) == 0 and pool.num_used == 0


def test_namespaces_do_not_see_each_other() -> None:
    scheduler = make()
    for namespace, found in ((0, 0), (1, 0), (2, 0), (1, 8), (0, 8)):
        sequence = Sequence(prompt(9), max_new_tokens=1, namespace=namespace)
        scheduler.add(sequence)
        steps_until(scheduler, [sequence])
        assert sequence.num_cached == found


def test_equal_prompts_at_the_same_time_are_computed_once() -> None:
    scheduler = make(max_tokens=8, max_sequences=4)
    sequences = [Sequence(prompt(30), max_new_tokens=8) for _ in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    num_tokens = 0
    while not all(s.prompt_done for s in sequences):
        num_tokens += sum(n for _, n in step(scheduler).values())
    # The whole prompt once; the others each run their last token, all at most a page's rest.
    assert 30 <= num_tokens <= 30 + 2 * 2 + 8
    assert len({tuple(s.pages[:7]) for s in sequences}) == 1
    assert all(s.num_cached >= 28 for s in sequences[1:]) and not sequences[0].num_cached
    assert scheduler.pool.num_used <= 7 + 3 * 2


def test_what_two_have_computed_is_kept_once() -> None:
    scheduler = make(max_tokens=32, max_logits=16)
    first = add(scheduler, 10, new=20)
    second = Sequence(prompt(10), max_new_tokens=20, all_logits=True)  # takes no hits
    scheduler.add(second)
    schedule = scheduler.schedule(16)
    assert [(c.start, c.num_tokens) for c in schedule.chunks] == [(0, 10), (0, 10)]
    version = second.table_version
    finish(scheduler, schedule)
    assert first.pages[:2] == second.pages[:2] and first.pages[2] != second.pages[2]
    assert second.table_version != version
    # They answer the same, so far.
    for _ in range(4):
        step(scheduler)
    assert first.pages[:3] == second.pages[:3]
    scheduler.remove(first)
    steps_until(scheduler, [second])
    assert scheduler.pool.num_used == 0


def test_a_cold_cache_is_evicted_the_oldest_first_and_from_the_end() -> None:
    scheduler = make(8, page_size=4)
    for kind in (1, 2):
        steps_until(scheduler, [add(scheduler, 12, kind, new=1)])
    steps_until(scheduler, [add(scheduler, 20, 3, new=1)])  # two free, three more needed
    assert scheduler.pool.num_evictions == 3
    left = sorted(c for _, c, _ in scheduler.pool.cached_chains())
    assert [len(c) for c in left] == [4, 8, 12, 4, 8, 12, 16, 20]
    assert left[0][0] == 2000


# Several answers


def test_n_answers_share_the_pages_of_the_prompt() -> None:
    scheduler = make()
    first = add(scheduler, 18, new=6)
    others = [Sequence(prompt(18), max_new_tokens=6, wait_for=first) for _ in range(3)]
    for other in others:
        scheduler.add(other)
    assert list(step(scheduler)) == [first]
    step(scheduler)
    assert first.prompt_done and not others[0].pages
    schedule = scheduler.schedule(16)
    assert len(schedule.copies) == 3
    for other in others:
        assert other.pages[:4] == first.pages[:4] and other.pages[4] != first.pages[4]
    assert [(c.start, c.num_tokens) for c in schedule.chunks[1:]] == [(17, 1)] * 3
    assert [scheduler.pool.references(p) for p in first.pages] == [4, 4, 4, 4, 4]  # 3 copy the last
    finish(scheduler, schedule)
    assert scheduler.pool.references(first.pages[4]) == 1
    steps_until(scheduler, [first, *others])
    assert all(o.num_cached == 17 for o in others)


def test_n_answers_without_the_first_one() -> None:
    scheduler = make(max_tokens=4)
    first = add(scheduler, 18)
    others = [Sequence(prompt(18), max_new_tokens=2, wait_for=first) for _ in range(2)]
    for other in others:
        scheduler.add(other)
    step(scheduler)
    scheduler.remove(first)
    assert step(scheduler) == {others[0]: (4, 4)}  # the same page for both: one runs it
    steps_until(scheduler, others)


def test_those_that_wait_for_another_let_others_pass() -> None:
    scheduler = make(max_tokens=4)
    first = add(scheduler, 18)
    waiting = Sequence(prompt(18), max_new_tokens=2, wait_for=first)
    scheduler.add(waiting)
    third = add(scheduler, 2, 3)
    assert set(step(scheduler)) == {first, third}


def test_without_a_cache_only_those_that_wait_find_pages() -> None:
    scheduler = make(prefix_cache=False)
    first = add(scheduler, 18, new=9)
    step(scheduler)
    step(scheduler)
    waited = Sequence(prompt(18), max_new_tokens=2, wait_for=first)
    scheduler.add(waited)
    again = Sequence(prompt(18), max_new_tokens=2)
    scheduler.add(again)
    assert step(scheduler) == {first: (18, 1), waited: (17, 1), again: (0, 14)}
    steps_until(scheduler, [first, waited, again])
    assert scheduler.pool.num_free == 64 and not list(scheduler.pool.cached_chains())
    assert (waited.num_cached, again.num_cached) == (17, 0)


def test_without_a_cache_the_pages_of_the_one_that_had_to_go_are_not_found() -> None:
    scheduler = make(8, prefix_cache=False)
    background = add(scheduler, 18, new=9, priority=1)
    while not background.prompt_done:
        step(scheduler)
    urgent = Sequence(prompt(18), max_new_tokens=2, wait_for=background)
    scheduler.add(urgent)
    assert scheduler.pool.num_available == 3
    step(scheduler)  # one page and a little headroom: there is room for both
    assert urgent.num_cached == 17
    scheduler.remove(urgent)
    scheduler.pool.allocate(2)
    last = Sequence(prompt(18), max_new_tokens=2, wait_for=background)
    scheduler.add(last)
    schedule = scheduler.schedule(16)
    assert schedule.preempted == (background,) and last.num_cached == 0
    assert [(c.sequence, c.start, c.num_tokens) for c in schedule.chunks] == [(last, 0, 16)]


# What goes wrong


def test_preempted_before_its_token_was_chosen_it_comes_by_its_logits_again() -> None:
    scheduler = make(5, page_size=4)
    old = add(scheduler, 7, 1, new=12)
    step(scheduler)
    young = add(scheduler, 8, 2, new=6)
    scheduler.commit(scheduler.schedule(16))  # and no token is appended to the young one
    scheduler.append(old, 1)
    while not young.num_preemptions:
        scheduler.commit(scheduler.schedule(16))
        scheduler.append(old, 1)
        scheduler.check()
    assert young.num_pending == 8
    scheduler.remove(old)
    assert step(scheduler) == {young: (4, 4)}  # the other page has gone to the old one
    assert young.num_new == 1


def test_a_failed_step_leaves_nothing_behind() -> None:
    scheduler = make()
    good = add(scheduler, 6, 1, new=9)
    step(scheduler)
    bad = [add(scheduler, 10, 2), add(scheduler, 6, 1)]  # the second one copies a page
    found = {c for _, c, _ in scheduler.pool.cached_chains()}
    schedule = scheduler.schedule(16)
    assert {c.sequence for c in schedule.chunks} == {good, *bad} and schedule.copies
    for sequence in bad:
        scheduler.remove(sequence)
    scheduler.check()
    assert {c for _, c, _ in scheduler.pool.cached_chains()} == found
    assert scheduler.pool.num_used == len(good.pages)
    assert good.num_computed == 6
    assert step(scheduler) == {good: (6, 1)}  # again, as it was not committed
    steps_until(scheduler, [good])


def test_a_failed_step_can_be_tried_again() -> None:
    scheduler = make()
    steps_until(scheduler, [add(scheduler, 6, new=1)])
    sequence = add(scheduler, 7)
    first = scheduler.schedule(16)
    second = scheduler.schedule(16)
    assert first.copies == second.copies and len(first.copies) == 1
    assert [(c.start, c.num_tokens) for c in second.chunks] == [(6, 1)]
    with pytest.raises(AssertionError):
        scheduler.commit(first)
    finish(scheduler, second)
    assert sequence.num_cached == 6


def test_cancelled_while_the_step_runs() -> None:
    scheduler = make()
    sequences = [add(scheduler, 6, kind) for kind in (1, 2)]
    schedule = scheduler.schedule(16)
    scheduler.remove(sequences[0])
    finish(scheduler, schedule)
    assert sequences[0].num_computed == 0 and sequences[1].num_new == 1
    assert not any(c[0] == 1000 for _, c, _ in scheduler.pool.cached_chains())


def test_a_token_is_appended_only_to_what_is_computed() -> None:
    scheduler = make()
    sequence = add(scheduler, 3)
    with pytest.raises(AssertionError):
        scheduler.append(sequence, 1)
    step(scheduler)
    with pytest.raises(AssertionError):
        scheduler.append(sequence, 1)  # one is pending already
    scheduler.remove(sequence)
    scheduler.remove(sequence)
    with pytest.raises(AssertionError):
        scheduler.append(sequence, 1)


def test_a_thousand_cancellations_leave_no_page_used() -> None:
    scheduler = make(24, max_sequences=6, max_tokens=12)
    draw = random.Random(1)
    live: list[Sequence] = []
    states = set()
    for num_cancelled in range(1000):
        while len(live) < 12:
            kind, priority = draw.randrange(9), draw.randrange(2)
            wait_for = draw.choice([None, *live])
            sequence = Sequence(
                prompt(draw.randint(1, 30), kind),
                max_new_tokens=draw.randint(0, 30),
                priority=priority,
                wait_for=wait_for,
            )
            scheduler.add(sequence)
            live.append(sequence)
        for _ in range(draw.randrange(4)):
            step(scheduler, draw.randint(1, 12))
        sequence = live.pop(draw.randrange(len(live)))
        states.add((sequence.state, sequence.prompt_done))
        used = set(sequence.pages)
        scheduler.remove(sequence)
        others = {p for s in live for p in s.pages}
        assert all(scheduler.pool.references(p) == 0 for p in used - others), num_cancelled
    for sequence in live:
        scheduler.remove(sequence)
    scheduler.check()
    assert scheduler.pool.num_used == scheduler.num_running == scheduler.num_waiting == 0
    assert len(states) >= 6  # waiting, in prefill, decoding, preempted before and after it, ended
