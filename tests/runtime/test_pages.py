"""PagePool: invariants under any sequence of operations, and ascending runs where there are any."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from llamba.runtime.pages import PagePool

NUM_PAGES = 12


class PageMachine(RuleBasedStateMachine):
    """The pool beside a plain model: a list of tables, each of which owns its pages."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.live: list[list[int]] = []

    @rule(target=tables, count=st.integers(0, NUM_PAGES), extend=st.booleans())
    def allocate(self, count: int, extend: bool) -> object:
        """Free pages only, each once."""
        if count > self.pool.num_free:
            with pytest.raises(AssertionError):
                self.pool.allocate(count)
            return multiple()
        before = {p for t in self.live for p in t}
        after = self.live[-1][-1] if extend and self.live and self.live[-1] else None
        pages = self.pool.allocate(count, after=after)
        assert len(set(pages)) == count and not before & set(pages)
        self.live.append(pages)
        return pages

    @rule(target=tables, table=tables)
    def share(self, table: list[int]) -> object:
        """A second owner of the same pages."""
        copy = list(table)
        self.pool.share(copy)
        self.live.append(copy)
        return copy

    @rule(table=consumes(tables))
    def free(self, table: list[int]) -> None:
        """One owner less."""
        self.live = [t for t in self.live if t is not table]
        self.pool.free(table)

    @invariant()
    def sound(self) -> None:
        """Free + used = all, and the counts are those of the tables."""
        self.pool.check()
        for page in range(NUM_PAGES):
            assert self.pool.references(page) == sum(t.count(page) for t in self.live)
        assert self.pool.num_free + self.pool.num_used == NUM_PAGES


TestPages = PageMachine.TestCase
TestPages.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_runs_ascend_without_gaps() -> None:
    pool = PagePool(10)
    first = pool.allocate(3)
    second = pool.allocate(2)
    assert (first, second) == ([0, 1, 2], [3, 4])
    pool.free(first)
    assert pool.allocate(4) == [5, 6, 7, 8]  # the gap of three is too short
    assert pool.allocate(2, after=0) == [1, 2]
    assert pool.allocate(2) == [0, 9]  # no run left: the lowest free ones


def test_growth_continues_after_the_last_page() -> None:
    pool = PagePool(8)
    table = pool.allocate(2)
    for _ in range(6):
        table += pool.allocate(1, after=table[-1])
    assert table == list(range(8))


def test_double_free_is_caught() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.free(pages)
    with pytest.raises(AssertionError):
        pool.free(pages)
    with pytest.raises(AssertionError):
        pool.share(pages)
