"""PrefixIndex: which page holds the KV of which tokens. A tree of pages, matched token by token."""

from bisect import bisect_left, insort
from collections.abc import Iterator

Tokens = tuple[int, ...]


class Node:
    """A findable page: its tokens, behind those of its parents up to the root."""

    __slots__ = ("alive", "children", "depth", "namespace", "order", "page", "parent", "tokens")

    def __init__(self, parent: "Node | None", namespace: int, tokens: Tokens, page: int) -> None:
        self.parent = parent
        self.namespace = namespace
        self.tokens = tokens
        self.page = page
        self.depth: int = parent.depth + 1 if parent is not None else 0  # pages up to this one
        self.alive = True
        self.children: dict[Tokens, Node] = {}
        self.order: list[Tokens] = []  # the children's keys, sorted

    def path(self) -> list[int]:
        """The pages from the root's child to this one."""
        pages = []
        node = self
        while node.parent is not None:
            pages.append(node.page)
            node = node.parent
        return pages[::-1]

    def chain(self) -> Tokens:
        """All tokens up to the end of this page."""
        parts = []
        node = self
        while node.parent is not None:
            parts.append(node.tokens)
            node = node.parent
        return tuple(token for part in reversed(parts) for token in part)


class PrefixIndex:
    """Trees of pages, one for each namespace; a page is found by all tokens up to its end.

    Keys are the tokens themselves, so two prompts can't be mistaken for each other as they could
    by their hashes. A node with fewer tokens than a page holds (a partial page) has no children.
    No key begins with another one of the same parent: the longer one would serve both. That makes
    the longest common beginning one of two neighbours in sorted order.

    Where a method takes a node, None means the root of the namespace: roots come and go.

    >>> index = PrefixIndex(page_size=2)
    >>> first, _ = index.insert(None, 0, (5, 6), page=3)
    >>> second, _ = index.insert(first, 0, (7,), page=4)
    >>> index.follow(None, 0, [5, 6, 7, 8], max_pages=2).path()
    [3]
    >>> node, num_common = index.overlap(first, 0, (7, 8))
    >>> node.page, num_common
    (4, 1)
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._roots: dict[int, Node] = {}

    def follow(
        self, node: Node | None, namespace: int, token_ids: list[int], max_pages: int
    ) -> Node | None:
        """The deepest full page on the way of `token_ids`, at most `max_pages` deep.

        `node` is one on the way, where the search begins.
        """
        size = self.page_size
        here = node if node is not None else self._roots.get(namespace)
        if here is None:
            return None
        while here.parent is not None and here.depth > max_pages:
            here = here.parent
        while here.depth < max_pages:
            begin = here.depth * size
            child = here.children.get(tuple(token_ids[begin : begin + size]))
            if child is None:
                break
            here = child
        return here if here.depth else None

    def overlap(self, node: Node | None, namespace: int, tokens: Tokens) -> tuple[Node | None, int]:
        """The page behind `node` that begins like `tokens`, and how many tokens agree."""
        here = node if node is not None else self._roots.get(namespace)
        best, most = None, 0
        if here is not None and here.order:
            at = bisect_left(here.order, tokens)
            for key in here.order[max(0, at - 1) : at + 1]:
                num_common = common_prefix_len(key, tokens)
                if num_common > most:
                    best, most = here.children[key], num_common
        return best, most

    def insert(
        self, parent: Node | None, namespace: int, tokens: Tokens, page: int
    ) -> tuple[Node, Node | None]:
        """Make a page findable. Returns its node, and the one that was dropped in its favour.

        If a node with these tokens, or with these and more, is there already, that one comes back.
        """
        assert 0 < len(tokens) <= self.page_size
        if parent is None:
            parent = self._roots.get(namespace)
            if parent is None:
                parent = self._roots[namespace] = Node(None, namespace, (), -1)
        assert parent.alive and (parent.parent is None or len(parent.tokens) == self.page_size)
        there = parent.children.get(tokens)
        if there is not None:
            return there, None
        order = parent.order
        at = bisect_left(order, tokens)
        if at < len(order) and order[at][: len(tokens)] == tokens:
            return parent.children[order[at]], None
        dropped = None
        if at and tokens[: len(order[at - 1])] == order[at - 1]:
            dropped = parent.children[order[at - 1]]
            self._detach(dropped)
        node = Node(parent, namespace, tokens, page)
        parent.children[tokens] = node
        insort(order, tokens)
        return node, dropped

    def remove(self, node: Node) -> None:
        """Forget a page that no other one stands behind."""
        self._detach(node)
        root = node.parent
        if root is not None and root.parent is None and not root.children:
            root.alive = False
            del self._roots[root.namespace]

    def walk(self) -> Iterator[Node]:
        """All pages, parents before their children."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Assert what the class promises."""
        for namespace, root in self._roots.items():
            assert root.alive and root.children and root.namespace == namespace
        for node in (*self._roots.values(), *self.walk()):
            assert node.alive and node.order == sorted(node.children)
            for key, child in node.children.items():
                assert child.parent is node and child.tokens == key
                assert child.namespace == node.namespace and child.depth == node.depth + 1
                assert len(key) == self.page_size or not child.children
            for a, b in zip(node.order, node.order[1:], strict=False):
                assert b[: len(a)] != a, "a key begins with another one"

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None and node.alive and not node.children
        node.alive = False
        del parent.children[node.tokens]
        del parent.order[bisect_left(parent.order, node.tokens)]


def common_prefix_len(a: Tokens, b: Tokens) -> int:
    """How many tokens two runs have in common at their beginning.

    >>> common_prefix_len((1, 2, 3), (1, 2, 4, 5))
    2
    """
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)
