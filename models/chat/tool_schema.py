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


_KINDS = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))


def kinds_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema (a part of `root`) may allow; all of them if it doesn't say."""
    if not isinstance(schema, Mapping) or depth > 8:
        return set(_KINDS)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for name in reference[2:].split("/"):
            found = found.get(name) if isinstance(found, Mapping) else None
        return kinds_of(found, root, depth + 1)
    given = schema.get("type")
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list | tuple):
        return {kind for kind in given if kind in _KINDS} or set(_KINDS)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list | tuple) and values:
        return {_kind(value) for value in values}
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list | tuple) and schema[name]:
            return set().union(*(kinds_of(each, root, depth + 1) for each in schema[name]))
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set(_KINDS)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
