"""Generation: prompts and conversations to requests, and these to answers or streams of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

from ..errors import InvalidParameterError, LlambaError
from .engine import Engine
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
from .stream import RequestStream

_T = TypeVar("_T")


class Generates:
    """The methods of LLM that answer."""

    engine: Engine
    default_params: SamplingParams
    _builder: RequestBuilder

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
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
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
            cache_prompt: False: its prompt is neither looked up in the prefix cache nor left there.
            lora: scales by adapters' names, for these prompts: {"sql": 1.0}; what isn't named gets
                0. None: the default ones.
            progress_bar: on stderr; None: if that is a terminal and there are several prompts.

        Returns:
            A RequestOutput for each prompt, in order; its `outputs[0].text` is the answer. In a
            list, a prompt that can't be run has its error in `error`, and the others are answered.

        Raises:
            UnsupportedTaskError: the model is an encoder.
            InvalidParameterError: wrong parameters, before anything runs.
            InvalidParameterError, ContextLengthError: the prompt can't be run, if it is no list.
        """
        self._builder.check_answers()
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
            cache_prompt=cache_prompt,
            lora=lora,
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
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
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
        self._builder.check_answers()
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
            cache_prompt=cache_prompt,
            lora=lora,
        )

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
    ) -> RequestStream:
        """Start one prompt and return at once; arguments and errors as in generate().

        The stream is read by `for`, by `async for` in any event loop, or as a whole by result().
        """
        return self.generate(
            prompt,
            params,
            stream=True,
            priority=priority,
            timeout_s=timeout_s,
            cache_prompt=cache_prompt,
            lora=lora,
        )

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
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
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
            cache_prompt=cache_prompt,
            lora=lora,
        )

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
        cache_prompt: bool,
        lora: Mapping[str, float] | None,
    ) -> list[RequestOutput] | RequestStream:
        """Build all requests, then submit them together."""
        self.engine.check_process()  # the tokenizer and the template have locks, too
        self._builder.check_params(params, priority=priority, timeout_s=timeout_s)
        options: dict[str, Any] = {
            "priority": priority,
            "timeout_s": timeout_s,
            "cache_prompt": cache_prompt,
        }
        options["adapters"] = self._builder.choose_adapters(lora)
        entries: list[Request | RequestOutput] = []
        for prompt, each in zip(prompts, params, strict=True):
            try:
                if isinstance(prompt, InvalidParameterError):
                    raise prompt
                entries.append(build(prompt, each, **options))
            except LlambaError as error:
                if lone:
                    raise
                entries.append(self._builder.failed(error, prompt, each))
        with show_progress(len(entries), False if stream else bar) as on_end:
            started = self.engine.submit_all(entries, lone=lone)
            return started if stream else started.results(on_end)
