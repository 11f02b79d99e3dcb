"""The characters that a regular part of a GBNF grammar consists of, and which follow which."""

from bisect import bisect_right
from collections.abc import Iterable

from .gbnf_nodes import Chars, Choice, Grammar, Literal, Node, Ref, Sequence

_MOST_POSITIONS = 1500  # of an automaton
_MOST_NODES = 10_000  # that are gone through for one


class TooLarge(Exception):
    """A part has too many characters to be looked through, or all of them together have."""


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
