"""What form an answer must have, in the words of llama-server and vLLM: one form, or a 400."""

import re
from collections.abc import Iterator
from typing import Any

from ...errors import RequestError
from ...runtime.structured import StructuredOutputs
from .errors import ApiError, bad_request, translate
from .fields import Many, RequestBody, named

# Where messages of StructuredOutputs and its compilers say which of its fields is wrong.
_KIND = re.compile(r"(?:structured_outputs: )?(json_object|json|regex|choice|grammar)(?==|: )")
_WHOLE = "structured_outputs"


def said_of(error: RequestError, field: str) -> ApiError:
    """The same error in the request's words: `field` is the one that asked for the form."""
    problem = translate(error)
    text = problem.message
    if match := _KIND.match(text):
        if field.rpartition(".")[2] == _WHOLE:
            field = f"{field}.{match[1]}"
        text = text[match.end() :]
    elif text.startswith(f"{_WHOLE}: "):
        text = text.removeprefix(_WHOLE)
    else:
        text = f": {text}"
    problem.message = field + text
    return named(problem, field)


class ConstraintFields(RequestBody):
    """The fields that constrain an answer's form. They are enforced, or refused."""

    grammar: str | None = None  # llama-server
    json_schema: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None  # vLLM
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Many[str] | None = None
    guided_grammar: str | None = None

    def forms(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each constraint that was given: the field's name, and StructuredOutputs' fields."""
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and value != "":  # llama-server's clients send empty grammars
                yield name, {kind: value}
        if self.structured_outputs is not None:
            given = {k: v for k, v in self.structured_outputs.items() if v not in (None, False)}
            yield "structured_outputs", given

    def common(self) -> dict[str, Any]:
        """As those of all requests, with the name of the field that asks for a form."""
        return super().common() | {"form": next((name for name, _ in self.forms()), None)}

    def structured_outputs_of(self) -> StructuredOutputs | None:
        """The form to enforce; None: any. ApiError: two of them, or one that can't be."""
        given = list(self.forms())
        if not given:
            return None
        if len(given) > 1:
            names = " and ".join(name for name, _ in given)
            raise bad_request(
                f"{names}: only one form of an answer can be enforced at once", param=given[1][0]
            )
        [(name, fields)] = given
        try:
            return StructuredOutputs.of(fields)
        except RequestError as error:
            raise said_of(error, name) from error


_KINDS = {
    "grammar": "grammar",
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
