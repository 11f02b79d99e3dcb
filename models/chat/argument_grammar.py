"""Grammars of a call's arguments, in whichever way the model writes them."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import InvalidParameterError
from .tool_schema import kinds_of, schema_text
from .tools import Tool

if TYPE_CHECKING:
    from .tool_format import Arguments, ArgumentTags
    from .tool_grammar import Speller

# No endless white space: what models write anyway, and json.dumps.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_KEY = r"/[a-zA-Z_][a-zA-Z0-9_.\-]{0,63}/"
_OF_TEXTS = frozenset(("type", "enum", "const"))  # what is enforced of a text that is no JSON
_OF_ROOT = frozenset(("type", "properties", "required", "additionalProperties", "$defs"))
_DEFINITIONS = "#/$defs/"
_ANY_TEXT = "/(.|\\n)*/"


def argument_rules(notation: "Arguments", spell: "Speller", number: int, tool: Tool) -> list[str]:
    """Rules that make `args_{number}`. InvalidParameterError: a strict schema can't be enforced."""
    text = schema_text(tool.name, tool.schema, strict=tool.strict)
    if notation == "json":
        return [f"args_{number}: {inline_json(json.loads(text))}"]
    return _Rules(notation, spell, f"args_{number}", tool, json.loads(text)).make()


def inline_json(schema: Mapping[str, Any], *, spaced: bool = True) -> str:
    """A schema in place; its "$defs" stay at the root that its references mean (PAINS P49)."""
    text = json.dumps({**schema, "x-guidance": _SPACING} if spaced else schema)
    return "%json " + text.replace(":=", ":\\u003d")  # "::=" would look like GBNF


class _Rules:
    """The rules of one tool's arguments."""

    def __init__(
        self,
        notation: "Arguments",
        spell: "Speller",
        root: str,
        tool: Tool,
        schema: Mapping[str, Any],
    ) -> None:
        self._notation, self._spell, self._root = notation, spell, root
        self._tool, self._schema = tool, schema
        self._rules: list[str] = []
        self._references: dict[str, str] = {}
        self._has_any = False
        self._is_python = notation == "python"
        self._quote = getattr(notation, "quote", "")
        self._comma = ", " if self._is_python else ","

    def make(self) -> list[str]:
        """All the rules."""
        schema = dict(self._schema)
        reference = schema.pop("$ref", None)
        if isinstance(reference, str) and reference.startswith(_DEFINITIONS):
            target = schema.get("$defs", {}).get(reference.removeprefix(_DEFINITIONS))
            schema = {**target, **schema} if isinstance(target, Mapping) else schema
        self._check(schema, _OF_ROOT)
        if self._quote:
            self._object(self._root, schema, self._comma, "{}")
        else:
            self._object(self._root, schema, ", " if self._is_python else "", "")
        return self._rules

    def _object(self, rule: str, schema: Mapping[str, Any], separator: str, braces: str) -> None:
        """Members in the order of the schema, those that it requires and any of the others."""
        opened, closed = (self._spell(brace) for brace in braces or ("", ""))
        comma = self._spell(separator)
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            members = '""'
            if schema.get("additionalProperties") is not False:
                one = self._member(f"{rule}_a", None, {}, bool(braces))
                members = f"({one} ({_sequence(comma, one)})*)?"
            self._rules.append(f"{rule}: {_sequence(opened, members, closed)}")
            return
        required = schema.get("required")
        required = set(required) if isinstance(required, list | tuple) else set()
        names = list(properties)
        if self._quote:
            names.sort(key=str.lower)  # as the templates do that write so
        ones = [
            self._member(f"{rule}_{i}", name, properties[name], bool(braces))
            for i, name in enumerate(names)
        ]
        # {rule}_f{i}: the members from i on, before which none came; {rule}_n{i}: some came.
        for state in "fn" if separator else "f":
            for i, (name, one) in enumerate(zip(names, ones, strict=True)):
                after = f"{rule}_{'n' if separator else 'f'}{i + 1}"
                here = _sequence(comma if state == "n" else "", one, after)
                skip = "" if name in required else f" | {rule}_{state}{i + 1}"
                self._rules.append(f"{rule}_{state}{i}: {here}{skip}")
            self._rules.append(f'{rule}_{state}{len(names)}: ""')
        self._rules.append(f"{rule}: {_sequence(opened, f'{rule}_f0', closed)}")

    def _member(self, rule: str, name: str | None, schema: Any, nested: bool) -> str:
        """The rule of one argument, or of a member of one that is an object; name None: any."""
        key = self._spell(name) if name is not None else _KEY
        if self._is_python and nested:
            key = self._spell(json.dumps(name)) if name is not None else f'"\\"" {_KEY} "\\""'
            parts = [key, '": "', self._value(f"{rule}_v", schema)]
        elif self._is_python:
            parts = [key, '"="', self._value(f"{rule}_v", schema)]
        elif self._quote:
            parts = [key, self._spell(":"), self._value(f"{rule}_v", schema)]
        else:
            parts = self._tagged(f"{rule}_v", key, schema, self._notation)  # type: ignore[arg-type]
        self._rules.append(f"{rule}: {_sequence(*parts)}")
        return rule

    def _tagged(self, rule: str, key: str, schema: Any, tags: "ArgumentTags") -> list[str]:
        line = "\n" if tags.lines else ""
        close = self._spell(tags.value_close)
        parts = [self._spell(tags.key_open), key]
        parts.append(self._spell(tags.key_close + tags.value_open + line))
        kinds = kinds_of(schema, self._schema)
        if "string" not in kinds:
            parts += [self._json(schema), self._spell(line), close]
        elif kinds == {"string"} and (texts := _texts(schema)):
            parts += [_either(self._spell, texts), self._spell(line), close]
        else:
            self._check(schema, _OF_TEXTS)
            parts.append(self._text_until(rule, tags.value_close))
        return [*parts, self._spell(tags.end)]

    def _value(self, rule: str, schema: Any) -> str:
        """A value in the notation."""
        if not isinstance(schema, Mapping):
            return self._any()
        kinds = kinds_of(schema, self._schema)
        reference = schema.get("$ref")
        if kinds <= {"integer", "number"}:
            return self._json(schema)
        if kinds == {"string"} and not reference:
            return self._string(rule, schema)
        if kinds <= {"boolean", "null"} and len(kinds) == 1:
            return self._constant(kinds.pop())
        if isinstance(reference, str) and reference.startswith(_DEFINITIONS):
            return self._referenced(reference.removeprefix(_DEFINITIONS))
        if kinds == {"object"} and "properties" in schema:
            self._check(schema, _OF_ROOT)
            self._object(rule, schema, self._comma, "{}")
            return rule
        if kinds == {"array"} and isinstance(schema.get("items"), Mapping):
            self._check(schema, _OF_ROOT | {"items"})
            item = self._value(f"{rule}_i", schema["items"])
            self._rules.append(f"{rule}: {self._list(item)}")
            return rule
        self._check(schema, frozenset())
        return self._any()

    def _string(self, rule: str, schema: Any) -> str:
        if self._is_python:
            return self._json(schema)
        if texts := _texts(schema):
            return _either(self._spell, [self._quote + text + self._quote for text in texts])
        self._check(schema, _OF_TEXTS)
        return _sequence(self._spell(self._quote), self._text_until(rule, self._quote))

    def _constant(self, kind: str) -> str:
        if kind == "null":
            return '"None"' if self._is_python else '"null"'
        return '("True" | "False")' if self._is_python else '("true" | "false")'

    def _list(self, item: str) -> str:
        comma, opened, closed = self._spell(self._comma), self._spell("["), self._spell("]")
        return f"{opened} ({item} ({comma} {item})*)? {closed}"

    def _referenced(self, name: str) -> str:
        if name not in self._references:
            rule = self._references[name] = f"{self._root}_d{len(self._references)}"
            definitions = self._schema.get("$defs")
            target = definitions.get(name) if isinstance(definitions, Mapping) else None
            self._rules.append(f"{rule}: {self._value(f'{rule}_v', target)}")
        return self._references[name]

    def _any(self) -> str:
        """Any value, as deep as it likes."""
        name = f"{self._root}_x"
        if not self._has_any:
            self._has_any = True
            number = self._json({"type": "number"})
            constants = f"{self._constant('null')} | {self._constant('boolean')}"
            text = self._string(f"{name}_t", {"type": "string"})
            self._rules.append(f"{name}: {text} | {number} | {constants} | {name}_l | {name}_o")
            self._rules.append(f"{name}_l: {self._list(name)}")
            self._object(f"{name}_o", {}, self._comma, "{}")
        return name

    def _text_until(self, rule: str, end: str) -> str:
        """Any text up to the first place where this end stands."""
        close = self._spell(end)
        if close.startswith("<["):
            return f"{_ANY_TEXT} {close}"
        self._rules.append(f"{rule}[lazy]: {_ANY_TEXT} {close}")
        return rule

    def _json(self, schema: Any) -> str:
        """A part of the schema as JSON."""
        part = dict(schema) if isinstance(schema, Mapping) else {}
        if "$defs" in self._schema and "$defs" not in part:
            part["$defs"] = self._schema["$defs"]
        rule = f"{self._root}_j{len(self._rules)}"
        self._rules.append(f"{rule}: {inline_json(part)}")
        return rule

    def _check(self, schema: Any, enforced: frozenset[str]) -> None:
        more = set(schema) - enforced if isinstance(schema, Mapping) else ()
        if self._tool.strict and more:
            raise InvalidParameterError(
                f"tools: {self._tool.name!r} is strict, but {', '.join(sorted(more))} can't be "
                "enforced in the form in which this model writes arguments: leave strict out"
            )


def _texts(schema: Mapping[str, Any]) -> list[str]:
    """The texts that an enumeration allows; []: any text."""
    texts = [schema["const"]] if "const" in schema else schema.get("enum")
    return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []


def _either(spell: "Speller", texts: list[str]) -> str:
    return "(" + " | ".join(spell(text) or '""' for text in texts) + ")"


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)
