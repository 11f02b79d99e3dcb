"""PagePool: which KV pages are in use, by how many, and which can be found. Integers only."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from .batch import PAGE_SIZE
from .prefix import Node, PrefixIndex, Tokens

_FREE, _USED = 1, 0


class PagePool:
    """Page ids 0..num_pages-1 with reference counts, and the prefix cache made of them.

    A page is free; or used by as many block tables as its count says; or cached: nobody uses it,
    but it can be found by its tokens. Cached pages are taken when the free ones are used up, the
    least recently used first and children before their parents. Decode attention reads
    consecutive pages faster, so ids are handed out as ascending runs wherever there is one.

    Whoever uses a page of the index uses all pages in front of it as well.

    Args:
        num_pages: how many there are.
        page_size: tokens in a page.
        prefix_cache: keep pages that nobody uses any more. False: they are free at once, and what
            is in the index is only what somebody uses.

    >>> pool = PagePool(4)
    >>> first = pool.allocate(2)
    >>> first, pool.allocate(1, after=first[-1]), pool.num_free
    ([0, 1], [2], 1)
    >>> pool.free(first)
    >>> pool.num_free
    3
    """

    def __init__(
        self, num_pages: int, *, page_size: int = PAGE_SIZE, prefix_cache: bool = True
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self.index = PrefixIndex(page_size)
        self.num_free = num_pages
        self.num_evictions = 0
        self._counts = [0] * num_pages
        self._free = bytearray([_FREE]) * num_pages  # bytes, so that `find` looks for runs
        self._nodes: list[Node | None] = [None] * num_pages
        self._cached: OrderedDict[int, None] = OrderedDict()  # the next to be evicted first

    @property
    def num_cached(self) -> int:
        """Pages that nobody uses but that can be found."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Pages that allocate() can give: free and cached ones."""
        return self.num_free + len(self._cached)

    @property
    def num_used(self) -> int:
        """Pages that somebody uses."""
        return self.num_pages - self.num_available

    def allocate(self, count: int, *, after: int | None = None) -> list[int]:
        """Take `count` pages, continuing after page `after` where possible; evict if necessary.

        The caller has looked at `num_available`: asking for more is its mistake.
        """
        assert 0 <= count <= self.num_available, (
            f"{count} pages asked, {self.num_available} available"
        )
        while self.num_free < count:
            self._evict()
        pages: list[int] = []
        if after is not None:
            pages += self._run_from(after + 1, count)
        if len(pages) < count:
            pages += self._best(count - len(pages), pages)
        for page in pages:
            self._counts[page] = 1
            self._free[page] = _USED
        self.num_free -= count
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more user for each of these pages, which are used or cached."""
        for page in pages:
            if not self._counts[page]:
                assert page in self._cached, f"page {page} is free"
                del self._cached[page]
            self._counts[page] += 1

    def free(self, pages: Sequence[int]) -> None:
        """One user less for each; a page without users is cached if it can be found, else free.

        The last page goes first: it is a child of those before it.
        """
        for page in reversed(pages):
            assert self._counts[page] > 0, f"page {page} is free already"
            self._counts[page] -= 1
            if self._counts[page]:
                continue
            node = self._nodes[page]
            if node is not None and self.prefix_cache:
                self._cached[page] = None
            else:
                if node is not None:
                    self._forget(node)
                self._set_free(page)

    def references(self, page: int) -> int:
        """How many use this page."""
        return self._counts[page]

    def publish(self, parent: Node | None, namespace: int, tokens: Tokens, page: int) -> Node:
        """Make a used page findable by these tokens behind `parent` (None: the beginning).

        Returns the node that has them; its page is another one if such a page was there already.
        If the page could be found by fewer tokens before, it is now by these.
        """
        assert self._counts[page] > 0, f"page {page} is free"
        old = self._nodes[page]
        if old is not None:
            if old.parent is parent and old.tokens == tokens:
                return old
            self._forget(old)
        node, dropped = self.index.insert(parent, namespace, tokens, page)
        if node.page == page:
            self._nodes[page] = node
        if dropped is not None:
            self._nodes[dropped.page] = None
            if dropped.page in self._cached:
                del self._cached[dropped.page]
                self._set_free(dropped.page)
        return node

    def cached_chains(self) -> Iterator[tuple[int, Tokens, int]]:
        """All pages that can be found, used or not: (namespace, tokens, page).

        `tokens` are all tokens from the beginning to the end of this page; a page that holds fewer
        tokens than it could is the last of its chain. Parents come before their children.
        """
        for node in self.index.walk():
            yield node.namespace, node.chain(), node.page

    def adopt(self, namespace: int, parent_tokens: Tokens, page_tokens: Tokens) -> int | None:
        """Take a free page for content from elsewhere; it is cached, for everybody to be found.

        The caller writes the KV of `page_tokens` into it at once. `parent_tokens` are all tokens
        before the page. None if there is no free page (nothing is evicted for it), the pages of
        `parent_tokens` are not there, or this page is there already.
        """
        num_parents, rest = divmod(len(parent_tokens), self.page_size)
        assert not rest and 0 < len(page_tokens) <= self.page_size
        if not self.num_free or not self.prefix_cache:
            return None
        parent = self.index.follow(None, namespace, list(parent_tokens), num_parents)
        if (parent.depth if parent is not None else 0) < num_parents:
            return None
        [page] = self.allocate(1, after=parent.page if parent is not None else None)
        found = self.publish(parent, namespace, tuple(page_tokens), page).page == page
        self.free((page,))
        for above in reversed(parent.path() if parent is not None else []):
            if above in self._cached:  # parents are evicted after their children
                self._cached.move_to_end(above)
        return page if found else None

    def check(self) -> None:
        """Assert the invariants: free + used + cached = all, and each page is what it seems."""
        self.index.check()
        assert all(c >= 0 for c in self._counts)
        nodes = {node.page: node for node in self.index.walk()}
        assert nodes == {p: node for p, node in enumerate(self._nodes) if node is not None}
        for page, count in enumerate(self._counts):
            assert (page in self._cached) == (count == 0 and page in nodes)
            assert bool(self._free[page]) == (count == 0 and page not in nodes)
        assert self.num_free == sum(self._free)
        assert self.num_free + self.num_cached + self.num_used == self.num_pages
        order = {page: at for at, page in enumerate(self._cached)}
        for page, at in order.items():
            for child in nodes[page].children.values():
                assert order.get(child.page, len(order)) < at, "a parent goes before its child"

    def _evict(self) -> None:
        """Free the least recently used cached page; no other one stands behind it."""
        page, _ = self._cached.popitem(last=False)
        node = self._nodes[page]
        assert node is not None
        self._forget(node)
        self._set_free(page)
        self.num_evictions += 1

    def _forget(self, node: Node) -> None:
        self.index.remove(node)
        self._nodes[node.page] = None

    def _set_free(self, page: int) -> None:
        self._free[page] = _FREE
        self.num_free += 1

    def _run_from(self, start: int, count: int) -> list[int]:
        """The free pages directly from `start` on, at most `count`."""
        end = self._free.find(_USED, start, start + count)
        end = min(start + count, self.num_pages) if end < 0 else end
        return list(range(start, max(start, end)))

    def _best(self, count: int, taken: Sequence[int]) -> list[int]:
        """The first free run that is long enough, else the lowest free pages; none of `taken`."""
        free = bytearray(self._free)
        for page in taken:
            free[page] = _USED
        start = free.find(bytes([_FREE]) * count)
        if start >= 0:
            return list(range(start, start + count))
        pages: list[int] = []
        page = -1
        while len(pages) < count:
            page = free.find(_FREE, page + 1)
            pages.append(page)
        return pages
