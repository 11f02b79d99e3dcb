"""A GBNF grammar, read and checked, as llguidance's Lark."""

import json

from ..errors import ConstraintError
from .gbnf_lexemes import Lexeme, Plan, Planner
from .gbnf_nodes import (
    Chars,
    Choice,
    Grammar,
    Literal,
    Node,
    Ref,
    Repeat,
    Sequence,
    is_nullable,
    nullable_rules,
    refs_in,
)

_MOST_NODES = 20_000


def write_lark(grammar: Grammar) -> str:
    """The Lark text; its rules and terminals are numbered."""
    for name, node in grammar.rules.items():
        grammar.rules[name] = _straighten(name, node)
    return _Writer(grammar).write()


class _Writer:
    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.numbers = {name: i for i, name in enumerate(grammar.rules)}
        self.nullable = nullable_rules(grammar)
        self.plans = Planner(grammar).plans
        self.lexemes: dict[tuple[int, ...], str] = {}
        self.terminals: dict[str, str] = {}  # regular rules that lexemes consist of
        self.lines: list[str] = []
        self.num_nodes = 0

    def write(self) -> str:
        for name, plan in self.plans.items():
            self.lines.append(f"r{self.numbers[name]}: {self.rule(plan)}")
        defined: set[str] = set()
        while set(self.terminals) - defined:
            for name in sorted(set(self.terminals) - defined):
                defined.add(name)
                expression = self.terminal(self.grammar.rules[name])
                self.lines.append(f"{self.terminals[name]}: {expression}")
        return "\n".join([f"start: r{self.numbers['root']}", *self.lines])

    def rule(self, plan: Plan) -> str:
        """A plan in a rule: lexemes by name."""
        if isinstance(plan, Lexeme):
            return self.lexeme(plan)
        if isinstance(plan, Ref):
            return f"r{self.numbers[plan.name]}"
        parts = [self.rule(part) for part in plan.parts]
        return _joined(plan.kind, parts)

    def lexeme(self, lexeme: Lexeme) -> str:
        """The name of a lexeme, with ? if it may be missing: none is empty."""
        node = lexeme.nodes[0] if len(lexeme.nodes) == 1 else Sequence(lexeme.nodes)
        if isinstance(node, Chars | Literal):
            return self.terminal(node)
        optional = is_nullable(node, self.nullable)
        if lexeme.key not in self.lexemes:
            some = self.some(node) if optional else node
            assert some is not None, "a lexeme has positions"
            name = self.lexemes[lexeme.key] = f"T{len(self.lexemes)}"
            self.lines.append(f"{name}: {self.terminal(some)}")
        return self.lexemes[lexeme.key] + "?" * optional

    def terminal(self, node: Node) -> str:
        """A regular node in a terminal."""
        if isinstance(node, Literal):
            return json.dumps(node.text, ensure_ascii=False)
        if isinstance(node, Chars):
            return f"/{_class(node.ranges)}/"
        if isinstance(node, Ref):
            return self.terminals.setdefault(node.name, f"N{self.numbers[node.name]}")
        items = [node.item] if isinstance(node, Repeat) else node.items
        return _joined(node, [self.terminal(item) for item in items])

    def some(self, node: Node) -> Node | None:
        """A node without the empty text; None if nothing is left."""
        self.num_nodes += 1
        if self.num_nodes > _MOST_NODES:
            raise ConstraintError("grammar: it has too many parts that may be empty")
        if not is_nullable(node, self.nullable):
            return node
        if isinstance(node, Ref):
            return self.some(self.grammar.rules[node.name])
        if isinstance(node, Choice):
            items = [some for item in node.items if (some := self.some(item)) is not None]
            return Choice(items) if items else None
        if isinstance(node, Repeat):
            some = self.some(node.item)
            if some is None or node.most == 0:
                return None
            return Repeat(some, 1, node.most)
        if isinstance(node, Sequence) and node.items:
            first, rest = self.some(node.items[0]), node.items[1:]
            after = self.some(Sequence(rest))
            found = [] if first is None else [Sequence([first, *rest])]
            found += [] if after is None else [after]
            return Choice(list(found)) if found else None
        return None


def _joined(kind: Node, parts: list[str]) -> str:
    if isinstance(kind, Repeat):
        if kind.most == 0:
            return '""'
        counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        most = "" if kind.most is None else kind.most
        return f"({parts[0]})" + counts.get((kind.least, kind.most), f"{{{kind.least},{most}}}")
    if not parts:
        return '""'
    if len(parts) == 1:
        return parts[0]
    return f"({(' | ' if isinstance(kind, Choice) else ' ').join(parts)})"


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    """A character class of a regular expression; surrogates are no characters there."""
    parts = []
    for first, last in ranges:
        first = 0xE000 if 0xD800 <= first < 0xE000 else first
        last = 0xD7FF if 0xD800 <= last < 0xE000 else last
        if first <= last:
            parts.append(f"\\u{{{first:X}}}" + (f"-\\u{{{last:X}}}" if last > first else ""))
    return f"[{''.join(parts)}]"


def _straighten(name: str, node: Node) -> Node:
    """`ws ::= " " ws | ""` as `ws ::= " "* ""`: a loop can be a lexeme, a recursion can't."""
    before: list[Node] = []
    ends: list[Node] = []
    for items in _alternatives(node):
        *others, last = items or [Literal("")]
        if any(name in refs_in(item) for item in others):
            return node
        if isinstance(last, Ref) and last.name == name:
            before.append(Sequence(others))
        elif name in refs_in(last):
            return node
        else:
            ends.append(Sequence(items))
    if not before or not ends:
        return node
    return Sequence([Repeat(Choice(before), 0, None), Choice(ends)])


def _alternatives(node: Node) -> list[list[Node]]:
    """The sequences of which a node is one."""
    if isinstance(node, Sequence) and len(node.items) == 1:
        return _alternatives(node.items[0])
    if isinstance(node, Choice):
        return [items for item in node.items for items in _alternatives(item)]
    if isinstance(node, Repeat) and (node.least, node.most) == (0, 1):
        return [*_alternatives(node.item), []]
    return [node.items if isinstance(node, Sequence) else [node]]
