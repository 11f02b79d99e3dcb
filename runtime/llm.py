"""LLM: load a model, complete prompts, chat. The Python front door; the other fronts use it too."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ..errors import ChatTemplateError, ContextLengthError, InvalidParameterError, LlambaError
from .engine import Engine
from .load import Progress, load
from .params import SamplingParams
from .prompts import (
    Message,
    Prompt,
    normalize_conversations,
    normalize_params,
    normalize_prompts,
)
from .request import Request, RequestOutput, end_ids_of
from .sampler import Sampler
from .stop import TextAssembler
from .stream import RequestStream, run_all

if TYPE_CHECKING:
    from ..models.chat import ChatTemplate

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model that answers.

    Args:
        model: a path, a catalogue name ("smollm2") or "hf:owner/repo[:quant]".
        context_length: tokens of prompt and answer together. Default: the model's own, at most 8192
            (less, with a warning, if the KV cache would take more than half of the free memory).
        num_threads: default: physical cores that this process may use.
        activations: "int8" (fast) or "float32" (exact).
        chat_template: Jinja text, the name of a built-in template ("chatml") or a file's path,
            instead of the model's own.
        seed: makes the seeds that are drawn for requests without one repeatable.
        progress: called with (event, done, total) while something takes long: the events
            "wait", "download" and "verify" count bytes, "compile" counts kernels.

    Raises:
        ModelError: no such model, not a sound file, or one that is not run.
        ResourceError: it does not fit into memory; the message says what to change.
        InvalidParameterError: an argument is out of its range.

    May be used by several threads at once: requests run one after another. Example:

        params = SamplingParams(temperature=0.2, max_tokens=40)
        with LLM("smollm2") as llm:
            [answer] = llm.chat([{"role": "user", "content": "Why is the sky blue?"}], params)
            print(answer.outputs[0].text)
            for item in llm.generate("Once upon a time", params, stream=True):
                print(item.delta, end="")
    """

    def __init__(
        self,
        model: str | Path,
        *,
        context_length: int | None = None,
        num_threads: int | None = None,
        activations: str = "int8",
        chat_template: str | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        # Seeds are checked first: a model takes long to load for an error after it.
        base = SamplingParams(seed=seed).seed
        self._seeds = np.random.default_rng(secrets.randbits(64) if base is None else base)
        self._loaded = load(
            model,
            context_length=context_length,
            num_threads=num_threads,
            activations=activations,
            chat_template=chat_template,
            progress=progress,
        )
        self.model = str(model)
        self.path = self._loaded.path
        self.tokenizer = self._loaded.tokenizer
        self.weights = self._loaded.weights
        self.program = self._loaded.program
        self.config = self._loaded.config
        self.context_length = self.config.context_length
        self.default_params = self._loaded.default_params
        self.engine = Engine(self.program, self.tokenizer)
        self._process_id = os.getpid()
        self._closed = False

    @property
    def chat_template(self) -> "ChatTemplate | None":
        """The template that chat() uses; None if the model has none, or an invalid one."""
        return self._loaded.chat_template

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: Literal[False] = False,
    ) -> list[RequestOutput]: ...
    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: Literal[True],
    ) -> RequestStream: ...
    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: bool,
    ) -> list[RequestOutput] | RequestStream: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: bool = False,
    ) -> list[RequestOutput] | RequestStream:
        """Continue prompts.

        Args:
            prompts: a string, {"prompt": text}, {"prompt_token_ids": [...]}, or a list of these.
                Control tokens written in the text count as such: text of strangers belongs in chat.
            params: SamplingParams for all, or a list with one for each; None: the model's defaults.
                `sampling_params` is vLLM's name of it.
            stream: return an iterator that yields an output a token; `delta` is its new text and
                the last one of a prompt is complete. Closing it cancels.

        Returns:
            A RequestOutput for each prompt, in order; its `outputs[0].text` is the answer.

        Raises:
            InvalidParameterError, ContextLengthError: before anything runs.
        """
        texts = normalize_prompts(prompts)
        each = normalize_params(_either(params, sampling_params), len(texts), self.default_params)
        requests = [
            self._request(t if isinstance(t, str) else None, self._encode(t), p)
            for t, p in zip(texts, each, strict=True)
        ]
        return self._run(requests, stream)

    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: Literal[False] = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]: ...
    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: Literal[True],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RequestStream: ...
    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput] | RequestStream: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput] | RequestStream:
        """Answer a conversation, [{"role": "user", "content": "..."}, ...], or each of several.

        Other arguments and what comes back as in generate(). What the conversation has in common
        with the request before is not run again (`metrics.cached_tokens`). Message contents never
        become control tokens. `tools` and `chat_template_kwargs` go to the template.

        Raises:
            ChatTemplateError: no (valid) template, or it refuses these messages.
            InvalidParameterError, ContextLengthError: before anything runs.
        """
        conversations = normalize_conversations(messages)
        each = normalize_params(
            _either(params, sampling_params), len(conversations), self.default_params
        )
        template = self._template()
        kwargs = dict(chat_template_kwargs or {})
        if tools is not None:
            kwargs["tools"] = list(tools)
        requests = []
        for conversation, p in zip(conversations, each, strict=True):
            texts = (m.get("content") for m in conversation)
            self._check_length(sum(len(t) for t in texts if isinstance(t, str)))
            ids = template.encode(
                conversation, add_generation_prompt=add_generation_prompt, **kwargs
            )
            requests.append(self._request(None, ids, p))
        return self._run(requests, stream)

    def close(self) -> None:
        """Cancel what runs, stop the threads, unmap the file. May be repeated."""
        if not self._closed:
            self._closed = True
            self.engine.close()
            self._loaded.close()

    def __enter__(self) -> "LLM":
        """For `with LLM(...) as llm`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the model and its sizes."""
        return (
            f"LLM({self.model!r}, context_length={self.context_length}, "
            f"num_threads={self.config.num_threads}, activations={self.config.activations!r})"
        )

    def _run(self, requests: list[Request], stream: bool) -> list[RequestOutput] | RequestStream:
        if os.getpid() != self._process_id:  # fork copies no threads: the team would never answer
            raise LlambaError(
                f"this LLM belongs to process {self._process_id} and can't be used in a forked one "
                f"({os.getpid()}): make an LLM there, or start processes with 'spawn'"
            )
        return RequestStream(self.engine, requests) if stream else run_all(self.engine, requests)

    def _request(self, prompt: str | None, ids: list[int], params: SamplingParams) -> Request:
        """Check one prompt against the model, before anything runs."""
        tokenizer = self.tokenizer
        params.check_vocabulary(tokenizer.vocab_size)
        for i in (min(ids), max(ids)) if ids else ():
            if not 0 <= i < tokenizer.vocab_size:
                raise InvalidParameterError(
                    f"prompt_token_ids: {i}: the model has the token ids 0 to "
                    f"{tokenizer.vocab_size - 1}"
                )
        if not ids:
            raise InvalidParameterError("the prompt has no tokens: pass at least one")
        if len(ids) >= self.context_length:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, but context_length is {self.context_length} "
                "and must hold the answer too: shorten the prompt or load the model with a larger "
                f"context_length (up to {self.weights.hyperparameters.context_length})"
            )
        room = self.context_length - len(ids)
        seed = int(self._seeds.integers(2**32)) if params.seed is None else params.seed
        return Request(
            prompt=prompt,
            prompt_ids=ids,
            params=params,
            sampler=Sampler.for_request(params, tokenizer, seed=seed, prompt_ids=ids),
            text=TextAssembler(
                tokenizer, tuple(params.stop), skip_special=params.skip_special_tokens
            ),
            max_new_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            end_ids=end_ids_of(tokenizer, params),
        )

    def _encode(self, prompt: str | list[int]) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        self._check_length(len(prompt))
        return self.tokenizer.encode(prompt, add_special=True, parse_special=True)

    def _check_length(self, num_characters: int) -> None:
        """Refuse what can't fit before it is tokenized, which takes seconds for many megabytes."""
        if num_characters <= self.context_length:
            return
        longest = self.tokenizer.longest_token
        if num_characters > self.context_length * longest:
            raise ContextLengthError(
                f"the prompt has {num_characters:,} characters, but context_length is "
                f"{self.context_length} tokens of at most {longest} characters: shorten the prompt"
            )

    def _template(self) -> "ChatTemplate":
        if self._loaded.chat_template_error is not None:
            raise self._loaded.chat_template_error
        if self._loaded.chat_template is None:
            raise ChatTemplateError(
                f"{self.model} has no chat template (it is a base model): use generate(), or pass "
                "chat_template= with a Jinja template"
            )
        return self._loaded.chat_template


def _either(params: Params, sampling_params: Params) -> Params:
    """The one that was given; InvalidParameterError when both were."""
    if params is not None and sampling_params is not None:
        raise InvalidParameterError("params and sampling_params are one setting: pass one of them")
    return sampling_params if params is None else params
