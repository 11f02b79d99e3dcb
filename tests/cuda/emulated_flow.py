"""Which variables of a kernel's function are needed later, and where threads may leave it."""

import ast
from collections.abc import Iterable
from functools import cache


@cache
def used(node: ast.AST | None) -> frozenset[str]:
    """Variables that it reads."""
    if node is None:
        return frozenset()
    if isinstance(node, ast.Name):
        return frozenset((node.id,)) if isinstance(node.ctx, ast.Load) else frozenset()
    return frozenset().union(*(used(n) for n in ast.iter_child_nodes(node)))


@cache
def _stored(node: ast.AST) -> frozenset[str]:
    if isinstance(node, ast.Name):
        return frozenset((node.id,)) if isinstance(node.ctx, ast.Store) else frozenset()
    return frozenset().union(*(_stored(n) for n in ast.iter_child_nodes(node)))


def assigned(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Variables that they assign."""
    return frozenset().union(*(_stored(n) for n in nodes))


class Flow:
    """What is live: after each `if` and loop, at the head of each loop and of each `else`."""

    def __init__(self) -> None:
        self.after: dict[ast.stmt, frozenset[str]] = {}
        self.head: dict[ast.stmt, frozenset[str]] = {}

    def live(
        self,
        nodes: list[ast.stmt],
        out: frozenset[str],
        left: frozenset[str],
        again: frozenset[str],
    ) -> frozenset[str]:
        """Before `nodes`, when `out` is after them, `left` after a break, `again` a continue."""
        for node in reversed(nodes):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    out = out - assigned([target])
                out = out | used(node.value)
            elif isinstance(node, ast.AugAssign):
                out = out | used(node.value) | {node.target.id}  # type: ignore[union-attr]
            elif isinstance(node, ast.Return):
                out = used(node.value)
            elif isinstance(node, ast.Break):
                out = left
            elif isinstance(node, ast.Continue):
                out = again
            elif isinstance(node, ast.If):
                self.after[node] = out
                self.head[node] = self.live(node.orelse, out, left, again)
                body = self.live(node.body, out, left, again)
                out = used(node.test) | body | self.head[node]
            elif isinstance(node, ast.While | ast.For):
                out = self._loop(node, out)
            else:
                out = out | used(node)
        return out

    def _loop(self, node: ast.While | ast.For, out: frozenset[str]) -> frozenset[str]:
        self.after[node] = out
        tested = used(node.test) if isinstance(node, ast.While) else frozenset()
        counted = assigned([node.target]) if isinstance(node, ast.For) else frozenset()
        head = out | tested
        while True:
            found = out | tested | (self.live(node.body, head, out, head) - counted)
            if found == head:
                break
            head = found
        self.head[node] = head
        return head | (used(node.iter) if isinstance(node, ast.For) else frozenset())


def leaves(nodes: list[ast.stmt], kinds: tuple[type, ...]) -> bool:
    """Whether a thread may leave these statements by one of these kinds of statement."""
    for node in nodes:
        if isinstance(node, kinds):
            return True
        if isinstance(node, ast.If) and leaves([*node.body, *node.orelse], kinds):
            return True
        if isinstance(node, ast.While | ast.For):
            outer = tuple(k for k in kinds if k is ast.Return)
            if outer and leaves(node.body, outer):
                return True
    return False


EXITS = (ast.Return, ast.Break, ast.Continue)
