"""Completions as a stream of chunks; those of several prompts come as they are made."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ....models.chat import ContentText
from ..answers import Delta, End, Event, Summary
from ..running import Running
from .envelope import Envelope, closing
from .prompt_texts import Scorer, merged, prompt_text
from .streaming import Frame, encode, encode_basestring

if TYPE_CHECKING:
    from .completions import PromptBatch

_MOST_WAITING = 64  # events of several prompts that were not sent yet
_Numbered = tuple[int, Running, Event]


class CompletionStream:
    """Turns the events of prompts into chunks."""

    def __init__(
        self, batch: "PromptBatch", *, echo: bool, include_usage: bool, timings: bool
    ) -> None:
        self._batch, self._echo = batch, echo
        self._include_usage, self._timings = include_usage, timings
        first = batch.running[0]
        self._frame = Frame(Envelope.of(first, "cmpl-"), "text_completion", include_usage)
        assert first.params is not None
        self._n = first.params.n
        self._wants_scores = first.params.logprobs is not None
        self._ends: dict[int, tuple[str, str]] = {}
        self._scorers: dict[int, Scorer] = {}
        self._opened: set[int] = set()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Everything that is sent."""
        plain = not (self._wants_scores or self._timings)
        summaries: list[Summary] = []
        held: dict[str, Any] | None = None  # the last choice's end waits for the figures
        single = self._batch.num_prompts == 1
        async with aclosing(self._one() if single else self._several()) as events:
            async for number, running, event in events:
                if isinstance(event, Summary):
                    summaries.append(event)
                    continue
                index = number * self._n + event.index
                out = b"" if held is None else self._frame.chunk(held)
                held = None
                if self._echo:
                    out += self._opening(index, running)
                if isinstance(event, End):
                    held = _around(index, "") | closing(event)
                elif plain:
                    out += self._plain(index, event)
                else:
                    out += self._detailed(index, running, event)
                if out:
                    yield out
        total = merged(summaries)
        yield self._frame.ending(held, total, self._include_usage)

    async def _one(self) -> AsyncGenerator[_Numbered, None]:
        running = self._batch.running[0]
        async with aclosing(running.events()) as events:
            async for event in events:
                yield 0, running, event

    async def _several(self) -> AsyncGenerator[_Numbered, None]:
        """The events of all prompts, in the order in which they come."""
        # A client that reads slowly holds up the workers, and these get more text in one event.
        queue: asyncio.Queue[_Numbered | None | Exception] = asyncio.Queue(_MOST_WAITING)
        starting = asyncio.Lock()

        async def work(number: int, running: Running) -> None:
            try:
                following: Running | None = running
                while following is not None:
                    async with aclosing(following.events()) as events:
                        async for event in events:
                            await queue.put((number, following, event))
                    async with starting:
                        number = len(self._batch.running)
                        following = await self._batch.start_next()
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

        workers = [
            asyncio.create_task(work(number, running))
            for number, running in enumerate(list(self._batch.running))
        ]
        try:
            left = len(workers)
            while left:
                item = await queue.get()
                if item is None:
                    left -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            self._batch.close()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _opening(self, index: int, running: Running) -> bytes:
        """The prompt, the first time that something of this choice comes."""
        if index in self._opened:
            return b""
        self._opened.add(index)
        output = running.last
        assert output is not None
        scores = self._scorer(index, running).prompt() if self._wants_scores else None
        return self._frame.chunk(_around(index, prompt_text(running, output), scores or None))

    def _plain(self, index: int, event: Delta) -> bytes:
        ends = self._ends.get(index)
        if ends is None:
            ends = self._ends[index] = self._frame.text_ends(index, '"text":')
        out = b""
        for part in event.parts:
            if isinstance(part, ContentText):
                out += encode(f"{ends[0]}{encode_basestring(part.text)}{ends[1]}")
        return out

    def _detailed(self, index: int, running: Running, event: Delta) -> bytes:
        text = "".join(part.text for part in event.parts if isinstance(part, ContentText))
        scores: dict[str, Any] | None = None
        if event.logprobs is not None:
            scores = self._scorer(index, running).more(event.token_ids, event.logprobs)
            scores = scores if scores["tokens"] else None
        if not text and scores is None:
            return b""
        more = {"timings": running.timings()} if self._timings else {}
        return self._frame.chunk(_around(index, text, scores), **more)

    def _scorer(self, index: int, running: Running) -> Scorer:
        if index not in self._scorers:
            assert running.last is not None
            self._scorers[index] = Scorer(running, running.last, self._echo)
        return self._scorers[index]


def _around(index: int, text: str, scores: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": scores, "finish_reason": None}
