"""What all request bodies have in common: strict types, and nothing that is ignored in silence."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from ...runtime.request_builder import MAX_PRIORITY
from .errors import ApiError, bad_request
from .settings import ServerSettings

IGNORED_HEADER = "x-llamba-ignored"
_SHOWN = re.compile(r"[\w.\[\]-]{1,64}", re.ASCII)  # names that a header can hold
_MOST_SHOWN = 20

_T = TypeVar("_T")
# A list of a body. Its first wrong item is told: an error for each of a million would take minutes
# of the event loop, and gigabytes.
Many = Annotated[list[_T], Field(fail_fast=True)]

# Fields of other servers that change the answer and aren't done here: name -> the values that ask
# for nothing, and why not. None always asks for nothing.
Refused = Mapping[str, tuple[tuple[Any, ...], str]]
REFUSED: Refused = {
    "chat_template": ((), "templates of requests are never run: the model's own is used"),
    "min_tokens": ((0,), "a least length can't be enforced"),
    "mirostat": ((0,), "not supported: use min_p, top_p or top_k"),
    "dynatemp_range": ((0,), "not supported: temperature is fixed"),
    "adaptive_target": ((-1,), "not supported"),
    "use_beam_search": ((False,), "not supported"),
    "length_penalty": ((1,), "not supported: there is no beam search"),
    "early_stopping": ((False,), "not supported: there is no beam search"),
    "samplers": ((), "the order of the filters is fixed (llama.cpp's)"),
    "sampler_seq": ((), "the order of the filters is fixed (llama.cpp's)"),
    "logits_processors": (([],), "not supported"),
    "bad_words": (([],), "not supported: use logit_bias with -100"),
    "include_stop_str_in_output": ((False,), "stop strings are never part of the answer"),
    "truncate_prompt_tokens": ((), "prompts are never cut: shorten it yourself"),
    "n_keep": ((0, -1), "the context is never shifted"),
    "n_discard": ((0,), "the context is never shifted"),
    "t_max_predict_ms": ((0, -1), "use timeout (seconds)"),
    "id_slot": ((-1,), "there are no slots to choose from"),
    "n_probs": ((0,), "use logprobs and top_logprobs"),
    "post_sampling_probs": ((False,), "log-probabilities are those of the raw logits"),
    "prompt_logprobs": ((), "use echo and logprobs of /v1/completions"),
    "return_progress": ((False,), "progress events are not sent; comments keep the stream alive"),
    "response_fields": (([],), "answers are whole"),
    "mm_processor_kwargs": (({},), "this server reads text only"),
    "multimodal_data": (([],), "this server reads text only"),
    "image_data": (([],), "this server reads text only"),
    "audio": ((), "audio output is not made"),
    "prediction": ((), "predicted outputs are not supported"),
    "web_search_options": ((), "there is no web search"),
    "moderation": ((), "there is no moderation"),
    "guided_whitespace_pattern": ((), "whitespace of JSON is fixed"),
    "structural_tag": ((), "not supported"),
}

# Known fields that change nothing about the answer here.
HARMLESS = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options "
    "prompt_cache_retention guided_decoding_backend request_id mirostat_tau mirostat_eta "
    "dynatemp_exponent adaptive_decay spaces_between_special_tokens "
    "return_tokens return_token_ids".split()
)


def _check_name(value: Any) -> Any:
    if value == "":
        raise PydanticCustomError(
            "model", "must be a name of GET /v1/models; leave it out for the first one"
        )
    return value


ModelName = Annotated[str, Field(min_length=1), BeforeValidator(_check_name)]


class Body(BaseModel):
    """A JSON object of a request: numbers are no strings, true is no number (PAINS P35, P44)."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    refused: ClassVar[Refused] = {}  # beside REFUSED; overrides it
    harmless: ClassVar[frozenset[str]] = frozenset()  # beside HARMLESS


class LoraScale(Body):
    """How much of an adapter a request gets."""

    id: int = Field(description="Its id in GET /lora-adapters.")
    scale: float = Field(ge=-1e6, le=1e6)


class RequestBody(Body):
    """What every request to a model may say."""

    model: ModelName | None = Field(
        None, description="A name of GET /v1/models; none: the first model."
    )
    priority: int | None = Field(
        None, ge=0, le=MAX_PRIORITY, description="0 is for somebody who waits; 1 the background."
    )
    timeout: float | None = Field(
        None, gt=0, le=1e9, description="Seconds after which the answer ends with what there is."
    )
    cache_prompt: bool | None = Field(
        None, description="false: other requests neither find this prompt's cache nor lend theirs."
    )

    lora: Many[LoraScale] | None = Field(
        None,
        max_length=1024,
        description="Scales of the model's LoRA adapters; those that aren't listed get 0. "
        "None, or an empty list: the default ones.",
    )

    def common(self) -> dict[str, Any]:
        """These fields as those of a Task."""
        return {
            "model": self.model,
            "priority": self.priority or 0,
            "timeout_s": self.timeout,
            "cache_prompt": self.cache_prompt is not False,
            "lora": tuple((each.id, each.scale) for each in self.lora or ()),
        }


def check_extras(body: Body, settings: ServerSettings) -> dict[str, str]:
    """Look at the fields that the body's class doesn't have.

    Returns the headers that tell what was ignored. ApiError (400): a field that would change the
    answer; any unknown one, if the settings are strict.
    """
    unknown = dict(_unknown(body, ""))
    if unknown and settings.strict:
        path, known = next(iter(unknown.items()))
        near = difflib.get_close_matches(path.rpartition(".")[2][:64], known, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        path = _shown(path)
        raise bad_request(f"{path}: no such field{hint}", param=path, code="unknown_field")
    return add_ignored({}, unknown)


def add_ignored(headers: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """The headers, which now tell that these fields were ignored as well."""
    told = list(names)
    shown = [_shown(name) for name in told[:_MOST_SHOWN]]
    shown += ["..."] * (len(told) > _MOST_SHOWN)
    if not shown:
        return headers
    before = [headers[IGNORED_HEADER]] if IGNORED_HEADER in headers else []
    return {**headers, IGNORED_HEADER: ", ".join((*before, *shown))}


def _unknown(body: Body, prefix: str) -> Iterator[tuple[str, Iterable[str]]]:
    """Paths of the unknown fields, each with the names that are known there."""
    kind = type(body)
    for name, value in (body.model_extra or {}).items():
        refused = kind.refused.get(name) or REFUSED.get(name)
        if refused is not None and name not in kind.harmless:
            check_refused(prefix + name, value, *refused)
        elif name not in HARMLESS and name not in kind.harmless:
            yield prefix + name, kind.model_fields
    for name in kind.model_fields:
        value = getattr(body, name)
        if isinstance(value, Body):
            yield from _unknown(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Body):
                    yield from _unknown(each, f"{prefix}{name}[].")


def check_refused(path: str, value: Any, harmless: tuple[Any, ...], why: str) -> None:
    """400 unless the value asks for nothing."""
    if value is None or any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in harmless
    ):
        return
    raise bad_request(f"{path}: {why}", param=path, code="unsupported_parameter")


def named(error: ApiError, param: str) -> ApiError:
    """The same error, said of this field."""
    error.param = param
    return error


def _shown(path: str) -> str:
    return path if _SHOWN.fullmatch(path) else "?"
