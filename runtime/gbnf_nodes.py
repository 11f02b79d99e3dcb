"""What a GBNF grammar consists of, and walks over it."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Literal:
    """A text."""

    text: str


@dataclass(eq=False, slots=True)
class Chars:
    """One character of some: code points (first, last), sorted, apart from each other."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(eq=False, slots=True)
class Ref:
    """Another rule."""

    name: str


@dataclass(eq=False, slots=True)
class Sequence:
    """One after the other; the empty text if there are none."""

    items: list["Node"]


@dataclass(eq=False, slots=True)
class Choice:
    """One of them."""

    items: list["Node"]


@dataclass(eq=False, slots=True)
class Repeat:
    """From `least` to `most` times; most None: any number."""

    item: "Node"
    least: int
    most: int | None


Node = Literal | Chars | Ref | Sequence | Choice | Repeat


@dataclass(slots=True)
class Grammar:
    """Rules by name; `lines` says where each is defined."""

    rules: dict[str, Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


def children_of(node: Node) -> list[Node]:
    """The nodes right below."""
    if isinstance(node, Sequence | Choice):
        return node.items
    return [node.item] if isinstance(node, Repeat) else []


def refs_in(node: Node) -> Iterator[str]:
    """Names of the rules that a node refers to."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Ref):
            yield node.name
        stack.extend(children_of(node))


def nullable_rules(grammar: Grammar) -> set[str]:
    """Rules that the empty text satisfies."""
    found: set[str] = set()
    while True:
        new = {
            name
            for name, node in grammar.rules.items()
            if name not in found and is_nullable(node, found)
        }
        if not new:
            return found
        found |= new


def is_nullable(node: Node, rules: set[str]) -> bool:
    """Whether the empty text satisfies a node; `rules` are those that it does."""
    if isinstance(node, Literal):
        return not node.text
    if isinstance(node, Chars):
        return False
    if isinstance(node, Ref):
        return node.name in rules
    if isinstance(node, Sequence):
        return all(is_nullable(item, rules) for item in node.items)
    if isinstance(node, Choice):
        return any(is_nullable(item, rules) for item in node.items)
    return node.least == 0 or is_nullable(node.item, rules)


def regular_rules(grammar: Grammar) -> set[str]:
    """Rules that never come back to themselves, nor refer to one that does."""
    refs = {name: set(refs_in(node)) for name, node in grammar.rules.items()}
    regular: set[str] = set()
    while True:
        new = {name for name, names in refs.items() if name not in regular and names <= regular}
        if not new:
            return regular
        regular |= new
