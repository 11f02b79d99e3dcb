"""Refuses GBNF grammars that can't be run: missing rules, left recursion, too many repeats."""

from collections.abc import Iterator

from ..errors import ConstraintError
from .gbnf_nodes import (
    Grammar,
    Node,
    Ref,
    Repeat,
    Sequence,
    children_of,
    is_nullable,
    nullable_rules,
    refs_in,
    regular_rules,
)
from .regex_limits import MAX_REPEATS


def check_grammar(grammar: Grammar) -> None:
    """ConstraintError, with the line, for the first thing that is wrong."""
    if "root" not in grammar.rules:
        raise ConstraintError("grammar: there is no rule 'root', which a GBNF grammar starts with")
    for name, node in grammar.rules.items():
        for ref in refs_in(node):
            if ref not in grammar.rules:
                line = grammar.lines[name]
                raise ConstraintError(f"grammar: line {line}: there is no rule {ref[:60]!r}")
    _check_left_recursion(grammar)
    _check_repeats(grammar)


def _check_repeats(grammar: Grammar) -> None:
    """Counts within counts, also through rules, multiply."""
    largest = dict.fromkeys(grammar.rules, 1)
    regular = regular_rules(grammar)

    def size(node: Node) -> int:
        if isinstance(node, Ref):
            return largest[node.name]
        inside = max(map(size, children_of(node)), default=1)
        return inside * max(node.least, node.most or 0, 1) if isinstance(node, Repeat) else inside

    for _ in range(20):  # as many levels of rules with counts; recursion multiplies for ever
        new = {name: size(node) for name, node in grammar.rules.items()}
        if new == largest:
            return
        for name, count in new.items():
            if count > MAX_REPEATS and name in regular:
                raise ConstraintError(
                    f"grammar: line {grammar.lines[name]}: its repetitions make {count:,} in all; "
                    f"{MAX_REPEATS:,} are the limit"
                )
        largest = {name: min(count, MAX_REPEATS**2) for name, count in new.items()}


def _check_left_recursion(grammar: Grammar) -> None:
    nullable = nullable_rules(grammar)

    def first_refs(node: Node) -> Iterator[str]:
        if isinstance(node, Ref):
            yield node.name
        elif isinstance(node, Sequence):
            for item in node.items:
                yield from first_refs(item)
                if not is_nullable(item, nullable):
                    return
        else:
            for item in children_of(node):
                yield from first_refs(item)

    edges = {name: set(first_refs(node)) for name, node in grammar.rules.items()}
    done: set[str] = set()
    for root in edges:
        path: dict[str, Iterator[str]] = {root: iter(edges[root])}
        while path:
            name = next(reversed(path))
            for following in path[name]:
                if following in path:
                    line = grammar.lines[following]
                    raise ConstraintError(
                        f"grammar: line {line}: the rule {following[:60]!r} begins with itself "
                        "(left recursion); repeat with * or +, or put the recursion last"
                    )
                if following not in done:
                    path[following] = iter(edges[following])
                    break
            else:
                done.add(name)
                del path[name]
