"""The shapes in which prompts and messages may be given, brought to one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeGuard, TypeVar

import numpy as np

from ..errors import InvalidParameterError
from .params import SamplingParams


class TextPrompt(TypedDict):
    """A prompt as text; control tokens written in it count as such."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids, taken as they are."""

    prompt_token_ids: Sequence[int]


_T = TypeVar("_T")
Prompt = str | TextPrompt | TokensPrompt
Message = Mapping[str, Any]  # {"role": ..., "content": ...}
Params = SamplingParams | Sequence[SamplingParams] | None


class GenerateOptions(TypedDict, total=False):
    """Keywords of LLM.generate, which documents them."""

    sampling_params: Params
    priority: int
    timeout_s: float | None
    cache_prompt: bool
    lora: Mapping[str, float] | None
    progress_bar: bool | None


class ChatOptions(GenerateOptions, total=False):
    """Those of LLM.chat."""

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    chat_template_kwargs: Mapping[str, Any] | None


def normalize_prompts(
    prompts: Prompt | Sequence[Prompt],
) -> list[str | list[int] | InvalidParameterError]:
    """One prompt or several to a list, each either text or token ids.

    Of several, one that is none of the shapes is its error instead; raised if all are like that,
    for then the call is wrong.

    >>> normalize_prompts("hi")
    ['hi']
    >>> normalize_prompts([{"prompt": "hi"}, {"prompt_token_ids": [1, 2]}])
    ['hi', [1, 2]]
    """
    if is_lone_prompt(prompts):
        return [_normalize(prompts)]
    if isinstance(prompts, Sequence) and not isinstance(prompts, (bytes, bytearray)):
        return _each(_normalize, prompts)
    raise _bad_prompt(prompts)


def is_lone_prompt(prompts: object) -> bool:
    """One prompt, not a list of them: its error is raised."""
    return isinstance(prompts, (str, Mapping))


def _each(
    normalize: Callable[[Any], _T], values: Sequence[Any]
) -> "list[_T | InvalidParameterError]":
    results: list[_T | InvalidParameterError] = []
    for value in values:
        try:
            results.append(normalize(value))
        except InvalidParameterError as error:
            results.append(error)
    errors = [result for result in results if isinstance(result, InvalidParameterError)]
    if errors and len(errors) == len(results):
        raise errors[0]
    return results


def _normalize(prompt: object) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        if isinstance(text := prompt.get("prompt"), str):
            return text
        ids = prompt.get("prompt_token_ids")
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if isinstance(ids, Sequence) and not isinstance(ids, (str, bytes)):
            for i in ids:
                if not isinstance(i, (int, np.integer)) or isinstance(i, bool):
                    raise InvalidParameterError(f"prompt_token_ids: {i!r} is no token id")
            return [int(i) for i in ids]
    raise _bad_prompt(prompt)


def _bad_prompt(prompt: object) -> InvalidParameterError:
    return InvalidParameterError(
        f"prompt {str(prompt)[:60]!r}: must be a string, {{'prompt': text}}, "
        "{'prompt_token_ids': [...]} or a list of these"
    )


def normalize_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[list[Message] | InvalidParameterError]:
    """One conversation or several to a list of lists of messages (PAINS P57); errors as above."""
    if is_lone_conversation(messages):
        return [list(messages)]
    if isinstance(messages, Sequence) and not isinstance(messages, str) and len(messages):
        return _each(_conversation, messages)
    raise _bad_messages(messages)


def is_lone_conversation(messages: object) -> TypeGuard[Sequence[Message]]:
    """One conversation, not a list of them."""
    return (
        isinstance(messages, Sequence)
        and not isinstance(messages, str)
        and len(messages) > 0
        and all(isinstance(message, Mapping) for message in messages)
    )


def _conversation(messages: object) -> list[Message]:
    if is_lone_conversation(messages):
        return list(messages)
    raise _bad_messages(messages)


def _bad_messages(messages: object) -> InvalidParameterError:
    return InvalidParameterError(
        f"messages {str(messages)[:60]!r}: must be a list of at least one "
        "{'role': ..., 'content': ...}, or a list of such lists"
    )


def normalize_params(
    params: Params, sampling_params: Params, count: int, default: SamplingParams
) -> list[SamplingParams]:
    """One set of parameters for all prompts, or one for each; given by one of two names."""
    if params is not None and sampling_params is not None:
        raise InvalidParameterError("params and sampling_params are one setting: pass one of them")
    params = sampling_params if params is None else params
    if params is None:
        return [default] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise InvalidParameterError(
            f"params {str(params)[:60]!r}: must be SamplingParams or a list of them"
        )
    if len(params) != count:
        raise InvalidParameterError(
            f"params: {len(params)} given for {count} prompts; pass one, or one for each"
        )
    return list(params)
