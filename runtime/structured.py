"""StructuredOutputs: what form an answer must have; checked for shape here, compiled later."""

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..errors import ConstraintError, InvalidParameterError

MAX_TEXT_LEN = 1 << 20  # characters of a schema
MAX_GRAMMAR_LEN = 1 << 18  # which is read by slower code of ours
_MAX_CHOICES = 10_000


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """The form of an answer: exactly one field is set. The names are vLLM's.

    Args:
        json: a JSON schema, as a mapping or as JSON text; True is any JSON value. Kept as text.
        json_object: any JSON object.
        regex: a regular expression that the whole answer matches (the syntax of Rust's regex).
        choice: the answer is one of these texts.
        grammar: a grammar in llama.cpp's GBNF (where the text has "::="), or in llguidance's Lark.

    Raises:
        InvalidParameterError: none or several fields are set, or one has the wrong type.
        ConstraintError: `json` is no valid JSON, or no answer could ever satisfy it.
    """

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        """Check the fields; bring `json` to text and `choice` to a tuple, which can be hashed."""
        given = [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]
        if self.json is False:
            raise ConstraintError("json=False: no answer can satisfy the schema `false`")
        if len(given) != 1:
            names = ", ".join(f.name for f in fields(self))
            what = f"{' and '.join(given)} are set" if given else "nothing is set"
            raise InvalidParameterError(f"structured_outputs: {what}; set exactly one of {names}")
        if not isinstance(self.json_object, bool):
            raise _wrong("json_object", self.json_object, "must be True or False")
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise _wrong(name, text, "must be a text")
            limit = MAX_GRAMMAR_LEN if name == "grammar" else MAX_TEXT_LEN
            if text is not None and len(text) > limit:
                raise ConstraintError(
                    f"{name}: it has {len(text):,} characters; {limit:,} is the limit"
                )
            if text is not None:
                _check_encodable(name, text)
        if self.grammar is not None and not self.grammar.strip():
            raise ConstraintError("grammar: it is empty")
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))

    @classmethod
    def of(cls, value: object) -> "StructuredOutputs":
        """The value itself, or what a plain mapping with the same names describes."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidParameterError(
                f"structured_outputs={str(value)[:60]}: must be a StructuredOutputs or a mapping"
            )
        known = [f.name for f in fields(cls)]
        for name in value:
            if name not in known:
                raise InvalidParameterError(
                    f"structured_outputs: {str(name)[:60]} is not supported; "
                    f"there are {', '.join(known)}"
                )
        return cls(**value)


class WholeAnswer(StructuredOutputs):
    """A grammar that also holds the texts with which the model frames the parts of its answer."""


def _wrong(name: str, value: object, requirement: str) -> InvalidParameterError:
    return InvalidParameterError(f"structured_outputs: {name}={str(value)[:60]}: {requirement}")


def _choices(value: object) -> tuple[str, ...]:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not value
        or not all(isinstance(text, str) and text for text in value)
    ):
        raise _wrong("choice", value, "must be a list of texts, at least one, none of them empty")
    if len(value) > _MAX_CHOICES or sum(map(len, value)) > MAX_TEXT_LEN:
        raise ConstraintError(
            f"choice: {len(value):,} texts are too many ({_MAX_CHOICES:,} is the limit)"
        )
    _check_encodable("choice", "".join(value))
    return tuple(value)


def _check_encodable(name: str, text: str) -> None:
    """Halves of surrogate pairs, which JSON can carry, are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConstraintError(f"{name}: it holds half of a surrogate pair") from None


def _schema_text(schema: str | Mapping[str, Any] | bool) -> str:
    """A schema as JSON text, in the order that was given (answers follow it)."""
    if not isinstance(schema, str | Mapping | bool):
        raise _wrong("json", schema, "must be a JSON schema: a mapping or JSON text")
    try:
        text = schema if isinstance(schema, str) else json_text.dumps(schema, allow_nan=False)
        parsed = json_text.loads(text, parse_constant=_no_constant) if _fits(text) else None
    except (ValueError, TypeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConstraintError(f"json: the schema is no valid JSON: {why}") from None
    if not _fits(text):
        raise ConstraintError(
            f"json: the schema has {len(text):,} characters; {MAX_TEXT_LEN:,} is the limit"
        )
    _check_encodable("json", text)
    if parsed is False:
        raise ConstraintError("json: no answer can satisfy the schema `false`")
    if parsed is not True and not isinstance(parsed, dict):
        raise ConstraintError(f"json: a schema is a JSON object, or true; this is {text[:60]}")
    return text


def _fits(text: str) -> bool:
    return len(text) <= MAX_TEXT_LEN


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
