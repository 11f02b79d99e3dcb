"""Clients that leave or read nothing while the server waits, and threads that nothing can end."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from llamba.cli.server import replies
from llamba.cli.server.errors import ApiError
from llamba.cli.server.replies import StreamReply
from llamba.cli.server.waiting import in_thread, while_heard

from .conftest import until


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


# -- threads --------------------------------------------------------------------------------------
def test_a_thread_gives_its_result_or_error() -> None:
    async def work() -> None:
        assert await in_thread(lambda a, *, b: a + b, 1, b=2) == 3
        with pytest.raises(ValueError, match="invalid literal"):
            await in_thread(int, "x")

    run(work)


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_wait_ends_after_its_thread(fails: bool) -> None:
    async def work() -> None:
        go, done = threading.Event(), threading.Event()

        def slow() -> None:
            go.wait(20)
            done.set()
            if fails:
                raise ValueError("nobody asks")

        task = asyncio.create_task(in_thread(slow))
        for _ in range(3):  # however often
            await asyncio.sleep(0.02)
            task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done.is_set()

    run(work)


# -- clients that leave ---------------------------------------------------------------------------
def asked(gone: asyncio.Event) -> Request:
    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


def test_work_ends_when_nobody_hears_it() -> None:
    async def work() -> None:
        gone, ended = asyncio.Event(), asyncio.Event()

        async def forever() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.set()

        async def quick() -> int:
            return 5

        async def wrong() -> int:
            raise ValueError("no")

        assert await while_heard(asked(gone), quick()) == 5
        with pytest.raises(ValueError, match="no"):
            await while_heard(asked(gone), wrong())
        waiting = asyncio.create_task(while_heard(asked(gone), forever()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone.set()
        with pytest.raises(ApiError, match="cancelled"):
            await waiting
        assert ended.is_set()
        # The wait itself may be cancelled, too.
        gone.clear()
        ended.clear()
        waiting = asyncio.create_task(while_heard(asked(gone), forever()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ended.is_set()

    run(work)


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": ["x", "y"]}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/responses", {"input": "x"}),
        (
            "/v1/messages",
            {"model": "b", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]},
        ),
        ("/api/chat", {"model": "b", "messages": [{"role": "user", "content": "x"}]}),
        ("/api/chat", {"model": "b"}),
        ("/api/embed", {"model": "b", "input": "x"}),
    ],
)
def test_p61_who_leaves_while_a_model_loads_frees_its_place(
    serve: Callable[..., Any],
    tiny_gguf: Callable[..., Path],
    path: str,
    body: dict[str, Any],
) -> None:
    model = str(tiny_gguf(weights="Q4_K"))
    server = serve(models={"a": model, "b": model})
    models = server.server.models
    begun, go = threading.Event(), threading.Event()
    load = models._load_llm

    def load_later(*args: Any, **options: Any) -> Any:
        begun.set()
        go.wait(100)
        return load(*args, **options)

    models._load_llm = load_later
    try:
        data = json.dumps({"model": "b", **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as client:
            client.sendall(head.encode() + data)
            until(lambda: begun.is_set() and models._slots["b"].users)
        until(lambda: not models._slots["b"].users)  # although the model still loads
    finally:
        go.set()
    assert server.post("/v1/completions", {"model": "b", "prompt": "x", "max_tokens": 1}).json()


# -- clients that do not read ---------------------------------------------------------------------
def test_a_client_that_reads_nothing_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "STALL_S", 0.05)

    async def work() -> None:
        seen = SimpleNamespace(closed=0, ended=False, failed=False)

        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield b"x"
            finally:
                seen.ended = True

        def close() -> None:
            seen.closed += 1

        def on_error(_: ApiError) -> bytes:
            seen.failed = True
            return b""

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(100)
            return {}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(100)

        reply = StreamReply(chunks(), close=close, on_error=on_error, ping=b"p")
        await reply({"type": "http"}, receive, send)
        assert seen.closed and seen.ended and not seen.failed

    run(work)


def test_an_error_of_the_system_in_a_stream_is_told() -> None:
    async def work() -> None:
        sent: list[bytes] = []

        async def chunks() -> AsyncGenerator[bytes, None]:
            yield b"x"
            raise OSError("the disk is gone")

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(100)
            return {}

        async def send(message: Any) -> None:
            sent.append(message.get("body"))

        reply = StreamReply(chunks(), close=lambda: None, on_error=lambda e: b"error")
        await reply({"type": "http"}, receive, send)
        assert sent == [None, b"x", b"error", b""]

    run(work)
