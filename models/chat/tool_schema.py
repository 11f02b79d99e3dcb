"""A tool's JSON schema as its grammar has it: without remarks, and what can't be enforced."""

import json
import re
from collections.abc import Mapping
from typing import Any

from ...errors import InvalidParameterError

_MAX_NESTING = 64
# Where schemas are inside a schema.
_ONE = ("additionalProperties", "items")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_ANNOTATIONS = frozenset(
    "$comment default deprecated description examples readOnly title writeOnly".split()
)
_UNENFORCED = frozenset(
    "additionalItems contains contentEncoding contentMediaType contentSchema dependencies "
    "dependentRequired dependentSchemas else if maxContains maxProperties minContains "
    "minProperties not propertyNames then unevaluatedItems unevaluatedProperties "
    "uniqueItems".split()
)
_FORMATS = frozenset(
    "date date-time duration email hostname ipv4 ipv6 time uri uuid".split(),
)
# Of regular expressions: looking around, referring back, word boundaries.
_BEYOND_REGULAR = re.compile(r"\(\?(?!:)|\\[bB1-9]")


def schema_text(tool: str, schema: Mapping[str, Any], *, strict: bool) -> str:
    """The schema as JSON text.

    Agents' schemas are full of keywords that no grammar can hold. strict: they stay, and the
    compiler refuses them by name. Otherwise they are left out, and all the others hold.
    InvalidParameterError names the tool: nested too deep, or no JSON.
    """
    try:
        return json.dumps(_of(schema, strict, 0), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise InvalidParameterError(
            f"tools: the parameters of {tool!r} are no JSON schema, or nested deeper than "
            f"{_MAX_NESTING} levels"
        ) from None


def _of(schema: Any, strict: bool, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return schema  # true, false, or something that the compiler refuses
    if depth > _MAX_NESTING:
        raise RecursionError
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _ANNOTATIONS or not (strict or _can_be_held(key, value, depth)):
            continue
        if key in _NAMED and isinstance(value, Mapping):
            value = {name: _of(each, strict, depth + 1) for name, each in value.items()}
        elif key in _LISTS and isinstance(value, list | tuple):
            value = [_of(each, strict, depth + 1) for each in value]
        elif key in _ONE:
            value = _of(value, strict, depth + 1)
        out[key] = value
    if not strict and "oneOf" in out:
        # That no second one fits can't be enforced, that one does can.
        one = {"anyOf": out.pop("oneOf")}
        out = (
            {**out, **one} if "anyOf" not in out else {**out, "allOf": [*out.get("allOf", []), one]}
        )
    return out


def _can_be_held(key: str, value: Any, depth: int) -> bool:
    """Whether a grammar can enforce a keyword (or has nothing to enforce in it)."""
    if key == "format":
        return value in _FORMATS
    if key == "pattern":
        return not (isinstance(value, str) and _BEYOND_REGULAR.search(value))
    if key == "$id":
        return depth == 0
    return key not in _UNENFORCED
