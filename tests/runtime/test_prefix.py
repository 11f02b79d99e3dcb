"""PrefixIndex and the cache in PagePool: exact matches, what gives way, what comes from a file."""

from hypothesis import given, settings
from hypothesis import strategies as st

from llamba.runtime.pages import PagePool
from llamba.runtime.prefix import Node, PrefixIndex

SIZE = 3
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


def store(index: PrefixIndex, tokens: list[int], page: int) -> int:
    """Insert all pages of these tokens; returns the next unused page id."""
    node: Node | None = None
    for begin in range(0, len(tokens), SIZE):
        there, _ = index.insert(node, 0, tuple(tokens[begin : begin + SIZE]), page)
        page += 1
        if len(there.tokens) == SIZE:
            node = there
    return page


def longest(index: PrefixIndex, tokens: list[int]) -> int:
    """How many first tokens are found, full pages and a part of one."""
    node = index.follow(None, 0, tokens, len(tokens) // SIZE)
    begin = node.depth * SIZE if node is not None else 0
    _, num_common = index.overlap(node, 0, tuple(tokens[begin : begin + SIZE]))
    return begin + num_common


@settings(max_examples=300, deadline=None)
@given(stored=st.lists(TOKENS, max_size=8), wanted=TOKENS)
def test_finds_the_longest_common_beginning(stored: list[list[int]], wanted: list[int]) -> None:
    index = PrefixIndex(SIZE)
    page = 0
    for tokens in stored:
        page = store(index, tokens, page)
        index.check()
    by_hand = [
        next((i for i, (a, b) in enumerate(zip(s, wanted, strict=False)) if a != b), None)
        or (min(len(s), len(wanted)) if s[0] == wanted[0] else 0)
        for s in stored
    ]
    assert longest(index, wanted) == max([0, *by_hand])


def test_a_partial_page_gives_way_to_one_with_more() -> None:
    index = PrefixIndex(4)
    short, _ = index.insert(None, 0, (1, 2), 0)
    other, dropped = index.insert(None, 0, (1, 3), 1)
    assert dropped is None
    longer, dropped = index.insert(None, 0, (1, 2, 3), 2)
    assert dropped is short and not short.alive
    assert index.insert(None, 0, (1,), 3) == (longer, None)
    assert [n.page for n in (longer, other)] == [2, 1]
    index.check()


def test_roots_come_and_go() -> None:
    index = PrefixIndex(2)
    node, _ = index.insert(None, 7, (1, 2), 0)
    child, _ = index.insert(node, 7, (3,), 1)
    assert index.follow(None, 8, [1, 2], 1) is None
    assert index.overlap(None, 8, (1, 2)) == (None, 0)
    assert child.chain() == (1, 2, 3) and child.path() == [0, 1]
    index.remove(child)
    index.remove(node)
    assert not list(index.walk()) and not index._roots


def test_a_search_goes_on_from_where_it_was_and_back() -> None:
    index = PrefixIndex(2)
    first, _ = index.insert(None, 0, (1, 2), 0)
    second, _ = index.insert(first, 0, (3, 4), 1)
    tokens = [1, 2, 3, 4, 5, 6]
    assert index.follow(first, 0, tokens, 3) is second
    assert index.follow(second, 0, tokens, 1) is first
    assert index.follow(second, 0, tokens, 0) is None


# The cache in the pool


def fill(pool: PagePool, tokens: list[int], namespace: int = 0) -> list[int]:
    """Pages for these tokens, findable and used."""
    pages = pool.allocate(-(-len(tokens) // pool.page_size))
    node: Node | None = None
    for at, page in enumerate(pages):
        part = tuple(tokens[at * pool.page_size : (at + 1) * pool.page_size])
        node = pool.publish(node, namespace, part, page)
        assert node.page == page
    return pages


def test_pages_that_nobody_uses_are_cached_until_others_need_them() -> None:
    pool = PagePool(6, page_size=2)
    first = fill(pool, [1, 2, 3, 4])
    second = fill(pool, [5, 6, 7])
    pool.free(first)
    pool.free(second)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 4, 0)
    pool.share([first[0]])  # somebody begins like the first
    pool.free([first[0]])
    assert set(pool.allocate(3)) == {4, 5, first[1]}  # the free ones, then the oldest leaf
    assert set(pool.allocate(1)) == {second[1]}
    assert pool.num_evictions == 2
    assert sorted(t for _, t, _ in pool.cached_chains()) == [(1, 2), (5, 6)]
    pool.check()


def test_a_page_is_found_by_what_it_holds_in_the_end() -> None:
    pool = PagePool(4, page_size=3)
    [page] = pool.allocate(1)
    pool.publish(None, 0, (1,), page)
    pool.publish(None, 0, (1, 2), page)
    pool.publish(None, 0, (1, 2), page)
    assert list(pool.cached_chains()) == [(0, (1, 2), page)]
    [other] = pool.allocate(1)
    assert pool.publish(None, 0, (1, 2, 3), other).page == other
    pool.check()
    pool.free([page])  # has no node any more
    assert pool.num_free == 3 and pool.num_cached == 0


def test_a_cached_page_is_free_at_once_when_a_better_one_comes() -> None:
    pool = PagePool(4, page_size=3)
    pool.free(fill(pool, [1, 2]))
    assert pool.num_cached == 1
    fill(pool, [1, 2, 3])
    assert (pool.num_cached, pool.num_free, pool.num_used) == (0, 3, 1)
    pool.check()


def test_without_a_cache_pages_are_found_only_while_used() -> None:
    pool = PagePool(4, page_size=2, prefix_cache=False)
    pages = fill(pool, [1, 2, 3])
    assert len(list(pool.cached_chains())) == 2
    pool.free(pages)
    assert not list(pool.cached_chains()) and pool.num_free == 4
    assert pool.adopt(0, (), (1, 2)) is None
    pool.check()


def test_chains_can_be_saved_and_adopted() -> None:
    pool = PagePool(8, page_size=2)
    pool.free(fill(pool, [1, 2, 3, 4, 5]))
    pool.free(fill(pool, [1, 2], namespace=3))
    saved = list(pool.cached_chains())
    restored = PagePool(6, page_size=2)
    pages = {}
    for namespace, tokens, _ in saved:
        before = (len(tokens) - 1) // 2 * 2
        page = restored.adopt(namespace, tokens[:before], tokens[before:])
        assert page is not None
        pages[namespace, tokens] = page
        restored.check()
    assert {(n, t): p for n, t, p in restored.cached_chains()} == pages
    assert restored.num_cached == 4 and restored.num_free == 2
    assert restored.adopt(0, (1, 2), (3, 4)) is None  # there already
    assert restored.adopt(0, (1, 2), (3,)) is None  # there with more
    assert restored.adopt(0, (2, 1), (3, 4)) is None  # its parents are not there
    assert restored.num_free == 2
    # Instead of the partial page that is there:
    assert restored.adopt(0, (1, 2, 3, 4), (5, 6)) is not None
    restored.check()
    assert restored.num_cached == 4 and restored.num_free == 2
    restored.allocate(2)
    assert restored.adopt(0, (), (9, 9)) is None  # no page is free: nothing is evicted
    restored.allocate(3)
    assert [t for _, t, _ in restored.cached_chains()] == [(1, 2)]  # a first page stays longest
    restored.check()
