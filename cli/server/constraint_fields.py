"""What form an answer must have, in the words of llama-server and vLLM: one form, or a 400."""

from collections.abc import Iterator
from typing import Any

from ...errors import RequestError
from ...runtime.structured import StructuredOutputs
from .errors import bad_request, translate
from .fields import Many, RequestBody, named


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
            raise named(translate(error), name) from error


_KINDS = {
    "grammar": "grammar",
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
