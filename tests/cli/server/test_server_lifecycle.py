"""How a server ends: what may finish, what is cut off, and what it says."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llamba.cli.server.lifecycle import ServerLifecycle
from llamba.errors import DeviceLostError

from .conftest import until

STORY = [{"role": "user", "content": "Tell me a very long story about a king and his horse."}]
ENDLESS = {"max_tokens": 3000, "ignore_eos": True}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": STORY, **ENDLESS}),
    "text": ("/v1/completions", {"prompt": "Once upon a time", **ENDLESS}),
    "anthropic": ("/v1/messages", {"messages": STORY, "model": "small", **ENDLESS}),
    "ollama": (
        "/api/chat",
        {"messages": STORY, "model": "small", "options": {"ignore_eos": True}},
    ),
    "responses": ("/v1/responses", {"input": "Count to ten thousand.", "ignore_eos": True}),
}


# -- the state ------------------------------------------------------------------------------------
class Closeable:
    closed = left = False

    def close(self) -> None:
        self.closed = True

    def leave(self) -> None:
        self.left = True


def test_an_idle_server_stops_at_once() -> None:
    said: list[str] = []
    lifecycle = ServerLifecycle(60, said.append)
    asyncio.run(lifecycle.drain())
    assert lifecycle.draining and not lifecycle.expired and said == ["stopping"]


def test_answers_may_finish() -> None:
    async def work() -> None:
        said: list[str] = []
        lifecycle = ServerLifecycle(60, said.append)

        async def answer() -> None:
            async with lifecycle.request():
                await asyncio.sleep(0.1)

        tasks = [asyncio.create_task(answer()) for _ in range(3)]
        await asyncio.sleep(0)
        started = time.monotonic()
        await lifecycle.drain()
        assert time.monotonic() - started < 30 and not lifecycle.expired
        assert said == [
            "stopping: 3 answers may finish within 60 s",
            "stopping: all answers are finished",
        ]
        await asyncio.gather(*tasks)

    asyncio.run(work())


@pytest.mark.parametrize("forced", [False, True])
def test_what_does_not_finish_is_closed(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    finished_within = ServerLifecycle._finished_within

    async def noted(lifecycle: ServerLifecycle, seconds: float) -> bool:
        waits.append(seconds)
        return await finished_within(lifecycle, seconds)

    monkeypatch.setattr(ServerLifecycle, "_finished_within", noted)

    async def work() -> None:
        said: list[str] = []
        lifecycle = ServerLifecycle(60 if forced else 0.05, said.append)
        running, late, gone = Closeable(), Closeable(), Closeable()
        lifecycle.on_expiry.append(lambda: said.append("expired"))
        lifecycle.add(running)
        lifecycle.add(gone)
        lifecycle.remove(gone)
        async with lifecycle.request():
            if forced:
                asyncio.get_running_loop().call_later(0.05, lifecycle.force)
            started = time.monotonic()
            await lifecycle.drain()
            assert time.monotonic() - started < 30
        assert lifecycle.expired and running.closed and running.left and not gone.closed
        lifecycle.add(late)
        assert late.left
        assert said[1:] == ["stopping: 1 unfinished is cut off", "expired"]
        assert sum(waits[1:]) <= 0.5  # what is cut off does not hold up the end

    asyncio.run(work())


def test_what_a_request_leaves_behind_is_closed() -> None:
    async def work() -> None:
        lifecycle = ServerLifecycle(60)
        others, ended, left = Closeable(), Closeable(), Closeable()
        lifecycle.add(others)
        with pytest.raises(ValueError):
            async with lifecycle.request():
                lifecycle.add(ended)
                lifecycle.add(left)
                lifecycle.remove(ended)
                raise ValueError("a fault after the engine was asked")
        assert (others.closed, ended.closed, left.closed) == (False, False, True)

    asyncio.run(work())


# -- a process ------------------------------------------------------------------------------------
class Reader(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(daemon=True)
        self.url, self.kind = url, kind
        self.lines: list[str] = []
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        path, body = REQUESTS[self.kind]
        try:
            with httpx.stream(
                "POST", self.url + path, json={**body, "stream": True}, timeout=120
            ) as reply:
                assert reply.status_code == 200, reply.read()
                self.lines.extend(line for line in reply.iter_lines() if line)
        except Exception as error:
            self.failure = error

    def wait_begun(self) -> None:
        until(lambda: len(self.lines) >= 3 or self.failure is not None, 120)

    def check_end(self, code: str) -> None:
        """The last event is an error in the dialect's form, then the usual end."""
        self.join(60)
        assert not self.is_alive()
        assert self.failure is None, (self.kind, self.failure)
        last = self.lines[-1]
        if self.kind in ("chat", "text"):
            assert last == "data: [DONE]"
            assert json.loads(self.lines[-2].removeprefix("data: "))["error"]["code"] == code
        elif self.kind == "anthropic":
            assert self.lines[-2] == "event: error"
            assert "stopping" in json.loads(last.removeprefix("data: "))["error"]["message"]
        elif self.kind == "ollama":
            assert "stopping" in json.loads(last)["error"]
        else:
            assert any("stopping" in line for line in self.lines[-4:]), self.lines[-4:]


# The last events of answers that are cut off get as long as they need.
PATIENT = """
from llamba.cli.server import lifecycle
lifecycle.LAST_WORDS_S = 60
"""


@pytest.fixture
def small(spawn: Callable[..., Any], models: Callable[[str], Path]) -> Callable[..., Any]:
    """small("--shutdown-grace", "1s") -> `llamba serve` over SmolLM2, ready."""

    def start(*args: str, before: str = PATIENT) -> Any:
        path = models("smollm2")
        args = (f"small={path}", "--port", "0", "-c", "4096", *args)
        return spawn(*args, before=before).wait_ready()

    return start


def wait_stopping(client: httpx.Client) -> None:
    """Until the server has heard the signal."""
    until(lambda: client.get("/health").status_code != 200)
    reply = client.get("/health")
    assert (reply.status_code, reply.json()["status"]) == (503, "stopping")


def metric(client: httpx.Client, name: str) -> float:
    """The first value of this name; 0 before there is one."""
    found = re.search(rf"^{name}\{{.*\}} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait_metric(client: httpx.Client, name: str, least: float) -> None:
    """Until it is that large."""
    until(lambda: metric(client, name) >= least, 120)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.model("smollm2")
def test_sigterm_with_eight_streams_open(small: Callable[..., Any]) -> None:
    server = small("--shutdown-grace", "10s", "--kv-tokens", "32768")
    kinds = ["chat", "text", "anthropic", "ollama", "responses", "chat", "text", "anthropic"]
    readers = [Reader(server.url, kind) for kind in kinds]
    for reader in readers:
        reader.wait_begun()
    # Kept alive (for 30 s), which must not hold up the end.
    idle = httpx.Client(base_url=server.url, timeout=60)
    assert idle.get("/health").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    wait_stopping(idle)
    refused = httpx.post(server.url + "/v1/completions", json={"prompt": "x"}, timeout=60)
    assert refused.status_code == 503 and "retry-after" in refused.headers
    for reader in readers:
        reader.check_end("server_shutdown")
    assert server.process.wait(60) == 0
    assert time.monotonic() - started < 10 + 15
    said = server.said()
    assert "stopping: 8 answers may finish within 10 s" in said
    assert "stopping: 8 unfinished are cut off" in said
    assert "Traceback" not in said and not re.search('"level": "(?!info)', said)
    idle.close()


# The engine waits for the signal, so that no answer is finished before.
FINISHING = """
import threading
from llamba.cli.server.lifecycle import ServerLifecycle
from llamba.runtime.core import EngineCore

draining = threading.Event()
drain, step = ServerLifecycle.drain, EngineCore.step

async def drained(self):
    draining.set()
    await drain(self)

def held(self):
    draining.wait()
    return step(self)

ServerLifecycle.drain, EngineCore.step = drained, held
"""


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.model("smollm2")
def test_sigterm_lets_answers_finish(small: Callable[..., Any]) -> None:
    server = small("--shutdown-grace", "60s", before=FINISHING)
    bodies = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True}
    replies: list[Any] = []

    def ask() -> None:
        replies.append(httpx.post(server.url + "/v1/completions", json=bodies, timeout=120).json())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        wait_metric(client, "llamba_requests_in_progress", 4)
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    assert [reply["choices"][0]["finish_reason"] for reply in replies] == ["length"] * 4
    assert "stopping: all answers are finished" in server.said()


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.model("smollm2")
def test_a_second_interrupt_does_not_wait(small: Callable[..., Any]) -> None:
    server = small("--shutdown-grace", "60s")
    reader = Reader(server.url, "text")
    reader.wait_begun()
    server.process.send_signal(signal.SIGINT)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        wait_stopping(client)
    assert server.process.poll() is None
    started = time.monotonic()
    assert server.stop(signal.SIGINT) == 130
    assert time.monotonic() - started < 30
    reader.check_end("server_shutdown")


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.model("smollm2")
def test_clients_that_do_not_read_do_not_hold_up_the_end(small: Callable[..., Any]) -> None:
    server = small("--shutdown-grace", "1s", before="")
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect((host, int(port)))
        body = json.dumps({"prompt": "Once", "stream": True, **ENDLESS}).encode()
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        with httpx.Client(base_url=server.url, timeout=60) as other:
            wait_metric(other, "llamba_decode_tokens_total", 300)
        half = socket.create_connection((host, int(port)))  # sends half a request
        half.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        )
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 25  # the other half has 30 s to come
        half.close()


LONG_LOAD = """
import time
from llamba.cli.server import models

open_llm = models._open
def slowly(source, **engine):
    open_llm(source, **engine)
    time.sleep(100)
models._open = slowly
"""


@pytest.mark.kernels
@pytest.mark.model("smollm2")
def test_a_signal_while_it_loads(spawn: Callable[..., Any], models: Callable[[str], Path]) -> None:
    with socket.socket() as place:  # keeps the port from others; it doesn't listen
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        if sys.platform != "linux":  # elsewhere the server could not have it either
            place.close()
        server = spawn(str(models("smollm2")), "--port", str(port), before=LONG_LOAD)
        deadline = time.monotonic() + 120
        while True:
            try:
                reply = httpx.get(f"http://127.0.0.1:{port}/health", timeout=60)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline and server.process.poll() is None, server.said()
                time.sleep(0.02)
    assert reply.json() == {"status": "loading"}
    assert server.stop() == 0
    assert server.said().startswith(("stopping", "{"))


@pytest.mark.kernels
@pytest.mark.model("smollm2")
@pytest.mark.parametrize("kind", REQUESTS)
def test_last_words_do_not_wait_for_the_engine(
    kind: str, serve: Callable[..., Any], models: Callable[[str], Path]
) -> None:
    server = serve(models={"small": str(models("smollm2"))}, shutdown_grace_s=0.0)
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(60)

    reader = Reader(server.url, kind)
    reader.wait_begun()
    step = threading.Thread(target=server.llm.engine.run_between_steps, args=(hold,))
    step.start()
    try:
        assert held.wait(60)
        server.runner.stop()
        reader.check_end("server_shutdown")
        assert not go_on.is_set()
    finally:
        go_on.set()
        step.join()


SLOW_LOAD = """
import os, signal, sys, threading, time
from llamba.cli.server import models, run_server
from llamba.cli.main import main

def load(source, **engine):
    if {when!r} == "load":
        os.kill(os.getpid(), {sig})
    time.sleep(100)

models._open = load
run = run_server.LlambaServer.run
def early(self, sockets):
    if {when!r} == "run":  # before there is a loop
        os.kill(os.getpid(), {sig})
    run(self, sockets)
run_server.LlambaServer.run = early
startup = run_server.LlambaServer.startup
async def starting(self, sockets):
    if {when!r} == "startup":
        os.kill(os.getpid(), {sig})
    await startup(self, sockets)
run_server.LlambaServer.startup = starting
sys.argv = ["llamba", "serve", {path!r}, "--port", "0"]
main()
"""


@pytest.mark.kernels
@pytest.mark.parametrize("when", ["run", "startup", "load"])
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_serves(
    when: str, sig: signal.Signals, tiny_gguf: Callable[..., Path]
) -> None:
    path = str(tiny_gguf(weights="Q4_K"))
    code = SLOW_LOAD.format(when=when, sig=int(sig), path=path)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "stopping\n", "")
    assert time.monotonic() - started < 60  # it did not wait for the model


@pytest.mark.kernels
def test_health_says_what_the_server_does(
    serve: Callable[..., Any], tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from llamba.cli.server import models as models_module

    opened = threading.Event()
    llms: list[Any] = []
    open_llm = models_module._open

    def slowly(source: str, **engine: Any) -> Any:
        opened.wait(100)
        llms.append(open_llm(source, **engine))
        return llms[0]

    monkeypatch.setattr(models_module, "_open", slowly)
    path = str(tiny_gguf(weights="Q4_K"))
    server = serve(wait=False, models={"tiny": path})
    for name in ("/health", "/v1/health", "/healthz"):
        reply = server.get(name)
        assert (reply.status_code, reply.json()) == (503, {"status": "loading"})
        assert "retry-after" in reply.headers
    replies: list[int] = []
    body = {"prompt": "x", "max_tokens": 2}
    waiting = threading.Thread(
        target=lambda: replies.append(server.post("/v1/completions", json=body).status_code)
    )
    waiting.start()
    until(lambda: server.server.lifecycle.num_requests)
    assert not replies  # it waits for the model
    opened.set()
    waiting.join(250)
    assert replies == [200]
    assert server.get("/health").json() == {"status": "ok"}
    with server.client() as client:
        assert client.head("/health").status_code == 200

    def lost(batch: Any) -> Any:
        raise DeviceLostError("an illegal address")

    monkeypatch.setattr(llms[0].program, "run", lost)
    for _ in range(2):
        reply = server.post("/v1/completions", json=body)
        assert reply.status_code == 500
        assert reply.json()["error"]["code"] == "device_lost"
    reply = server.get("/health")
    assert (reply.status_code, reply.json()) == (503, {"status": "failed"})
    assert server.get("/version").json()["version"]
