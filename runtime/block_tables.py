"""BlockTables: which pages a sequence holds: found, taken, made findable, let go. Integers only."""

from .pages import PagePool
from .prefix import Node
from .sequence import Sequence


class BlockTables:
    """Keeps the sequences' `pages`, `node`, `num_computed` and `num_cached`, and the pool in step.

    A running sequence's full pages are those of the path to its `node`: what it computed is either
    findable by its own page, or was there already, and then it uses that one. The page behind them
    is its own alone, and so are those that come.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.size = pool.page_size
        self.query_tokens = 0  # prompt tokens of the sequences that looked for pages
        self.hit_tokens = 0  # those of them that were found
        self._pins: dict[Sequence, int] = {}  # sources of the copies of the step under way

    def find(self, sequence: Sequence) -> list[int]:
        """The pages that a waiting sequence can start with."""
        if not self._may_find(sequence):
            sequence.node = None
            return []
        # From the last attempt's node on: a long prompt is not looked up again in every step.
        node = sequence.node if sequence.node is not None and sequence.node.alive else None
        end = sequence.num_logits if sequence.wants_all else len(sequence.token_ids) - 1
        node = sequence.node = self.pool.index.follow(
            node, sequence.namespace, sequence.token_ids, end // self.size
        )
        return node.path() if node is not None else []

    def num_new(self, sequence: Sequence, found: list[int]) -> int:
        """Pages that must be available to start with these: new ones, and found unused ones."""
        num_pages = -(-len(sequence.token_ids) // self.size)
        return num_pages - len(found) + sum(not self.pool.references(p) for p in found)

    def start(self, sequence: Sequence, found: list[int]) -> None:
        """Pages for all tokens that there are; `found` as find() has just said."""
        self.pool.share(found)
        num_new = -(-len(sequence.token_ids) // self.size) - len(found)
        after = found[-1] if found else None
        sequence.pages = found + self.pool.allocate(num_new, after=after)
        sequence.table_version += 1
        sequence.num_computed = len(found) * self.size
        if sequence.num_preemptions == 0 and self._may_find(sequence):
            self.query_tokens += sequence.num_prompt
        self._count_hit(sequence, sequence.num_computed)

    def is_full(self, sequence: Sequence) -> bool:
        """The next token needs another page."""
        return sequence.num_computed >= len(sequence.pages) * self.size

    def is_full_at(self, sequence: Sequence, end: int) -> bool:
        """The token at this position needs another page."""
        return end >= len(sequence.pages) * self.size

    def extend(self, sequence: Sequence) -> None:
        """One more page."""
        sequence.pages += self.pool.allocate(1, after=sequence.pages[-1])

    def take_over(self, sequence: Sequence) -> None:
        """Use the pages that others have computed since, in place of its own empty ones."""
        if not self._may_find(sequence) or sequence.wants_all:
            return
        node = self.pool.index.follow(
            sequence.node,
            sequence.namespace,
            sequence.token_ids,
            (len(sequence.token_ids) - 1) // self.size,
        )
        depth = sequence.num_computed // self.size
        if node is None or node.depth <= depth:
            return
        for at, page in enumerate(node.path()[depth:], depth):
            self._exchange(sequence, at, page)
        sequence.node = node
        self._count_hit(sequence, node.depth * self.size - sequence.num_computed)
        sequence.num_computed = node.depth * self.size

    def find_partial(self, sequence: Sequence) -> tuple[Node | None, int]:
        """A page whose first tokens are the next ones, and how many of them; (None, 0) if none."""
        at, num_computed = divmod(sequence.num_computed, self.size)
        if num_computed or not self._may_find(sequence) or sequence.wants_all:
            return None, 0
        # All but the last one, which must run.
        end = min((at + 1) * self.size, len(sequence.token_ids) - 1)
        tokens = tuple(sequence.token_ids[at * self.size : end])
        return self.pool.index.overlap(sequence.node, sequence.namespace, tokens)

    def next_page(self, sequence: Sequence) -> tuple[object, ...] | None:
        """What the page that a sequence in prefill computes next can be found by, once full."""
        at = sequence.num_computed // self.size
        end = (at + 1) * self.size
        if end >= len(sequence.token_ids) or not self._may_find(sequence) or sequence.wants_all:
            return None
        tokens = tuple(sequence.token_ids[at * self.size : end])
        return sequence.namespace, sequence.node, tokens

    def copy(self, sequence: Sequence, source: Node) -> tuple[int, int]:
        """Keep the source of a copy until the step is over; returns (source, target)."""
        self._pins[sequence] = source.page
        self.pool.share((source.page,))
        return source.page, sequence.pages[sequence.num_computed // self.size]

    def unpin(self) -> None:
        """The copies were made, or never will be."""
        if self._pins:
            self.pool.free(tuple(self._pins.values()))
            self._pins.clear()

    def computed(self, sequence: Sequence, start: int, end: int) -> None:
        """The tokens from `start` to `end` have run, those before it are there."""
        if start > sequence.num_computed:  # by a copy
            self._count_hit(sequence, start - sequence.num_computed)
        first = sequence.num_computed // self.size
        sequence.num_computed = end
        for at in range(first, end // self.size):
            tokens = tuple(sequence.token_ids[at * self.size : (at + 1) * self.size])
            node = self.pool.publish(sequence.node, sequence.namespace, tokens, sequence.pages[at])
            if node.page != sequence.pages[at]:  # another sequence computed the same
                self._exchange(sequence, at, node.page)
            sequence.node = node
        if end >= sequence.num_prompt and not sequence.prompt_done:
            sequence.prompt_done = True
            self._publish_partial(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """Take a sequence its pages; what is computed stays findable."""
        if sequence in self._pins:
            self.pool.free((self._pins.pop(sequence),))
        if self.pool.prefix_cache:
            self._publish_partial(sequence)
        self.pool.free(sequence.pages)
        sequence.pages = []
        sequence.table_version += 1

    def check(self, running: list[Sequence]) -> None:
        """Assert that these tables and the pool agree."""
        self.pool.check()
        pinned = list(self._pins.values())
        users = [pinned.count(page) for page in range(self.pool.num_pages)]
        for sequence in running:
            assert len(set(sequence.pages)) == len(sequence.pages)
            assert sequence.num_computed <= len(sequence.token_ids)
            assert sequence.num_computed <= len(sequence.pages) * self.size
            node = sequence.node
            path = node.path() if node is not None else []
            assert (node is None or node.alive) and sequence.pages[: len(path)] == path
            assert len(path) == sequence.num_computed // self.size
            for page in sequence.pages:
                users[page] += 1
        assert users == [self.pool.references(p) for p in range(self.pool.num_pages)]
        for sequence in running:
            for page in sequence.pages[sequence.num_computed // self.size :]:
                assert users[page] == 1 + pinned.count(page), "a page to be written is shared"

    def _publish_partial(self, sequence: Sequence) -> None:
        """Make the last, partly filled page findable as far as it is computed."""
        at, num_tokens = divmod(sequence.num_computed, self.size)
        if num_tokens:
            tokens = tuple(sequence.token_ids[at * self.size : sequence.num_computed])
            self.pool.publish(sequence.node, sequence.namespace, tokens, sequence.pages[at])

    def _exchange(self, sequence: Sequence, at: int, page: int) -> None:
        """Use a page of the index in place of an own one that is no better."""
        self.pool.share((page,))
        self.pool.free((sequence.pages[at],))
        sequence.pages[at] = page
        sequence.table_version += 1

    def _may_find(self, sequence: Sequence) -> bool:
        return self.pool.prefix_cache or sequence.wait_for is not None

    def _count_hit(self, sequence: Sequence, num_tokens: int) -> None:
        """Only in the first pass over the prompt."""
        if sequence.num_preemptions == 0:
            sequence.num_cached += num_tokens
            self.hit_tokens += num_tokens
