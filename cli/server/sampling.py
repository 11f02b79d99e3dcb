"""How a request wants its tokens chosen: the fields of all dialects' bodies, to SamplingParams'."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ...runtime.params import FLOATS, INTS
from .constraint_fields import ConstraintFields
from .errors import bad_request
from .fields import Many
from .settings import ServerSettings

_MAX_TOKENS = 2**63 - 1  # what is more than the context holds is clamped to it
_MAX_BREAKERS = 64
_BIAS_SHAPE = {
    "anyOf": [
        {
            "type": "object",
            "patternProperties": {
                "^[0-9]+$": {"type": ["number", "boolean"], "minimum": -100, "maximum": 100}
            },
            "additionalProperties": False,
        },
        {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}},
        {"type": "null"},
    ]
}


def texts(value: Any) -> Any:
    """One text or several, none empty; as a list."""
    if value is None:
        return None
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise PydanticCustomError("texts", "must be a text or a list of texts, none of them empty")
    return value


def _check_bias(value: Any) -> Any:
    """The shapes of logit_bias (PAINS P40); SamplingParams checks what is in them."""
    if value is None or value is False:
        return None
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise PydanticCustomError(
            "logit_bias", 'must be {{"token id": bias}} or a list of [token id, bias]'
        )
    for pair in pairs:
        key = pair[0] if isinstance(pair, list | tuple) and len(pair) == 2 else None
        if isinstance(key, str) and not (
            isinstance(value, dict) and key.isascii() and key.isdigit()
        ):
            raise PydanticCustomError(
                "logit_bias",
                "{key} is a text: give token ids; POST /tokenize turns a text into them",
                {"key": repr(key[:40])},
            )
    return value


Texts = Annotated[
    Many[str] | None,
    BeforeValidator(texts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
                {"type": "null"},
            ]
        }
    ),
]
Bias = Annotated[Any, BeforeValidator(_check_bias), WithJsonSchema(_BIAS_SHAPE)]


def _float(name: str) -> Any:
    low, high, meaning = FLOATS[name]
    return Field(None, ge=low, le=high, description=meaning)


def _int(name: str) -> Any:
    low, high, meaning = INTS[name]
    return Field(None, ge=low, le=high, description=meaning)


def _tokens() -> Any:
    return Field(
        None,
        ge=-1,
        le=_MAX_TOKENS,
        description="Most tokens of the answer. 0: none; -1 or null: until the context is full.",
    )


class SamplingFields(ConstraintFields):
    """Everything that changes how tokens are chosen. What is absent is the model's default."""

    temperature: float | None = _float("temperature")
    top_p: float | None = _float("top_p")
    top_k: int | None = _int("top_k")
    min_p: float | None = _float("min_p")
    typical_p: float | None = _float("typical_p")
    top_n_sigma: float | None = _float("top_n_sigma")
    xtc_probability: float | None = _float("xtc_probability")
    xtc_threshold: float | None = _float("xtc_threshold")
    min_keep: int | None = _int("min_keep")
    repeat_penalty: float | None = _float("repeat_penalty")
    repetition_penalty: float | None = _float("repeat_penalty")
    repeat_last_n: int | None = _int("repeat_last_n")
    presence_penalty: float | None = _float("presence_penalty")
    frequency_penalty: float | None = _float("frequency_penalty")
    dry_multiplier: float | None = _float("dry_multiplier")
    dry_base: float | None = _float("dry_base")
    dry_allowed_length: int | None = _int("dry_allowed_length")
    dry_penalty_last_n: int | None = _int("dry_penalty_last_n")
    dry_sequence_breakers: Texts = Field(None, max_length=_MAX_BREAKERS)
    seed: int | None = Field(
        None, ge=-(2**63), le=2**64 - 1, description="-1 or none draws one, which is reported."
    )
    stop: Texts = None
    stop_token_ids: Many[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Bias = Field(None, description="-100 or false: never chosen.")
    max_tokens: int | None = _tokens()
    max_completion_tokens: int | None = _tokens()
    n_predict: int | None = _tokens()

    def sampling(self, settings: ServerSettings) -> dict[str, Any]:
        """What of it was given, as fields of SamplingParams; ApiError: over the server's limits."""
        given = {name: value for name in _AS_THEY_ARE if (value := getattr(self, name)) is not None}
        if self.seed is not None:
            given["seed"] = self.seed if self.seed >= -1 else self.seed % 2**64
        for name in ("stop", "stop_token_ids"):
            if len(given.get(name, ())) > settings.max_stops:
                raise bad_request(
                    f"{name}: {len(given[name])} given, at most {settings.max_stops} may be",
                    param=name,
                )
        given["max_tokens"] = self._max_tokens(settings.max_tokens_limit)
        form = self.structured_outputs_of()
        if form is not None:
            given["structured_outputs"] = form
        return given

    def _max_tokens(self, limit: int | None) -> int | None:
        values = {
            name: value
            for name in ("max_tokens", "max_completion_tokens", "n_predict")
            if (value := getattr(self, name)) is not None
        }
        if len(set(values.values())) > 1:
            raise bad_request(
                f"{' and '.join(values)} are one setting: give one of them", param=list(values)[1]
            )
        value = next(iter(values.values()), -1)
        if value == -1:
            return limit
        return value if limit is None else min(value, limit)


_AS_THEY_ARE = (
    *(name for name in FLOATS),
    *(name for name in INTS),
    "repetition_penalty",
    "dry_sequence_breakers",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "logit_bias",
)
