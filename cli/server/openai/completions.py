"""POST /v1/completions: one or several prompts, continued as they are."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ....errors import RequestError
from ..answers import Answer, End, Summary
from ..errors import ApiError, bad_request, error_responses, translate
from ..replies import SSE_PING, JsonReply, StreamReply, Watch
from ..running import Running
from ..served import Server
from ..settings import ServerSettings
from ..starting import start_text
from ..tasks import TextTask
from ..waiting import while_heard
from .completion_stream import CompletionStream
from .documents import COMPLETION_REPLY
from .envelope import Envelope, closing, figures
from .prompt_texts import Scorer, merged, prompt_text
from .schemas import CompletionBody
from .streaming import error_chunk

_AT_ONCE = 16  # prompts of one request that are with the engine together


def router(server: Server) -> APIRouter:
    """The path, with and without /v1."""
    api = APIRouter(tags=["openai"])

    @api.post("/completions", include_in_schema=False)
    @api.post(
        "/v1/completions",
        summary="Continue prompts",
        responses={200: COMPLETION_REPLY, **error_responses("openai")},
    )
    async def complete(request: Request, body: CompletionBody) -> Response:
        headers = body.check(server.settings)
        task = text_task(body, server.settings)
        batch = PromptBatch(server, task)
        await while_heard(request, batch.start())
        if body.stream:
            stream = CompletionStream(
                batch,
                echo=bool(body.echo),
                include_usage=body.include_usage,
                timings=bool(body.timings_per_token),
            )
            return StreamReply(
                stream.chunks(),
                close=batch.close,
                on_error=error_chunk,
                ping=SSE_PING,
                ping_s=server.settings.ping_s,
                headers=headers,
            )
        async with Watch(request, batch.close):
            results = await batch.collect()
        choices = [
            _choice(number, j, answer, running, bool(body.echo))
            for number, (running, answers, _) in enumerate(results)
            for j, answer in enumerate(answers)
        ]
        envelope = Envelope.of(results[0][0], "cmpl-")
        whole = envelope.around("text_completion", choices)
        summary = merged([summary for _, _, summary in results])
        return JsonReply({**whole, **figures(summary)}, headers=headers)

    return api


def text_task(body: CompletionBody, settings: ServerSettings) -> TextTask:
    """The internal form; ApiError: over a limit, or fields that don't go together."""
    sampling = body.sampling(settings) | {"n": body.n or 1}
    if len(body.prompt) > settings.max_inputs:
        raise bad_request(
            f"prompt: {len(body.prompt)} given, at most {settings.max_inputs} may be",
            param="prompt",
        )
    for i, prompt in enumerate(body.prompt):
        if not prompt:
            where = "prompt" if len(body.prompt) == 1 else f"prompt[{i}]"
            raise bad_request(f"{where}: an empty text can't be continued", param=where)
    if body.best_of is not None:
        sampling["best_of"] = _best_of(body, settings)
    if body.logprobs is not None:
        if body.logprobs > settings.max_logprobs:
            raise bad_request(
                f"logprobs={body.logprobs}: at most {settings.max_logprobs} may be",
                param="logprobs",
            )
        sampling["logprobs"] = body.logprobs
        if body.echo:
            sampling["prompt_logprobs"] = body.logprobs
    return TextTask(**body.common(), prompts=body.prompt, sampling=sampling)


def _best_of(body: CompletionBody, settings: ServerSettings) -> int:
    count, n = body.best_of or 1, body.n or 1
    if not n <= count <= settings.max_n:
        raise bad_request(
            f"best_of={count}: must be from n={n} to {settings.max_n}", param="best_of"
        )
    if body.stream and count > n:
        raise bad_request(
            f"best_of={count}: which answers are the best is known at the end only: "
            "leave it out, or don't stream",
            param="best_of",
        )
    return count


class PromptBatch:
    """The prompts of one request: some are with the engine, the others follow as these end."""

    def __init__(self, server: Server, task: TextTask) -> None:
        self._server, self._task = server, task
        self._closed = False
        self.running: list[Running] = []
        self.num_prompts = len(task.prompts)

    async def start(self) -> None:
        """The first ones; what is wrong with them is raised before anything is sent."""
        try:
            for _ in range(min(self.num_prompts, _AT_ONCE)):
                await self.start_next()
        except BaseException:
            self.close()
            raise

    async def start_next(self) -> Running | None:
        """One more, if there is one left."""
        number = len(self.running)
        if number >= self.num_prompts:
            return None
        prompt = self._task.prompts[number]
        try:
            running = await start_text(self._server, "openai", self._task, prompt)
        except RequestError as error:
            raise self._of_prompt(translate(error), number) from error
        self.running.append(running)
        if self._closed:  # meanwhile
            running.close()
        return running

    def _of_prompt(self, error: ApiError, number: int) -> ApiError:
        """Says which prompt it is, if it is one's fault."""
        if error.code == "context_length_exceeded" or error.param == "prompt_token_ids":
            error.param = "prompt" if self.num_prompts == 1 else f"prompt[{number}]"
            if self.num_prompts > 1:
                error.message = f"{error.param}: {error.message}"
        return error

    def close(self) -> None:
        """Nobody wants any of it."""
        self._closed = True
        for running in self.running:
            running.close()

    async def collect(self) -> list[tuple[Running, list[Answer], Summary]]:
        """All of them, in order."""
        results: dict[int, tuple[Running, list[Answer], Summary]] = {}
        starting = asyncio.Lock()

        async def work(number: int, running: Running) -> None:
            while True:
                answers, summary = await running.collect()
                results[number] = (running, answers, summary)
                async with starting:  # so that their order stays
                    number, following = len(self.running), await self.start_next()
                if following is None:
                    return
                running = following

        try:
            async with asyncio.TaskGroup() as group:
                for number, running in enumerate(list(self.running)):
                    group.create_task(work(number, running))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.close()
        return [results[number] for number in sorted(results)]


def _choice(number: int, j: int, answer: Answer, running: Running, echo: bool) -> dict[str, Any]:
    params, output = running.params, running.last
    assert params is not None and output is not None
    logprobs = None
    if params.logprobs is not None:
        scorer = Scorer(running, output, echo)
        logprobs = scorer.whole(answer)
    text = prompt_text(running, output) + answer.content if echo else answer.content
    end = End(0, answer.reason, answer.stop_sequence, answer.seed)
    return {
        "index": number * params.n + j,
        "text": text,
        "logprobs": logprobs,
        **closing(end),
    }
