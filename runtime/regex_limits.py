"""Limits for regular expressions of strangers, looked at before they are compiled."""

import re
from collections.abc import Iterator

from ..errors import ConstraintError

MAX_NESTING = 100
MAX_REPEATS = 100_000  # of all counted repeats around one another
_ATOM = re.compile(r"\\.|\{\d+(?:,\d*)?\}|\{,\d+\}|.", re.DOTALL)


def check_regex(regex: str, where: str) -> None:
    """Refuse nesting and counted repeats that could take much time or memory."""
    sizes = [1]  # of the largest repeat inside each group that is open
    last = 1
    for token in _regex_tokens(regex):
        if token == "(":
            sizes.append(1)
            if len(sizes) > MAX_NESTING:
                raise ConstraintError(f"{where}: nested deeper than {MAX_NESTING} levels")
        elif token == ")":
            last = sizes.pop() if len(sizes) > 1 else sizes[0]
            sizes[-1] = max(sizes[-1], last)
        elif token[0] == "{":
            last *= max((int(n[:18]) for n in re.findall(r"\d+", token)), default=1)
            sizes[-1] = max(sizes[-1], last)
            if last > MAX_REPEATS:
                raise ConstraintError(
                    f"{where}: {token[:40]} repeats too much: {MAX_REPEATS:,} is the limit"
                )
        else:
            last = 1


def _regex_tokens(regex: str) -> Iterator[str]:
    """Groups, counts, and anything else an atom at a time; classes are atoms."""
    in_class = False
    for match in _ATOM.finditer(regex):
        if in_class:
            in_class = match[0] != "]"
        else:
            in_class = match[0] == "["
            yield match[0]
