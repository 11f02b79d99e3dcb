"""LLM: load a model, complete prompts, chat. The Python front door; the other fronts use it too."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from ..errors import InvalidParameterError, LlambaError
from .engine import Engine
from .load import Progress, load
from .outputs import RequestOutput
from .params import SamplingParams
from .progress_bar import progress_bar as show_progress
from .prompts import (
    ChatOptions,
    GenerateOptions,
    Message,
    Params,
    Prompt,
    is_lone_conversation,
    is_lone_prompt,
    normalize_conversations,
    normalize_params,
    normalize_prompts,
)
from .request import Request
from .request_builder import RequestBuilder, template_options
from .stats import EngineStats
from .stream import RequestStream

if TYPE_CHECKING:
    from ..models.chat import ChatTemplate
    from .prefix_file import Restored, Saved

_T = TypeVar("_T")


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
        max_sequences: answers that are made at once; the others wait. Default: 16.
        kv_tokens: positions of the KV cache for all requests and cached prefixes together.
        cache_type: "f16", or "q8_0" for a KV cache of about half the size.
        deterministic: the same tokens alone and beside others, bit for bit; slower.
        prefix_cache: find what prompts have in common with earlier ones instead of running it.
        progress: called with (event, done, total) while something takes long: the events
            "wait", "download" and "verify" count bytes, "compile" counts kernels.

    Raises:
        ModelError: no such model, not a sound file, or one that is not run.
        ResourceError: it does not fit into memory; the message says what to change.
        InvalidParameterError: an argument is out of its range.

    May be used by several threads and event loops at once: all requests run together. Example:

        params = SamplingParams(temperature=0.2, max_tokens=40)
        with LLM("smollm2") as llm:
            [answer] = llm.chat([{"role": "user", "content": "Why is the sky blue?"}], params)
            print(answer.outputs[0].text)
            for item in llm.submit("Once upon a time", params):
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
        max_sequences: int | None = None,
        kv_tokens: int | None = None,
        cache_type: str = "f16",
        deterministic: bool = False,
        prefix_cache: bool = True,
        progress: Progress | None = None,
    ) -> None:
        # Seeds are checked first: a model takes long to load for an error after it.
        base = SamplingParams(seed=seed).seed
        self._loaded = load(
            model,
            context_length=context_length,
            num_threads=num_threads,
            activations=activations,
            chat_template=chat_template,
            max_sequences=max_sequences,
            kv_tokens=kv_tokens,
            cache_type=cache_type,
            deterministic=deterministic,
            prefix_cache=prefix_cache,
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
        self.engine = Engine(
            self.program,
            self.tokenizer,
            max_sequences=self.config.max_sequences,
            prefix_cache=self.config.prefix_cache,
        )
        self._builder = RequestBuilder(self._loaded, base)
        self._process_id = os.getpid()
        self._closing = threading.Lock()
        self._closed = False

    @property
    def chat_template(self) -> "ChatTemplate | None":
        """The template that chat() uses; None if the model has none, or an invalid one."""
        return self._loaded.chat_template

    @property
    def stats(self) -> EngineStats:
        """The engine's figures right now."""
        return self.engine.stats

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> list[RequestOutput]: ...
    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> RequestStream: ...
    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        stream: bool,
        **options: Unpack[GenerateOptions],
    ) -> list[RequestOutput] | RequestStream: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
        stream: bool = False,
        priority: int = 0,
        timeout_s: float | None = None,
        progress_bar: bool | None = None,
    ) -> list[RequestOutput] | RequestStream:
        """Continue prompts, all of them at once.

        Args:
            prompts: a string, {"prompt": text}, {"prompt_token_ids": [...]}, or a list of these.
                Control tokens written in the text count as such: text of strangers belongs in chat.
            params: SamplingParams for all, or a list with one for each; None: the model's defaults.
                `sampling_params` is vLLM's name of it.
            stream: return an iterator that yields outputs as they come; `delta` is the new text and
                the last one of a prompt is complete. The prompts' items come one prompt after
                another, in order. Closing it cancels.
            priority: 0 for somebody who waits; 1 works in the background, when there is room.
            timeout_s: seconds after which a request ends with what there is (`stop_reason`
                "timeout").
            progress_bar: on stderr; None: if that is a terminal and there are several prompts.

        Returns:
            A RequestOutput for each prompt, in order; its `outputs[0].text` is the answer. In a
            list, a prompt that can't be run has its error in `error`, and the others are answered.

        Raises:
            InvalidParameterError: wrong parameters, before anything runs.
            InvalidParameterError, ContextLengthError: the prompt can't be run, if it is no list.
        """
        texts = normalize_prompts(prompts)
        each = normalize_params(params, sampling_params, len(texts), self.default_params)
        return self._start(
            texts,
            each,
            self._builder.from_prompt,
            lone=is_lone_prompt(prompts),
            stream=stream,
            bar=progress_bar,
            priority=priority,
            timeout_s=timeout_s,
        )

    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]: ...
    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> RequestStream: ...
    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        stream: bool,
        **options: Unpack[ChatOptions],
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
        priority: int = 0,
        timeout_s: float | None = None,
        progress_bar: bool | None = None,
    ) -> list[RequestOutput] | RequestStream:
        """Answer a conversation, [{"role": "user", "content": "..."}, ...], or each of several.

        Other arguments and what comes back as in generate(). What conversations have in common
        with earlier ones is not run again (`metrics.cached_tokens`). Message contents never become
        control tokens. `tools` and `chat_template_kwargs` go to the template.

        Raises:
            ChatTemplateError: no (valid) template; or it refuses these messages, if they are no
                list of conversations.
            InvalidParameterError, ContextLengthError: as in generate().
        """
        conversations = normalize_conversations(messages)
        each = normalize_params(params, sampling_params, len(conversations), self.default_params)
        self._builder.check_template()
        template = template_options(tools, add_generation_prompt, chat_template_kwargs)

        def build(messages: list[Message], params: SamplingParams, **options: Any) -> Request:
            return self._builder.from_messages(messages, params, template, **options)

        return self._start(
            conversations,
            each,
            build,
            lone=is_lone_conversation(messages),
            stream=stream,
            bar=progress_bar,
            priority=priority,
            timeout_s=timeout_s,
        )

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> RequestStream:
        """Start one prompt and return at once; arguments and errors as in generate().

        The stream is read by `for`, by `async for` in any event loop, or as a whole by result().
        """
        return self.generate(prompt, params, stream=True, priority=priority, timeout_s=timeout_s)

    def submit_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> RequestStream:
        """Start the answer to one conversation and return at once; otherwise as submit()."""
        return self.chat(
            messages,
            params,
            stream=True,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            chat_template_kwargs=chat_template_kwargs,
            priority=priority,
            timeout_s=timeout_s,
        )

    def save_prefix_cache(self, path: str | Path) -> "Saved":
        """Write the cached prefixes to a file; PrefixFileError if that can't be done."""
        from .prefix_file import save

        return self._between_steps(save, path)

    def load_prefix_cache(self, path: str | Path) -> "Restored":
        """Take up cached prefixes from a file; FileNotFoundError, PrefixFileError."""
        from .prefix_file import restore

        return self._between_steps(restore, path)

    def close(self) -> None:
        """Cancel what runs, stop the threads, unmap the file. May be repeated."""
        if os.getpid() != self._process_id:
            return  # fork copied neither the threads nor the right to their memory
        self.engine.close()
        with self._closing:
            if not self._closed:
                self._closed = True
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

    def _between_steps(self, function: Callable[..., _T], path: str | Path) -> _T:
        from .model_identity import identify

        def work() -> _T:  # reads the file, which close() unmaps when the engine's thread has ended
            identity = identify(self.weights, self.config)
            return function(path, self.engine.core.pool, self.program, identity)

        return self.engine.run_between_steps(work)

    def _start(
        self,
        prompts: Sequence[_T | InvalidParameterError],
        params: Sequence[SamplingParams],
        build: Callable[..., Request],
        *,
        lone: bool,
        stream: bool,
        bar: bool | None,
        priority: int,
        timeout_s: float | None,
    ) -> list[RequestOutput] | RequestStream:
        """Build all requests, then submit them together."""
        self.engine.check_process()  # the tokenizer and the template have locks, too
        self._builder.check_params(params, priority=priority, timeout_s=timeout_s)
        entries: list[Request | RequestOutput] = []
        for prompt, each in zip(prompts, params, strict=True):
            try:
                if isinstance(prompt, InvalidParameterError):
                    raise prompt
                entries.append(build(prompt, each, priority=priority, timeout_s=timeout_s))
            except LlambaError as error:
                if lone:
                    raise
                entries.append(self._builder.failed(error, prompt, each))
        with show_progress(len(entries), False if stream else bar) as on_end:
            started = self.engine.submit_all(entries, lone=lone)
            return started if stream else started.results(on_end)
