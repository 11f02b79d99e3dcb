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
    above: dict[int, Node] = {}  # by a node's id
    named: dict[int, str] = {}  # the rules' own nodes
    refs: dict[str, list[Node]] = {}
    missing: dict[int, int] = {}  # what a node still waits for: all items, or one
    todo: list[Node] = []  # nullable nodes, of which what is above is yet to hear: linear time
    for name, rule in grammar.rules.items():
        named[id(rule)] = name
        stack = [rule]
        while stack:
            node = stack.pop()
            below = children_of(node)
            stack += below
            above.update((id(child), node) for child in below)
            if isinstance(node, Ref):
                refs.setdefault(node.name, []).append(node)
            if isinstance(node, Sequence):
                missing[id(node)] = len(below)
            else:
                empty = isinstance(node, Literal) and not node.text
                optional = isinstance(node, Repeat) and node.least == 0
                missing[id(node)] = 0 if empty or optional else 1
            if not missing[id(node)]:
                todo.append(node)
    while todo:
        node = todo.pop()
        name = named.get(id(node))
        waiting = [above[id(node)]] if id(node) in above else []
        if name is not None:
            found.add(name)
            waiting += refs.get(name, [])
        for other in waiting:
            missing[id(other)] -= 1
            if not missing[id(other)]:
                todo.append(other)
    return found


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
    missing = {name: set(refs_in(node)) for name, node in grammar.rules.items()}
    users: dict[str, list[str]] = {}
    for name, refs in missing.items():
        for ref in refs:
            users.setdefault(ref, []).append(name)
    regular: set[str] = set()
    todo = [name for name, refs in missing.items() if not refs]
    while todo:
        name = todo.pop()
        regular.add(name)
        for user in users.get(name, ()):
            missing[user].remove(name)
            if not missing[user]:
                todo.append(user)
    return regular
