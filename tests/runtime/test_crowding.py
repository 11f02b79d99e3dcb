"""Crowding: fewer threads while others hold them up, more when they no longer do; made-up time."""

from types import SimpleNamespace

import numpy as np
import pytest

from llamba.runtime.crowding import Crowding
from llamba.runtime.team import Team

STEP_S = 0.005


def run(crowding: Crowding, free_cores: int, seconds: float) -> list[int]:
    """Steps on a machine with so many free cores: more threads than that wait two thirds of it."""
    counts = []
    for _ in range(round(seconds / STEP_S)):
        counts.append(crowding.active)
        crowding.ran(STEP_S, 0.65 if crowding.active > free_cores else 0.01)
    return counts


def test_all_threads_on_a_free_machine() -> None:
    assert set(run(Crowding(4), 4, 10)) == {4}


@pytest.mark.parametrize(("threads", "free"), [(2, 1), (4, 3), (4, 1), (3, 0)])
def test_as_many_as_there_are_cores(threads: int, free: int) -> None:
    counts = run(Crowding(threads), free, 10)
    assert counts[0] == threads
    settled = counts[len(counts) // 2 :]
    fewest = max(1, free)
    assert min(settled) == fewest
    share = settled.count(fewest) / len(settled)
    assert share > 0.85  # tries are short and rare


@pytest.mark.parametrize("threads", [2, 4])
def test_recovers_within_a_second(threads: int) -> None:
    crowding = Crowding(threads)
    run(crowding, 1, 10)
    counts = run(crowding, threads, 4)
    assert set(counts[round(2 / STEP_S) :]) == {threads}
    if threads == 2:
        assert set(counts[round(1 / STEP_S) :]) == {2}


def test_a_long_step_counts_as_much_as_many_short_ones() -> None:
    crowding = Crowding(2)
    crowding.ran(1.0, 0.1)
    assert crowding.active == 2
    crowding.ran(1.0, 0.5)
    assert crowding.active == 1


def test_more_threads_than_cores() -> None:
    """At most two for each core begin; a crowd is as many as there are cores at once."""
    cores = 2
    crowding = Crowding(16, lambda: cores)
    assert crowding.active == 4
    crowding.ran(1.0, 0.6)
    assert crowding.active == 2
    assert set(run(crowding, 2, 4)) == {2, 3}  # one more is tried now and then
    crowding = Crowding(16, lambda: cores)
    cores = 1  # the set of CPUs was changed
    crowding.ran(1.0, 0.6)
    assert crowding.active == 1
    assert Crowding(3, lambda: 8).active == 3


def test_one_thread_has_nobody_to_wait_for() -> None:
    crowding = Crowding(1)
    for _ in range(100):
        crowding.ran(0.01, 0.9)
    assert crowding.active == 1


def test_threads_that_wait_in_turn_count_together() -> None:
    """Four threads on one core: each waits a third of the time, so that most of it is lost."""
    crowding = Crowding(4)
    team = SimpleNamespace(_waits=np.array([30, 30, 30, 30]), _crowding=crowding)
    assert Team.waiting(team, took=100) == pytest.approx(0.4)  # type: ignore[arg-type]
    team._waits[:] = [90, 90, 90, 0]  # one was late
    assert Team.waiting(team, took=100) == pytest.approx(0.9)  # type: ignore[arg-type]
    crowding.active = 1
    assert Team.waiting(team, took=100) == 1.0  # type: ignore[arg-type]
