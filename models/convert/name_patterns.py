"""Patterns of modules' names in adapter_config.json, a stranger's: matched in bounded time.

Python's `re` tries all ways to match: `(a+)+$` takes for ever. Here all ways are followed at once
(Thompson, Regular Expression Search Algorithm, 1968): a step for each character of the name times
the pattern's length. Literals, `.`, escapes, classes, groups, `|`, `* + ? {m,n}`, `^` and `$`.
"""

import re
from collections.abc import Callable, Iterator

MAX_LEN = 1000  # characters of a pattern
MAX_STATES = 2000  # of its atoms, counted repeats written out
_MAX_NESTING = 50
_TOKEN = re.compile(
    r"(?P<open>\((?:\?:)?(?!\?))|(?P<close>\))|(?P<or>\|)"
    r"|(?P<repeat>(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??)(?![*+?{])"
    r"|(?P<edge>[\^$])"
    r"|(?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\[dDsSwW.\\^$*+?{}()|\[\]/_:-]|[^\\()|*+?{}\[\]^$])",
    re.DOTALL,
)
_PLAIN = re.compile(r"(?:[\w.-]|\\\.)*")  # nothing to choose between: safe for `re`
_Matcher = Callable[[str], object]  # whether an atom takes a character


class NamePattern:
    """A pattern that fits the end of a name, all of it or what stands behind a dot, as in PEFT.

    ValueError: it is none, or has what isn't supported, or is too long.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_LEN:
            raise ValueError(f"longer than {MAX_LEN:,} characters")
        self._plain = None
        if _PLAIN.fullmatch(pattern):
            self._plain = re.compile(rf"(?:.*\.)?(?:{pattern})")
            return
        # Of each state: "atom", "split", "^", "$", "end"; and the states that follow it.
        self._atoms: list[tuple[str, _Matcher | None]] = [("end", None)]
        self._next: list[tuple[int, ...]] = [()]
        self._tokens = list(_tokens(pattern))
        self._at = 0
        tree = self._choice(0)
        if self._at < len(self._tokens):
            raise ValueError("a ) without its (")
        self._start = self._built(tree, 0)

    def fits(self, name: str) -> bool:
        """Whether the whole name matches, or its part behind some dot."""
        if self._plain is not None:
            return self._plain.fullmatch(name) is not None
        states: set[int] = set()
        for at, character in enumerate(name):
            if at == 0 or name[at - 1] == ".":
                states.add(self._start)
            reached = self._reached(states, at == 0, False)
            states = set()
            for state in reached:
                kind, matches = self._atoms[state]
                if kind == "atom" and matches is not None and matches(character):
                    states.update(self._next[state])
        if not name or name[-1] == ".":
            states.add(self._start)
        return 0 in self._reached(states, not name, True)

    def _reached(self, states: set[int], at_start: bool, at_end: bool) -> set[int]:
        """Those and all that follow from them without a character."""
        found, left = set(states), list(states)
        while left:
            state = left.pop()
            kind = self._atoms[state][0]
            if kind == "split" or (kind == "^" and at_start) or (kind == "$" and at_end):
                more = [s for s in self._next[state] if s not in found]
                found.update(more)
                left += more
        return found

    # The tree: ("atom", text), ("edge", text), ("all", parts), ("any", parts),
    # ("repeat", part, least, most or None).

    def _choice(self, depth: int) -> tuple:
        if depth > _MAX_NESTING:
            raise ValueError(f"nested deeper than {_MAX_NESTING} levels")
        parts = [self._sequence(depth)]
        while self._peek() == "or":
            self._at += 1
            parts.append(self._sequence(depth))
        return ("any", parts)

    def _sequence(self, depth: int) -> tuple:
        parts: list[tuple] = []
        while (kind := self._peek()) not in (None, "or", "close"):
            text = self._tokens[self._at][1]
            self._at += 1
            if kind == "open":
                part = self._choice(depth + 1)
                if self._peek() != "close":
                    raise ValueError("a ( without its )")
                self._at += 1
                parts.append(part)
            elif kind == "repeat":
                if not parts or parts[-1][0] in ("edge", "repeat"):
                    raise ValueError(f"nothing to repeat before {text}")
                parts[-1] = ("repeat", parts[-1], *_limits(text))
            else:
                parts.append((kind, text))
        return ("all", parts)

    def _peek(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def _state(self, kind: str, matches: _Matcher | None, *following: int) -> int:
        if len(self._atoms) >= MAX_STATES:
            raise ValueError(f"its repeats have more than {MAX_STATES:,} parts")
        self._atoms.append((kind, matches))
        self._next.append(following)
        return len(self._atoms) - 1

    def _built(self, tree: tuple, following: int) -> int:
        """The state that begins a part, behind which `following` comes."""
        kind, content = tree[:2]
        if kind == "atom":
            try:
                return self._state("atom", re.compile(content).match, following)
            except re.error as error:
                raise ValueError(str(error)) from None
        if kind == "edge":
            return self._state(content, None, following)
        if kind == "any":
            return self._state("split", None, *[self._built(part, following) for part in content])
        if kind == "all":
            for part in reversed(content):
                following = self._built(part, following)
            return following
        least, most = tree[2:]
        if most is None:
            again = self._state("split", None)
            self._next[again] = (self._built(content, again), following)
            following = again
        for _ in range(0 if most is None else most - least):
            following = self._state("split", None, self._built(content, following), following)
        for _ in range(least):
            following = self._built(content, following)
        return following


def _tokens(pattern: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"{pattern[at : at + 10]!r} is not supported")
        at = match.end()
        yield match.lastgroup, match[0]


def _limits(repeat: str) -> tuple[int, int | None]:
    """The least and most times of a repeat; None: no limit."""
    if repeat[0] != "{":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[repeat[0]]
    least, comma, most = repeat.rstrip("?").strip("{}").partition(",")
    if not comma:
        return int(least), int(least)
    if most and int(most) < int(least):
        raise ValueError(f"{repeat}: the most is below the least")
    return int(least), int(most) if most else None
