"""The shapes in which prompts and messages may be given, brought to one."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ..errors import InvalidParameterError
from .params import SamplingParams


class TextPrompt(TypedDict):
    """A prompt as text; control tokens written in it count as such."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids, taken as they are."""

    prompt_token_ids: Sequence[int]


Prompt = str | TextPrompt | TokensPrompt
Message = Mapping[str, Any]  # {"role": ..., "content": ...}


def normalize_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """One prompt or several to a list, each either text or token ids.

    >>> normalize_prompts("hi")
    ['hi']
    >>> normalize_prompts([{"prompt": "hi"}, {"prompt_token_ids": [1, 2]}])
    ['hi', [1, 2]]
    """
    if isinstance(prompts, (str, Mapping)):
        return [_normalize(prompts)]
    if isinstance(prompts, Sequence):
        return [_normalize(p) for p in prompts]
    raise _bad_prompt(prompts)


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
) -> list[list[Message]]:
    """One conversation or several to a list of lists of messages (PAINS P57)."""
    several = isinstance(messages, Sequence) and not isinstance(messages, str) and len(messages) > 0
    if several and all(isinstance(m, Mapping) for m in messages):
        return [list(messages)]  # type: ignore[arg-type]
    if several and all(isinstance(c, Sequence) and not isinstance(c, str) for c in messages):
        conversations = [list(c) for c in messages]
        if all(c and all(isinstance(m, Mapping) for m in c) for c in conversations):
            return conversations  # type: ignore[return-value]
    raise InvalidParameterError(
        f"messages {str(messages)[:60]!r}: must be a list of at least one "
        "{'role': ..., 'content': ...}, or a list of such lists"
    )


def normalize_params(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int, default: SamplingParams
) -> list[SamplingParams]:
    """One set of parameters for all prompts, or one for each."""
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
