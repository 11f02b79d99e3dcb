"""Which parts of a GBNF grammar may be read as whole lexemes without changing its language.

llguidance reads text in lexemes, always the longest possible one: with the lexemes /[a-z]+/ and "x"
the rule `word "x"` could never end. GBNF knows no lexemes. Yet a parser that goes character by
character would be slow, so parts that are regular become lexemes wherever the longest match is the
only one: where no lexeme could go on after the end of another with a character that the grammar
also allows to follow it. All others are taken apart.
"""

from bisect import bisect_right
from collections.abc import Iterable

from .gbnf_nodes import (
    Chars,
    Choice,
    Grammar,
    Literal,
    Node,
    Ref,
    Repeat,
    Sequence,
    children_of,
    refs_in,
    regular_rules,
)

_MOST_POSITIONS = 1500  # of an automaton
_MOST_NODES = 10_000  # that are gone through for one
_MOST_LEXEMES = 200


class TooLarge(Exception):
    """A part has too many characters to be looked through."""


class Alphabet:
    """Characters in classes that the grammar never tells apart; sets of them are bits of an int."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._starts = sorted({0, *(p for first, last in ranges for p in (first, last + 1))})

    def of(self, ranges: Iterable[tuple[int, int]]) -> int:
        """The set of the characters in these ranges."""
        bits = 0
        for first, last in ranges:
            low = bisect_right(self._starts, first) - 1
            high = bisect_right(self._starts, last)
            bits |= (1 << high) - (1 << low)
        return bits


class Automaton:
    """The positions of a regular part (Glushkov's construction); counts above 1 mean any number."""

    def __init__(self, nodes: list[Node], grammar: Grammar, alphabet: Alphabet) -> None:
        self.sets: list[int] = []  # of characters, one a position
        self.follow: list[set[int]] = []
        self._grammar, self._alphabet = grammar, alphabet
        self._num_nodes = 0
        self.nullable, self.first, self.last = self._sequence(nodes)

    def first_chars(self) -> int:
        """What it may begin with."""
        return self.chars(self.first)

    def chars(self, positions: Iterable[int]) -> int:
        """The characters of some positions."""
        bits = 0
        for p in positions:
            bits |= self.sets[p]
        return bits

    def _position(self, chars: int) -> tuple[bool, set[int], set[int]]:
        if len(self.sets) >= _MOST_POSITIONS:
            raise TooLarge
        self.sets.append(chars)
        self.follow.append(set())
        here = {len(self.sets) - 1}
        return False, here, here

    def _sequence(self, nodes: Iterable[Node]) -> tuple[bool, set[int], set[int]]:
        nullable, first, last = True, set[int](), set[int]()
        for node in nodes:
            also, begins, ends = self._build(node)
            for p in last:
                self.follow[p] |= begins
            first = first | begins if nullable else first
            last = last | ends if also else ends
            nullable = nullable and also
        return nullable, first, last

    def _build(self, node: Node) -> tuple[bool, set[int], set[int]]:
        self._num_nodes += 1
        if self._num_nodes > _MOST_NODES:
            raise TooLarge
        if isinstance(node, Chars):
            return self._position(self._alphabet.of(node.ranges))
        if isinstance(node, Literal):
            return self._sequence(Chars(((ord(c), ord(c)),)) for c in node.text)
        if isinstance(node, Ref):
            return self._build(self._grammar.rules[node.name])
        if isinstance(node, Sequence):
            return self._sequence(node.items)
        if isinstance(node, Choice):
            nullable, first, last = False, set[int](), set[int]()
            for item in node.items:
                also, begins, ends = self._build(item)
                nullable, first, last = nullable or also, first | begins, last | ends
            return nullable, first, last
        nullable, first, last = self._build(node.item)
        if node.most is None or node.most > 1:
            for p in last:
                self.follow[p] |= first
        return nullable or node.least == 0, first, last


class Lexeme:
    """Neighbouring nodes that are read as one, or a single one. `after`: what may follow it."""

    __slots__ = ("after", "automaton", "key", "nodes")

    def __init__(self, nodes: list[Node], automaton: Automaton) -> None:
        self.nodes = nodes
        self.key = tuple(map(id, nodes))
        self.automaton = automaton
        self.after = 0


class Group:
    """Parts that are planned apart. `kind`: a Sequence or Choice of them, or the Repeat of one."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: Node, parts: "list[Plan]") -> None:
        self.kind = kind
        self.parts = parts


Plan = Lexeme | Ref | Group


class Planner:
    """Divides a grammar's rules into lexemes. `plans`: of the rules that are no lexemes."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.plans: dict[str, Plan] = {}
        self._regular = regular_rules(grammar)
        self._alphabet = Alphabet(_all_ranges(grammar))
        self._apart: set[tuple[int, ...]] = set()  # keys of lexemes that are taken apart
        self._open: set[str] = set()  # regular rules that are taken apart
        self._automata: dict[tuple[int, ...], Automaton] = {}
        self._all_apart = False
        while not self._attempt():
            pass

    def _attempt(self) -> bool:
        """Plan everything; whether no lexeme is in another's way."""
        self.plans = {}
        todo = ["root"]
        while todo:
            name = todo.pop()
            if name not in self.plans:
                self.plans[name] = plan = self._plan(self.grammar.rules[name])
                todo += [part.name for part in parts_of(plan) if isinstance(part, Ref)]
        if self._all_apart:
            return True
        lexemes = [p for plan in self.plans.values() for p in parts_of(plan) if type(p) is Lexeme]
        if len(lexemes) > _MOST_LEXEMES:
            self._all_apart = True
            return False
        self._follow()
        longer = {
            i
            for i, u in enumerate(lexemes)
            if any(u.automaton.follow) and any(_goes_on(t, u) for t in lexemes)
        }
        for i in longer:
            self._take_apart(lexemes[i])
        return not longer

    def _take_apart(self, lexeme: Lexeme) -> None:
        self._apart.add(lexeme.key)
        if len(lexeme.nodes) == 1 and isinstance(lexeme.nodes[0], Ref):
            self._open.add(lexeme.nodes[0].name)

    def _plan(self, node: Node) -> Plan:
        whole = self._lexeme([node])
        if whole is not None:
            return whole
        if isinstance(node, Literal):
            items: list[Node] = [Chars(((ord(c), ord(c)),)) for c in node.text]
            return Group(Sequence(items), [Lexeme([c], self._automaton([c])) for c in items])
        if isinstance(node, Ref):
            return node
        if isinstance(node, Sequence):
            return Group(node, self._plan_sequence(node.items))
        if isinstance(node, Choice):
            return Group(node, [self._plan(item) for item in node.items])
        assert isinstance(node, Repeat)
        return Group(node, [self._plan(node.item)])

    def _plan_sequence(self, items: list[Node]) -> list[Plan]:
        """Runs of regular neighbours as one lexeme each, where that may be."""
        plans: list[Plan] = []
        start = 0
        while start < len(items):
            end = start
            while end < len(items) and self._is_regular(items[end]):
                end += 1
            run = self._lexeme(items[start:end]) if end - start > 1 else None
            if run is not None:
                plans.append(run)
                start = end
                continue
            plans += [self._plan(item) for item in items[start : max(end, start + 1)]]
            start = max(end, start + 1)
        return plans

    def _lexeme(self, nodes: list[Node]) -> Lexeme | None:
        """These nodes as one lexeme; None if they must not be one."""
        single_char = len(nodes) == 1 and isinstance(nodes[0], Chars)
        if single_char:
            return Lexeme(nodes, self._automaton(nodes))
        if self._all_apart or tuple(map(id, nodes)) in self._apart:
            return None
        if not all(map(self._is_regular, nodes)):
            return None
        try:
            automaton = self._automaton(nodes)
        except TooLarge:
            if len(self.plans) == 0 and nodes[0] is self.grammar.rules["root"]:
                return Lexeme(nodes, Automaton([], self.grammar, self._alphabet))  # all there is
            self._apart.add(tuple(map(id, nodes)))
            return None
        return Lexeme(nodes, automaton) if automaton.sets else None

    def _automaton(self, nodes: list[Node]) -> Automaton:
        key = tuple(map(id, nodes))
        if key not in self._automata or isinstance(nodes[0], Chars):
            self._automata[key] = Automaton(nodes, self.grammar, self._alphabet)
        return self._automata[key]

    def _is_regular(self, node: Node) -> bool:
        names = set(refs_in(node))
        return names <= self._regular and not names & self._open

    def _follow(self) -> None:
        """What may follow each lexeme: FIRST and FOLLOW sets, until nothing changes."""
        first: dict[str, tuple[bool, int]] = dict.fromkeys(self.plans, (False, 0))
        after = dict.fromkeys(self.plans, 0)

        def begin(plan: Plan) -> tuple[bool, int]:
            if isinstance(plan, Lexeme):
                return plan.automaton.nullable, plan.automaton.first_chars()
            if isinstance(plan, Ref):
                return first[plan.name]
            found = [begin(part) for part in plan.parts]
            if isinstance(plan.kind, Repeat):
                [(nullable, chars)] = found
                return nullable or plan.kind.least == 0, chars
            if isinstance(plan.kind, Choice):
                return any(n for n, _ in found), _union(c for _, c in found)
            chars = 0
            for nullable, begins in found:
                chars |= begins
                if not nullable:
                    return False, chars
            return True, chars

        def spread(plan: Plan, chars: int) -> None:
            if isinstance(plan, Lexeme):
                plan.after |= chars
            elif isinstance(plan, Ref):
                after[plan.name] |= chars
            elif isinstance(plan.kind, Sequence):
                for part in reversed(plan.parts):
                    spread(part, chars)
                    nullable, begins = begin(part)
                    chars = chars | begins if nullable else begins
            else:
                again = isinstance(plan.kind, Repeat) and plan.kind.most not in (0, 1)
                for part in plan.parts:
                    spread(part, chars | begin(part)[1] if again else chars)

        before: object = None
        while before != (first, after):
            before = dict(first), dict(after)
            first.update({name: begin(plan) for name, plan in self.plans.items()})
            for name, plan in self.plans.items():
                spread(plan, after[name])


def parts_of(plan: Plan) -> list[Lexeme | Ref]:
    """The lexemes and the rules that a plan consists of."""
    found: list[Lexeme | Ref] = []
    stack = [plan]
    while stack:
        part = stack.pop()
        if isinstance(part, Lexeme | Ref):
            found.append(part)
        else:
            stack += part.parts
    return found


def _goes_on(t: Lexeme, u: Lexeme) -> bool:
    """Whether `u` may go on where `t` ends, with a character that may also follow `t`."""
    a, b = t.automaton, u.automaton
    if not t.after or not a.first_chars() & b.first_chars():
        return False
    seen = {(p, q) for p in a.first for q in b.first if a.sets[p] & b.sets[q]}
    stack = list(seen)
    while stack:
        p, q = stack.pop()
        if p in a.last and b.chars(b.follow[q]) & t.after:
            return True
        for x in a.follow[p]:
            for y in b.follow[q]:
                if a.sets[x] & b.sets[y] and (x, y) not in seen:
                    seen.add((x, y))
                    stack.append((x, y))
        if len(seen) > 20_000:
            return True
    return False


def _union(sets: Iterable[int]) -> int:
    bits = 0
    for chars in sets:
        bits |= chars
    return bits


def _all_ranges(grammar: Grammar) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    stack = list(grammar.rules.values())
    while stack:
        node = stack.pop()
        stack += children_of(node)
        if isinstance(node, Chars):
            found += node.ranges
        elif isinstance(node, Literal):
            found += [(ord(c), ord(c)) for c in node.text]
    return found
