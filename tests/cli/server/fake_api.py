"""A test double of the server: the page's files, and scripted answers in the API's shapes."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from llamba.cli.server import pages


@dataclass
class Answer:
    """What one request gets."""

    text: str = "Fine."
    thinking: str = ""
    stops: tuple[int, ...] = ()  # before these pieces it waits until the test says go
    piece_len: int = 4
    finish: str = "stop"
    status: int = 200
    message: str = ""  # of the error, for a status above 400
    headers: dict[str, str] = field(default_factory=dict)
    error_after: int | None = None  # an error event after so many pieces
    cut_after: int | None = None  # the connection just ends after so many

    def pieces(self) -> list[dict[str, str]]:
        """The deltas."""
        return [
            {kind: text[at : at + self.piece_len]}
            for kind, text in (("reasoning_content", self.thinking), ("content", self.text))
            for at in range(0, len(text), self.piece_len)
        ]


class FakeApi:
    """The app, what it will answer next, and what it was asked."""

    def __init__(self) -> None:
        self.models = ["alpha-1b", "beta-3b"]
        self.script: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.key = ""
        self.models_failures: list[Answer] = []
        self.left: list[Answer] = []  # whose clients went away
        self.goes = threading.Semaphore(0)
        self.url = ""
        self.app = FastAPI()
        self.app.include_router(pages.router())
        self.app.add_api_route("/v1/models", self.list_models)
        self.app.add_api_route("/v1/chat/completions", self.complete, methods=["POST"])

    @property
    def cancelled(self) -> int:
        """How many answers were not read to their end."""
        return len(self.left)

    def says(self, *answers: Answer | str) -> None:
        """What the next requests get, in order; after them it is "Fine."."""
        self.script += [Answer(each) if isinstance(each, str) else each for each in answers]

    def go(self) -> None:
        """An answer goes on from where it stops."""
        self.goes.release()

    def refuse(self, request: Request) -> Response | None:
        """401 if there is a key and the request lacks it."""
        if not self.key or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return failure(Answer(status=401, message="Missing or wrong API key."))

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models"""
        if self.models_failures:
            return failure(self.models_failures.pop(0))
        data = [{"id": name, "object": "model"} for name in self.models]
        return self.refuse(request) or JSONResponse({"object": "list", "data": data})

    async def complete(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        refused = self.refuse(request)
        if refused:
            return refused
        self.requests.append(await request.json())
        answer = self.script.pop(0) if self.script else Answer()
        if answer.status >= 400:
            return failure(answer)
        return StreamingResponse(self.stream(answer), media_type="text/event-stream")

    async def stream(self, answer: Answer) -> AsyncIterator[str]:
        """The events of one answer."""
        # By the time when a client of an earlier test goes, others are here.
        left, goes = self.left, self.goes
        try:
            yield ": keep-alive\n\n"
            yield chunk({"role": "assistant", "content": ""})
            for number, piece in enumerate(answer.pieces()):
                if number in answer.stops:
                    while not goes.acquire(blocking=False):
                        await asyncio.sleep(0.005)
                if number == answer.error_after:
                    yield f"data: {json.dumps({'error': {'message': answer.message}})}\n\n"
                    return
                if number == answer.cut_after:
                    return
                yield chunk(piece)
            yield chunk({}, finish=answer.finish)
            yield "data: " + json.dumps(totals(answer)) + "\n\n"
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            left.append(answer)
            raise


def failure(answer: Answer) -> Response:
    """An error as the API writes it."""
    body = {"error": {"message": answer.message, "type": "error", "code": None}}
    return JSONResponse(body, answer.status, answer.headers)


def chunk(delta: dict[str, Any], *, finish: str | None = None) -> str:
    """One event of the stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"object": "chat.completion.chunk", "choices": [choice], "usage": None}
    return f"data: {json.dumps(body)}\n\n"


def totals(answer: Answer) -> dict[str, Any]:
    """The last chunk: usage and timings."""
    num_tokens = len(answer.pieces())
    return {
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": {
            "prompt_tokens": 31,
            "completion_tokens": num_tokens,
            "total_tokens": 31 + num_tokens,
            "prompt_tokens_details": {"cached_tokens": 12},
        },
        "timings": {
            "prompt_n": 19,
            "prompt_ms": 95.0,
            "prompt_per_second": 200.0,
            "cache_n": 12,
            "predicted_n": num_tokens,
            "predicted_ms": 1000.0,
            "predicted_per_second": 42.5,
        },
    }


@dataclass
class Address:
    """What a test of the page needs of a server that is no fake."""

    url: str


class Server:
    """The fake in a thread; it can go away and come back at the same address."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        # Keeps the port from others while the server is away; clients are refused, as it doesn't
        # listen.
        self.place = socket.socket()
        self.place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.place.bind(("127.0.0.1", 0))
        self.port = self.place.getsockname()[1]
        if sys.platform != "linux":  # elsewhere the server could not have it either
            self.place.close()
        self.api.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        """Serves, always on the same port."""
        config = uvicorn.Config(
            self.api.app,
            port=self.port,
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.uvicorn.run, daemon=True)
        self.thread.start()
        while not self.uvicorn.started:
            if not self.thread.is_alive():
                raise RuntimeError("the fake API could not start")
            self.thread.join(0.01)

    def stop(self) -> None:
        """Closes every connection and the port."""
        self.uvicorn.should_exit = True
        self.uvicorn.force_exit = True
        self.thread.join(60)


@contextmanager
def serving(api: FakeApi) -> Iterator[Server]:
    """The fake API over HTTP."""
    server = Server(api)
    try:
        yield server
    finally:
        server.stop()
        server.place.close()
