"""PagePool: which KV pages are in use, and by how many. Integers only: no arrays, no device."""

from collections.abc import Iterable, Sequence

_FREE, _USED = 1, 0


class PagePool:
    """Page ids 0..num_pages-1 with reference counts.

    A page is free (count 0) or used by as many sequences as its count says. Decode attention reads
    consecutive pages faster, so ids are handed out as ascending runs wherever there is one.

    >>> pool = PagePool(4)
    >>> first = pool.allocate(2)
    >>> first, pool.allocate(1, after=first[-1]), pool.num_free
    ([0, 1], [2], 1)
    >>> pool.free(first)
    >>> pool.num_free
    3
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._counts = [0] * num_pages
        self._free = bytearray([_FREE]) * num_pages  # bytes, so that `find` looks for runs
        self.num_free = num_pages

    @property
    def num_used(self) -> int:
        """Pages that are not free."""
        return self.num_pages - self.num_free

    def allocate(self, count: int, *, after: int | None = None) -> list[int]:
        """Take `count` free pages, continuing after page `after` where possible.

        The caller has looked at `num_free`: asking for more is its mistake.
        """
        assert 0 <= count <= self.num_free, f"{count} pages asked, {self.num_free} free"
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
        """One more user for each of these used pages."""
        for page in pages:
            assert self._counts[page] > 0, f"page {page} is free"
            self._counts[page] += 1

    def free(self, pages: Iterable[int]) -> None:
        """One user less for each; a page without users is free again."""
        for page in pages:
            assert self._counts[page] > 0, f"page {page} is free already"
            self._counts[page] -= 1
            if not self._counts[page]:
                self._free[page] = _FREE
                self.num_free += 1

    def references(self, page: int) -> int:
        """How many use this page."""
        return self._counts[page]

    def restore(self, tables: Iterable[Sequence[int]]) -> None:
        """Set all counts from the block tables there are, which are the truth.

        An interrupt can hit between taking pages and noting them; nothing leaks after this.
        """
        self._counts = [0] * self.num_pages
        for table in tables:
            for page in table:
                self._counts[page] += 1
        self._free = bytearray(_FREE if not c else _USED for c in self._counts)
        self.num_free = self._counts.count(0)

    def check(self) -> None:
        """Assert the invariants: free + used = all, free exactly where the count is 0."""
        assert all(c >= 0 for c in self._counts)
        assert [bool(f) for f in self._free] == [c == 0 for c in self._counts]
        assert self.num_free == self._counts.count(0)

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
