"""Which parts of a GBNF grammar may be read as whole lexemes without changing its language.

llguidance reads text in lexemes, always the longest possible one: with the lexemes /[a-z]+/ and "x"
the rule `word "x"` could never end. GBNF knows no lexemes. Yet a parser that goes character by
character would be slow, so parts that are regular become lexemes wherever the longest match is the
only one: where no lexeme could go on after the end of another with a character that the grammar
also allows to follow it. All others are taken apart.
"""

from collections.abc import Iterable

from .gbnf_automaton import Alphabet, Automaton, TooLarge
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

_MOST_LEXEMES = 200
_MOST_PAIRS = 20_000  # of positions of two lexemes
_MOST_WORK = 1_000_000  # pairs of positions and parts that are looked at: half a second


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
        self._work = 0
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
        parts = [part for plan in self.plans.values() for part in parts_of(plan)]
        lexemes = [part for part in parts if isinstance(part, Lexeme)]
        try:
            if len(lexemes) > _MOST_LEXEMES:
                raise TooLarge
            self._follow(len(parts))
            longer = {
                i
                for i, u in enumerate(lexemes)
                if any(u.automaton.follow) and any(self._goes_on(t, u) for t in lexemes)
            }
        except TooLarge:
            self._all_apart = True
            return False
        for i in longer:
            self._take_apart(lexemes[i])
        return not longer

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > _MOST_WORK:
            raise TooLarge

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

    def _follow(self, num_parts: int) -> None:
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
            self._spend(num_parts)
            before = dict(first), dict(after)
            first.update({name: begin(plan) for name, plan in self.plans.items()})
            for name, plan in self.plans.items():
                spread(plan, after[name])

    def _goes_on(self, t: Lexeme, u: Lexeme) -> bool:
        """Whether `u` may go on where `t` ends, with a character that may also follow `t`."""
        a, b = t.automaton, u.automaton
        if not t.after or not a.first_chars() & b.first_chars():
            return False
        self._spend(len(a.first) * len(b.first))
        seen = {(p, q) for p in a.first for q in b.first if a.sets[p] & b.sets[q]}
        stack = list(seen)
        while stack:
            p, q = stack.pop()
            if p in a.last and b.chars(b.follow[q]) & t.after:
                return True
            self._spend(1 + len(a.follow[p]) * len(b.follow[q]))
            for x in a.follow[p]:
                for y in b.follow[q]:
                    if a.sets[x] & b.sets[y] and (x, y) not in seen:
                        seen.add((x, y))
                        stack.append((x, y))
            if len(seen) > _MOST_PAIRS:
                return True
        return False


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
