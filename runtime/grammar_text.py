"""Grammar texts before they are compiled: limits, and JSON schemas inside Lark."""

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConstraintError
from .json_schema import prepare_schema
from .regex_limits import MAX_NESTING, MAX_REPEATS, check_regex

MAX_RULES = 2000
_LARK_TOKEN = re.compile(  # each part runs on to its end whatever it finds: in linear time
    r'"(?:\\.|[^"\\\n])*"?|/(?![/*])(?:\\.|[^/\\\n])*/?|//[^\n]*|\#[^\n]*|%json\b'
    r"|\{[\d\s,]*\}|~\s*\d+(?:\.\.\d+)?|[()\[\]]|:"
)
_TEMPERATURE = re.compile(r"[^\]\n]*\btemperature\s*=")


def prepare_lark(text: str, json_options: Mapping[str, Any]) -> str:
    """Lark with its schemas (%json {...}) checked and their options set. ConstraintError."""
    parts, done, depth, rules = [], 0, 0, 0
    place = counted = 0
    line = 1
    while (match := _LARK_TOKEN.search(text, place)) is not None:
        token, place = match[0], match.end()
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        if token == "%json":
            try:
                schema, place = json.JSONDecoder().raw_decode(text, _skip_space(text, place))
            except (ValueError, RecursionError) as error:
                raise ConstraintError(f"grammar: line {line}: %json: {error}") from None
            if isinstance(schema, dict):
                options = dict(json_options)
                given = schema.get("x-guidance")
                if isinstance(given, dict) and {**options, **given} == options:
                    del schema["x-guidance"]  # grammars of tools say the same
                prepared = json.loads(prepare_schema(json.dumps(schema)))
                prepared["x-guidance"] = options
                parts += [text[done : match.end()], " ", json.dumps(prepared)]
                done = place
        elif token[0] == "/" and token[1:2] != "/":
            check_regex(token[1:].removesuffix("/"), f"grammar: line {line}")
        elif token in "([":
            if _TEMPERATURE.match(text, place):
                raise ConstraintError(
                    f"grammar: line {line}: 'temperature' of a rule can't be kept; leave it out"
                )
            depth += 1
            if depth > MAX_NESTING:
                raise ConstraintError(f"grammar: nested deeper than {MAX_NESTING} levels")
        elif token in ")]":
            depth -= 1
        elif token[0] in "{~":
            numbers = [int(n) for n in re.findall(r"\d{1,18}", token)]
            if max(numbers, default=0) > MAX_REPEATS:
                raise ConstraintError(
                    f"grammar: line {line}: {token[:40]}: {MAX_REPEATS:,} repeats are the limit"
                )
        elif token == ":":
            rules += 1
            if rules > MAX_RULES:
                raise ConstraintError(f"grammar: it has more than {MAX_RULES:,} rules")
    return "".join([*parts, text[done:]])


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
