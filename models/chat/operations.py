"""Operators and filters of templates whose cost is known before they run."""

import json
import operator as operators
import re
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import ChatTemplateError
from .budget import budget, ticking

_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)")


def _join(value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        raise ChatTemplateError("the chat template uses join(attribute=...), which is not offered")
    return bounded_concat(value, str(d))


def bounded_concat(values: Iterable[Any], separator: str = "") -> str:
    """`"".join`, each part accounted for before it is added."""
    limit, parts, total = budget(), [], 0
    for value in values:
        part = text_of(value)
        total += len(part) + len(separator)
        limit.tick()
        if total > limit.max_chars:
            break
        parts.append(part)
    limit.chars(total)
    return separator.join(parts)


def text_of(value: Any) -> str:
    """`str(value)`, weighed first where it is a container."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | dict | set):
        budget().weigh(value)
    return str(value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's flavour: no HTML escapes, the order of keys kept (PAINS P23)."""
    if isinstance(indent, int) and indent > 16:
        raise ChatTemplateError(f"tojson(indent={indent}): the indentation is 16 at most")
    budget().weigh(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * min(int(width), budget().max_chars + 1)
    lines = s.splitlines()
    budget().chars(len(s) + (len(lines) + 1) * len(pad))
    joined = "\n".join(
        [pad + line if i and (line or blank) else line for i, line in enumerate(lines)]
    )
    if s.endswith("\n"):
        joined += "\n"
    return pad + joined if first else joined


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = text_of(s), str(old), str(new)
    hits = text.count(old) if count is None else min(text.count(old), count)
    budget().chars(len(text) + max(hits, 0) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _center(value: Any, width: int = 80) -> str:
    budget().chars(width)
    return text_of(value).center(width)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    return percent(str(value), kwargs or args)


def percent(pattern: str, values: Any) -> str:
    """`pattern % values` with its widths checked."""
    if _WIDE_PERCENT.search(pattern):
        raise ChatTemplateError(f"the chat template's format {pattern[:60]!r} is too wide")
    budget().weigh(values, max(1, pattern.count("%")))
    return pattern % values


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > 30:
        raise ChatTemplateError(f"round({precision}): the precision is 30 at most")
    from jinja2.filters import do_round

    return do_round(value, precision, method)  # type: ignore[arg-type]


def _sum(values: Iterable[Any], attribute: str | None = None, start: Any = 0) -> Any:
    total = start
    for value in ticking(values):
        item = value if attribute is None else value[attribute]
        total = binary("+", total, item)
    return total


OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": _tojson,
    "indent": _indent,
    "replace": _replace,
    "join": _join,
    "center": _center,
    "format": _format,
    "round": _round,
    "sum": _sum,
}


def binary(operator: str, left: Any, right: Any) -> Any:
    """`left operator right`, its cost accounted for first."""
    limit = budget()
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | bytes) and isinstance(times, int):
                limit.chars(len(value) * max(times, 0))
                return value * times
            if isinstance(value, list | tuple) and isinstance(times, int):
                limit.weigh(value, max(times, 0))
                return value * times
        if isinstance(left, int) and isinstance(right, int):
            limit.number(left.bit_length() + right.bit_length())
        return left * right
    if operator == "+":
        for value in (left, right):
            if isinstance(value, str):
                limit.chars(len(value))
            elif isinstance(value, list | tuple):
                limit.weigh(value)
        total: Any = operators.add(left, right)
        if isinstance(total, str):
            limit.chars(len(total))
        return total
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            limit.number(left.bit_length() * abs(right))
        return left**right
    return percent(left, right) if isinstance(left, str) else left % right  # operator "%"
