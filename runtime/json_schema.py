"""What of JSON Schema is enforced: names everything else, and closes what the compiler leaves open.

llguidance turns a schema into a grammar and refuses most of what it can't do. This pass comes
before it and adds: keywords that it would silently pass over, limits against hostile schemas, and
formats whose grammar there is a little too wide.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from ..errors import ConstraintError
from .regex_limits import check_regex

_MAX_NESTING = 64
_MAX_SCHEMAS = 2000
_MAX_MULTIPLE = 10_000
_MAX_ALL_OF = 16
_LOWEST = -(2**63) + 512  # what a double rounds to -2**63 is below
_UPPER_ENDS = ("maximum", "exclusiveMaximum", "const", "enum")

# Where schemas are inside a schema.
_ONE = ("additionalProperties", "additionalItems", "items")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")

# Assertions of some version of JSON Schema that are not enforced. Words that no version knows are
# annotations, as the specification has it.
_REFUSED = frozenset(
    "$dynamicAnchor $dynamicRef $recursiveAnchor $recursiveRef contains contentSchema dependencies "
    "dependentRequired dependentSchemas disallow divisibleBy else extends if maxContains "
    "minContains not propertyNames then unevaluatedItems unevaluatedProperties".split()
)
_FORMATS = frozenset(
    "date-time time date duration email hostname ipv4 ipv6 uuid uri".split(),
)
# What this pass reads must have these types; the compiler looks at everything else.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "type": ((str, list), "a text or a list of texts"),
    "format": ((str,), "a text"),
    "pattern": ((str,), "a text"),
    "allOf": ((list,), "a list of schemas"),
    "minimum": ((int, float), "a number"),
    "maximum": ((int, float), "a number"),
    "patternProperties": ((dict,), "an object"),
}
_NUMERIC_FORMATS = {"int32": 31, "int64": 63, "float": None, "double": None}
_SPACE = r" \t\n\r\f\v"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # multiples of 4 but 0
_DAY = (  # no year 0, and February 29 in leap years only
    r"^(?:(?:\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000)-"
    r"(?:(?:0[13-9]|1[0-2])-\d\d|02-(?:[01]\d|2[0-8]))"
    rf"|(?:\d\d{_FOURTH}|{_FOURTH}00)-02-29)"
)
_NARROWER = {  # beside llguidance's own pattern of the format
    "date": _DAY,
    "date-time": rf"{_DAY}[^:]*:\d\d:[0-5]",  # leap seconds: few validators take them
    "time": r"^[^:]*:\d\d:[0-5]",
    "email": r"^[^@]{1,64}@[^@]{1,255}$",
}


def prepare_schema(text: str) -> str:
    """The schema as llguidance gets it. ConstraintError, naming the keyword, if it can't be held.

    text: JSON that StructuredOutputs has checked: an object or `true`.
    """
    schema = json.loads(text)
    if schema is True:
        return "{}"
    seen: set[int] = set()
    stack: list[tuple[Any, str, int]] = [(schema, "", 0)]
    while stack:
        node, path, depth = stack.pop()
        if id(node) in seen and not isinstance(node, bool):
            continue
        seen.add(id(node))
        if depth > _MAX_NESTING:
            raise ConstraintError(f"json: the schema is nested deeper than {_MAX_NESTING} levels")
        if len(seen) > _MAX_SCHEMAS:
            raise ConstraintError(f"json: the schema has more than {_MAX_SCHEMAS:,} parts")
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise ConstraintError(f"json: {path or 'the schema'}: a schema must be an object")
        _check(node, path)
        stack.extend((child, f"{path}/{name}", depth + 1) for name, child in _children(node, path))
        if "$ref" in node:  # what is referred to may stand where no schema is looked for
            stack.append((_target(schema, node["$ref"], path), node["$ref"], 0))
    return json.dumps(schema)


def _children(node: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name in _ONE:
        if name in node and not isinstance(node[name], list):
            yield name, node[name]
    for name in _LISTS:
        if isinstance(node.get(name), list):
            yield from ((f"{name}/{i}", child) for i, child in enumerate(node[name]))
    for name in _NAMED:
        if name in node:
            if not isinstance(node[name], dict):
                raise ConstraintError(f"json: {path}/{name}: must be an object")
            yield from ((f"{name}/{key}", child) for key, child in node[name].items())


def _target(schema: Any, reference: Any, path: str) -> Any:
    """What a $ref points at; True (nothing more to check) for an anchor."""
    where = path[:80] or "the schema"
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise ConstraintError(
            f"json: {where}: '$ref' to {str(reference)[:80]!r}: only references within the schema "
            "('#...') are followed"
        )
    if not reference.startswith("#/"):
        return True if len(reference) > 1 else schema
    node = schema
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            raise ConstraintError(f"json: {where}: '$ref' to {reference[:80]!r}: there is none")
    return node


def _check(node: dict[str, Any], path: str) -> None:
    """Refuse what is not enforced in one schema; rewrite what needs it."""
    where = path[:80] or "the schema"

    def refuse(what: str) -> ConstraintError:
        return ConstraintError(f"json: {where}: {what}")

    for name in node:
        if name in _REFUSED:
            raise refuse(f"the keyword {name!r} can't be enforced; leave it out")
        if name == "x-guidance":
            raise refuse("'x-guidance' can't be set by requests")
    _check_types(node, refuse)
    if "uniqueItems" in node:
        if node["uniqueItems"] is not False:
            raise refuse("the keyword 'uniqueItems' can't be enforced; leave it out")
        del node["uniqueItems"]
    if path and "$id" in node:
        raise refuse("'$id' below the root is not supported")
    if node.get("pattern") is not None:
        check_regex(node["pattern"], f"json: {where}: 'pattern'")
        node["pattern"] = _with_plain_space(node["pattern"])
    for pattern in node.get("patternProperties") or ():
        check_regex(pattern, f"json: {where}: 'patternProperties'")
    _check_counts(node, refuse)
    _check_numbers(node, refuse)
    _check_format(node, refuse)
    if len(node.get("allOf") or ()) > _MAX_ALL_OF:
        raise refuse(f"'allOf' has more than {_MAX_ALL_OF} parts")


def _check_types(node: dict[str, Any], refuse: Any) -> None:
    for name, (types, meaning) in _TYPES.items():
        value = node.get(name)
        if value is None:
            continue
        if not isinstance(value, types) or isinstance(value, bool):
            raise refuse(f"{name!r} {str(value)[:60]}: must be {meaning}")
        if name == "type" and not all(isinstance(kind, str) for kind in value):
            raise refuse(f"{name!r} {str(value)[:60]}: must be {meaning}")


def _with_plain_space(pattern: str) -> str:
    r"""\s as ASCII whitespace, \S without what any validator takes for whitespace.

    What is whitespace beyond that differs between the languages that validators are written in.
    """
    in_class = False

    def plain(match: re.Match[str]) -> str:
        nonlocal in_class
        text = match[0]
        if text == r"\s":
            return _SPACE if in_class else f"[{_SPACE}]"
        if text == r"\S" and not in_class:
            return r"[^\s\x1c-\x1f\ufeff]"
        in_class = text == "[" or (in_class and text != "]")
        return text

    return re.sub(r"\\.|[\[\]]", plain, pattern, flags=re.DOTALL)


def _check_counts(node: dict[str, Any], refuse: Any) -> None:
    """minProperties: an answer could reach it by repeating a key, which parsers then drop."""
    least = node.get("minProperties")
    if isinstance(least, int) and least > 1:
        required = node.get("required")
        if not isinstance(required, list) or len({str(name) for name in required}) < least:
            raise refuse("'minProperties' above 1 can't be enforced; use 'required'")
        del node["minProperties"]


def _check_numbers(node: dict[str, Any], refuse: Any) -> None:
    _check_range(node, refuse)
    step = node.get("multipleOf")
    if step is None:
        return
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < math.inf:
        raise refuse(f"'multipleOf' {str(step)[:60]}: must be a finite number above 0")
    digits = Decimal(repr(step)).normalize()
    if digits.adjusted() > 15 or digits.as_tuple().exponent < -6 or step > _MAX_MULTIPLE:  # type: ignore[operator]
        raise refuse(f"'multipleOf' {step}: only 0.000001 to {_MAX_MULTIPLE} can be enforced")
    if int(digits.scaleb(max(0, -int(digits.as_tuple().exponent)))) > _MAX_MULTIPLE:
        raise refuse(f"'multipleOf' {step}: it has too many digits to be enforced")


def _check_range(node: dict[str, Any], refuse: Any) -> None:
    """llguidance 1.9 dies of ranges that end at the lowest number of 64 bits, or below."""
    stack = [(name, node[name]) for name in _UPPER_ENDS if name in node]
    while stack:
        name, value = stack.pop()
        if isinstance(value, dict):
            stack.extend((name, each) for each in value.values())
        elif isinstance(value, list):
            stack.extend((name, each) for each in value)
        elif isinstance(value, int | float) and value <= _LOWEST:
            raise refuse(f"{name!r} {str(value)[:60]}: numbers this low can't be enforced")


def _check_format(node: dict[str, Any], refuse: Any) -> None:
    name = node.get("format")
    if name is None:
        return
    kinds = node.get("type")
    kinds = {kinds} if isinstance(kinds, str) else set(kinds or ())
    if name in _NUMERIC_FORMATS and kinds and kinds <= {"integer", "number", "null"}:
        bits = _NUMERIC_FORMATS[name]
        if bits is not None:
            low, high = max(-(2**bits), _LOWEST + 512), 2**bits - 1
            for key, least, narrow in (("minimum", low, max), ("maximum", high, min)):
                given = node.get(key)
                node[key] = least if given is None else narrow(least, given)
        del node["format"]
    elif name not in _FORMATS:
        known = ", ".join(sorted(_FORMATS))
        raise refuse(f"'format' {str(name)[:60]!r} can't be enforced; there are {known}")
    elif name in _NARROWER:
        pattern = _NARROWER[name]
        if node.get("pattern") is None:
            node["pattern"] = pattern
        else:
            node["allOf"] = [*(node.get("allOf") or ()), {"pattern": pattern}]
