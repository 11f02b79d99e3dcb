"""GBNF, llama.cpp's grammar notation: read into a tree, checked, and handed on as Lark."""

import re

from ..errors import ConstraintError
from .gbnf_checks import check_grammar
from .gbnf_nodes import Chars, Choice, Grammar, Literal, Node, Ref, Repeat, Sequence
from .regex_limits import MAX_NESTING, MAX_REPEATS

MAX_RULES = 2000
_LAST_CHAR = 0x10FFFF
_NAME = re.compile(r"[A-Za-z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)+")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)+")
_REPEAT = re.compile(r"[*+?]|\{\s*(\d+)\s*(?:(,)\s*(?:(\d+)\s*)?)?\}")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_HEX = {"x": 2, "u": 4, "U": 8}


def gbnf_to_lark(text: str) -> str:
    """The same language in llguidance's Lark. ConstraintError: the text is no valid GBNF.

    Refused as by llama.cpp: rules without definition, left recursion; and what is larger than the
    limits above (PAINS P46, P47).
    """
    from .gbnf_lark import write_lark

    try:
        return write_lark(read_gbnf(text))
    except RecursionError:
        raise ConstraintError("grammar: its rules refer to one another too deeply") from None


def read_gbnf(text: str) -> Grammar:
    """The rules, checked."""
    grammar = _Reader(text).read()
    check_grammar(grammar)
    return grammar


class _Reader:
    """Reads the notation from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.depth = 0

    def read(self) -> Grammar:
        grammar = Grammar()
        self.skip(lines=True)
        while self.place < len(self.text):
            line = self.line()
            name = self.take(_NAME)
            if name is None:
                raise self.error("a rule's name is expected")
            if name in grammar.rules:
                raise self.error(f"the rule {name[:60]!r} is defined twice")
            self.skip()
            if not self.text.startswith("::=", self.place):
                raise self.error("'::=' is expected after a rule's name")
            self.place += 3
            self.skip(lines=True)
            grammar.lines[name] = line
            grammar.rules[name] = self.choice(nested=False)
            if len(grammar.rules) > MAX_RULES:
                raise self.error(f"there are more than {MAX_RULES:,} rules")
            if self.place < len(self.text) and self.peek() not in "\r\n":
                raise self.error("the end of the line is expected")
            self.skip(lines=True)
        return grammar

    def choice(self, *, nested: bool) -> Node:
        items = [self.sequence(nested=nested)]
        while self.next_is_bar(nested=nested):
            self.place += 1
            self.skip(lines=True)
            items.append(self.sequence(nested=nested))
        return items[0] if len(items) == 1 else Choice(items)

    def next_is_bar(self, *, nested: bool) -> bool:
        """Whether another alternative follows; it may begin on a line of its own."""
        before = self.place
        self.skip(lines=True)
        if self.peek() == "|":
            return True
        if not nested:
            self.place = before
        return False

    def sequence(self, *, nested: bool) -> Node:
        items: list[Node] = []
        while True:
            char = self.peek()
            if char == '"':
                items.append(self.literal())
            elif char == "[":
                items.append(self.chars())
            elif char == ".":
                self.place += 1
                items.append(Chars(((0, _LAST_CHAR),)))
            elif char == "(":
                items.append(self.group())
            elif char and char in "*+?{":
                if not items:
                    raise self.error(f"{char!r} has nothing before it to repeat")
                items.append(self.repeat(items.pop()))
            elif (name := self.take(_NAME)) is not None:
                items.append(Ref(name))
            elif char and char in "<!":
                raise self.error("token references (<...>) are not supported")
            else:
                return items[0] if len(items) == 1 else Sequence(items)
            self.skip(lines=nested)

    def group(self) -> Node:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"parentheses are nested deeper than {MAX_NESTING} levels")
        self.place += 1
        self.skip(lines=True)
        node = self.choice(nested=True)
        if self.peek() != ")":
            raise self.error("')' is expected")
        self.place += 1
        self.depth -= 1
        return Sequence([node])  # what is repeated stays together

    def repeat(self, item: Node) -> Node:
        match = _REPEAT.match(self.text, self.place)
        if match is None:
            raise self.error("a repetition is written {m}, {m,} or {m,n}")
        limits = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if match[0] in limits:
            least, most = limits[match[0]]
        else:
            least = int(match[1][:18])
            most = least if match[2] is None else int(match[3][:18]) if match[3] else None
        if max(least, most or 0) > MAX_REPEATS:
            raise self.error(f"{match[0][:40]}: {MAX_REPEATS:,} repetitions are the limit")
        if most is not None and most < least:
            raise self.error(f"{match[0][:40]}: the second number is smaller than the first")
        self.place = match.end()
        return Repeat(item, least, most)

    def literal(self) -> Node:
        self.place += 1
        chars = []
        while self.peek() != '"':
            chars.append(self.char("a text's closing quote"))
        self.place += 1
        return Literal("".join(chars))

    def chars(self) -> Node:
        self.place += 1
        negated = self.peek() == "^"
        self.place += negated
        ranges = []
        while self.peek() != "]":
            first = last = ord(self.char("a class's closing bracket"))
            if self.peek() == "-" and self.text[self.place + 1 : self.place + 2] not in ("]", ""):
                self.place += 1
                last = ord(self.char("a class's closing bracket"))
                if last < first:
                    raise self.error("a range of characters ends before it begins")
            ranges.append((first, last))
        self.place += 1
        if not ranges and not negated:
            raise self.error("a class without characters matches nothing")
        merged = merge_ranges(ranges)
        return Chars(invert_ranges(merged) if negated else merged)

    def char(self, missing: str) -> str:
        """One character, escapes understood."""
        char = self.peek()
        if not char:
            raise self.error(f"{missing} is missing")
        self.place += 1
        if char != "\\":
            return char
        kind = self.peek()
        self.place += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind in _HEX:
            digits = self.text[self.place : self.place + _HEX[kind]]
            if re.fullmatch(rf"[0-9A-Fa-f]{{{_HEX[kind]}}}", digits):
                code = int(digits, 16)
                if code <= _LAST_CHAR and not 0xD800 <= code < 0xE000:
                    self.place += len(digits)
                    return chr(code)
        raise self.error(f"unknown escape \\{kind}")

    def peek(self) -> str:
        return self.text[self.place : self.place + 1]

    def take(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.place)
        if match is None:
            return None
        self.place = match.end()
        return match[0]

    def skip(self, *, lines: bool = False) -> None:
        self.take(_SPACE_AND_LINES if lines else _SPACE)

    def line(self) -> int:
        return self.text.count("\n", 0, self.place) + 1

    def error(self, what: str) -> ConstraintError:
        near = self.text[self.place : self.place + 20].split("\n")[0]
        where = f", before {near!r}" if near else ""
        return ConstraintError(f"grammar: line {self.line()}: {what}{where}")


def merge_ranges(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sorted, overlaps and neighbours joined."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


def invert_ranges(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """All other code points."""
    found, start = [], 0
    for first, last in ranges:
        if first > start:
            found.append((start, first - 1))
        start = last + 1
    if start <= _LAST_CHAR:
        found.append((start, _LAST_CHAR))
    return tuple(found)
