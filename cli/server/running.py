"""Running: a request that the engine has, read as events or as whole answers."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...models.chat import (
    AnswerParser,
    ContentText,
    Part,
    ReasoningText,
    ToolCallStart,
    is_open,
)
from .answers import Answer, Delta, End, Event, Summary, summary_of
from .errors import ApiError
from .served import ServedModel, Server
from .tasks import ChatTask, Task, offers_tools
from .waiting import in_thread

if TYPE_CHECKING:
    from ...runtime.outputs import CompletionOutput, RequestOutput
    from ...runtime.params import SamplingParams
    from ...runtime.stream import RequestStream

_MUST_CALL = ("required", "named")
_TAIL_TOKENS = 32  # of the prompt, in which the template may have opened the thinking


class Running:
    """A request that the engine has. Read `events` or `collect` once; `close` ends it early."""

    def __init__(
        self,
        server: Server,
        dialect: str,
        model: ServedModel,
        stream: "RequestStream",
        lease: AsyncExitStack,
        task: Task,
        params: "SamplingParams | None" = None,
    ) -> None:
        self.model, self.created, self.params = model, int(time.time()), params
        self._server, self._dialect, self._task = server, dialect, task
        self._stream, self._lease = stream, lease
        self.prompt_tokens = stream.num_prompt_tokens
        self._reading = self._ended = False
        self._ending: asyncio.Task[None] | None = None
        self._last: RequestOutput | None = None
        server.lifecycle.add(self)
        server.books.started(model, dialect)

    def close(self) -> None:
        """The client has gone, or the server stops: within one step the engine is free of it."""
        self._stream.cancel()
        self._end_unread()

    def leave(self) -> None:
        """The same, and who reads is told now, however long the engine's step takes."""
        self._stream.leave()
        self._end_unread()

    def _end_unread(self) -> None:
        if not self._reading and self._ending is None:  # and so nobody would come to its end
            self._ending = asyncio.get_running_loop().create_task(self._end("abort", None))

    @property
    def name(self) -> str:
        """The model's name as the request said it, perhaps an alias."""
        return self._task.model or self.model.name

    @property
    def last(self) -> "RequestOutput | None":
        """The newest snapshot that `events` has read."""
        return self._last

    def timings(self) -> dict[str, float]:
        """The figures so far; {} before there are any."""
        return {} if self._last is None else summary_of(self._last, 0).timings

    async def events(self, *, whole: bool = False) -> AsyncGenerator[Event, None]:
        """The answers as they come (`whole`: at the end). The errors of the engine are raised."""
        self._reading = True
        self._stream.interval_s = math.inf if whole else self._server.settings.stream_interval_s
        readers: list[_Reader] = []
        reasoning_tokens, reason = 0, "error"
        output: RequestOutput | None = None
        try:
            async for output in self._stream:
                self._last = output
                if not readers:
                    readers = self._readers(output)
                for reader, completion in zip(readers, output.outputs, strict=True):
                    for event in reader.read(completion):
                        # What was cut off has no end of its own: an error follows below.
                        if not (isinstance(event, End) and event.reason == "abort"):
                            yield event
            if output is None or not output.finished:
                reason = "abort"
                raise self._aborted()
            reason = self._reason(readers)
            self._check_shutdown(readers)
            thoughts = [reader.reasoning for reader in readers if reader.reasoning]
            if thoughts:
                reasoning_tokens = await in_thread(self._count, thoughts)
            # Before the last event: who has it need not ask for more, nor close this.
            await self._end(reason, output)
            yield summary_of(output, reasoning_tokens)
        except (asyncio.CancelledError, GeneratorExit):
            reason = "abort"  # nobody reads on
            raise
        finally:
            await self._end(reason, output)

    async def collect(self) -> tuple[list[Answer], Summary]:
        """Everything, when it is complete."""
        answers: dict[int, Answer] = {}
        summary: Summary | None = None
        async for event in self.events(whole=True):
            if isinstance(event, Delta):
                answers.setdefault(event.index, Answer()).add(event)
            elif isinstance(event, End):
                answer = answers.setdefault(event.index, Answer())
                answer.reason, answer.seed = event.reason, event.seed
                answer.stop_sequence = event.stop_sequence
            else:
                summary = event
        assert summary is not None
        return [answers[i] for i in sorted(answers)], summary

    async def vectors(self) -> "list[RequestOutput]":
        """For embeddings: all outputs, when they are complete."""
        self._reading = True
        outputs: list[RequestOutput] = []
        reason = "error"
        try:
            outputs = await self._stream.wait_results()
            if any(output.embedding is None for output in outputs):
                late = any(o.outputs[0].stop_reason == "timeout" for o in outputs)
                reason = "timeout" if late else "abort"
                raise self._late() if late else self._aborted()
            reason = "stop"
            return outputs
        except asyncio.CancelledError:
            reason = "abort"
            raise
        finally:
            await self._end(reason, _together(outputs))

    # -- inside -----------------------------------------------------------------------------------
    def _readers(self, output: "RequestOutput") -> "list[_Reader]":
        task, model = self._task, self.model
        parser: dict[str, Any] | None = None
        if isinstance(task, ChatTask):
            reasoning, opened = model.reasoning, False
            if reasoning is not None:
                ids = output.prompt_token_ids[-_TAIL_TOKENS:]
                opened = is_open(reasoning, model.llm.tokenizer.decode(ids, skip_special=False))
            parser = {
                "reasoning": reasoning,
                "opened": opened,
                "tools": model.tools if offers_tools(task) else None,
                "names": {tool.name: tool.schema for tool in task.tools},
                "inline": not task.separate_reasoning,
                "calls_only": offers_tools(task) and task.tool_choice.kind in _MUST_CALL,
            }
        return [
            _Reader(i, None if parser is None else AnswerParser(**parser))
            for i in range(len(output.outputs))
        ]

    def _count(self, texts: list[str]) -> int:
        encode = self.model.llm.tokenizer.encode
        return sum(len(encode(text, add_special=False)) for text in texts)

    @staticmethod
    def _reason(readers: "list[_Reader]") -> str:
        reasons = [reader.reason for reader in readers]
        return "abort" if "abort" in reasons else reasons[0] if reasons else "error"

    def _check_shutdown(self, readers: "list[_Reader]") -> None:
        if any(reader.reason == "abort" for reader in readers):
            raise self._aborted()

    @staticmethod
    def _late() -> ApiError:
        message = "the request's time was up before its result was complete"
        return ApiError(408, message, "server_error", "timeout")

    def _aborted(self) -> ApiError:
        if self._server.lifecycle.expired:
            message = "the server is stopping: this answer was cut off"
            return ApiError(503, message, "server_error", "server_shutdown")
        return ApiError(503, "the request was cancelled", "server_error", "cancelled")

    async def _end(self, reason: str, output: "RequestOutput | None") -> None:
        if self._ended:
            return
        self._ended = True
        self._stream.close()
        self._server.lifecycle.remove(self)
        metrics = None if output is None else output.metrics
        self._server.books.ended(self.model, self._dialect, reason, metrics)
        await self._lease.aclose()


def _together(outputs: "list[RequestOutput]") -> "RequestOutput | None":
    """The last of several texts' outputs, with the counts of all."""
    if not outputs:
        return None
    metrics = replace(
        outputs[-1].metrics,
        prompt_tokens=sum(each.metrics.prompt_tokens for each in outputs),
        cached_tokens=sum(each.metrics.cached_tokens for each in outputs),
        queue_s=max(each.metrics.queue_s for each in outputs),
    )
    return replace(outputs[-1], metrics=metrics)


class _Reader:
    """Follows one answer: from its snapshots to parts."""

    def __init__(self, index: int, parser: AnswerParser | None) -> None:
        self.index, self.reason = index, ""
        self.reasoning = ""
        self._parser = parser
        self._num_tokens = 0
        self._has_calls = False

    def read(self, completion: "CompletionOutput") -> list[Delta | End]:
        """What is new since the last snapshot."""
        if self.reason:
            return []
        events: list[Delta | End] = []
        parts = self._parts(completion)
        new = completion.token_ids[self._num_tokens :]
        logprobs = completion.logprobs
        if logprobs is not None:
            logprobs = logprobs[self._num_tokens :]
        self._num_tokens += len(new)
        for part in parts:
            if isinstance(part, ReasoningText):
                self.reasoning += part.text
        if parts or new:
            events.append(Delta(self.index, parts, new, logprobs))
        if completion.finish_reason is not None:
            events.append(self._end(completion))
        return events

    def _parts(self, completion: "CompletionOutput") -> list[Part]:
        text = completion.delta
        if self._parser is None:
            return [ContentText(text)] if text else []
        parts = self._parser.push(text) if text else []
        if completion.finish_reason is not None:
            cut = completion.finish_reason in ("length", "abort")
            parts = [*parts, *self._parser.flush(cut=cut)]
        self._has_calls = self._has_calls or any(isinstance(p, ToolCallStart) for p in parts)
        return parts

    def _end(self, completion: "CompletionOutput") -> End:
        reason: str = completion.finish_reason or "error"
        stop = completion.stop_reason
        if stop == "timeout" and reason == "abort":
            reason = "timeout"
        elif reason == "stop" and self._has_calls:
            reason = "tool_calls"
        self.reason = reason
        text = stop if isinstance(stop, str) and reason == "stop" else None
        return End(self.index, reason, text, completion.seed)
