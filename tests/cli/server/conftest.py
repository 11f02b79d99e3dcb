"""Real servers for tests: uvicorn in a thread over real and tiny models, or `llamba serve`."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

if TYPE_CHECKING:
    from fastapi import FastAPI

    from llamba.cli.server.run_server import LlambaServer
    from llamba.cli.server.served import Server
    from llamba.runtime.llm import LLM


@dataclass
class Live:
    """A running server: `url` for clients, `server` is what its endpoints have at hand."""

    url: str
    model: str  # the name of the first model
    runner: "LlambaServer"
    log: list[dict[str, Any]] = field(default_factory=list)  # what the access log was given

    @property
    def app(self) -> "FastAPI":
        return self.runner.app

    @property
    def server(self) -> "Server":
        return self.runner.app.state.server

    @property
    def llm(self) -> "LLM":
        """The first model, which is loaded."""
        loaded = self.server.models.entries()[0].loaded
        assert loaded is not None
        return loaded.llm

    def client(self, **options: Any) -> Any:
        """httpx.Client with our address; a long timeout, as tests share two cores."""
        return httpx.Client(base_url=self.url, **{"timeout": 120, **options})

    def post(self, path: str, json: Any, **options: Any) -> Any:
        """One request, whatever its status."""
        with self.client() as client:
            return client.post(path, json=json, **options)

    def get(self, path: str, **options: Any) -> Any:
        """One request, whatever its status."""
        with self.client() as client:
            return client.get(path, **options)

    def idle(self, timeout_s: float = 60) -> Any:
        """Wait until the first model's engine has nothing to do, and the server knows; its figures.

        The engine ends a request first, then the server's loop hears of it; then it is counted and
        its line is in the log, which may be after its reply.
        """
        until(self._is_idle, timeout_s)
        return self.llm.stats  # those above may be half from before the end

    def _is_idle(self) -> bool:
        stats = self.llm.stats
        lifecycle: Any = self.server.lifecycle
        busy = stats.running or stats.waiting or stats.pages_used
        return not (busy or lifecycle.num_running or lifecycle.num_requests)


def until(check: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Ask until the answer is true; that answer."""
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


class _Lines:
    """A log that tests can read."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []

    def write(self, values: dict[str, Any]) -> None:
        self.values.append(dict(values))


@contextlib.contextmanager
def serving(*, wait: bool = True, **settings: Any) -> Iterator[Live]:
    """A server in a thread, on a free port; `settings` are ServerSettings' fields."""
    from llamba.cli.server.run_server import LlambaServer, bind
    from llamba.cli.server.settings import ServerSettings

    chosen = ServerSettings(port=0, **{"shutdown_grace_s": 1.0, **settings})
    sockets, lines, ready = bind(chosen), _Lines(), threading.Event()
    port = sockets[0].getsockname()[1]
    runner = LlambaServer(chosen, lines=lines, ready=ready.set)  # type: ignore[arg-type]
    thread = threading.Thread(target=runner.run, args=(sockets,), daemon=True)
    thread.start()
    scheme = "https" if chosen.tls_cert else "http"
    name = next(iter(chosen.models), "")
    live = Live(f"{scheme}://127.0.0.1:{port}", name, runner, lines.values)
    try:
        until(lambda: runner.started or not thread.is_alive(), 60)
        if wait:
            # The kernels of a model may have to be compiled first. `models.ready` is true a moment
            # before the server has heard of a failure.
            until(lambda: ready.is_set() or runner.failure or not thread.is_alive(), 600)
        if runner.failure is not None:
            raise runner.failure
        yield live
    finally:
        runner.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(autouse=True)
def private_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the folder's above: kernels come from the user's cache; models are given."""
    for name in list(os.environ):
        if name.startswith("LLAMBA_SERVE_") or name in ("LLAMBA_DEBUG", "LLAMBA_API_KEY"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def live(models: Callable[[str], Path]) -> Iterator[Live]:
    """A server over SmolLM2 with 16 sequences, for all tests: leave it as it was."""
    engine = {"context_length": 2048, "kv_tokens": 16384}
    path = str(models("smollm2"))
    with serving(models={"smollm2": path}, aliases={"gpt-4o": "smollm2"}, engine=engine) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_live(tiny_gguf: Callable[..., Path]) -> Iterator[Live]:
    """A server over a tiny random model (256 positions): quick, for limits and errors."""
    with serving(models={"tiny": str(tiny_gguf(weights="Q4_K"))}) as running:
        yield running


@pytest.fixture(scope="session")
def encoders_live(
    tiny_models: ModuleType,
    tiny_gguf: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Live]:
    """A server over a tiny reranker; "embed" and "decoder" are loaded when asked for."""
    folder = tmp_path_factory.mktemp("encoders")
    names = {"rank": "bert-rank", "embed": "bert"}
    models = {name: str(tiny_models.write(folder, kind, "F32")) for name, kind in names.items()}
    models["decoder"] = str(tiny_gguf(weights="Q4_K"))
    engine = {"activations": "float32", "num_threads": 1}
    with serving(models=models, engine=engine, max_inputs=64) as running:
        yield running


@pytest.fixture
def serve() -> Iterator[Callable[..., Live]]:
    """serve(models={"a": path}, **settings) -> one more server, which ends with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(**settings))


_RUN = "import runpy; runpy.run_module('llamba', run_name='__main__', alter_sys=True)"


@dataclass
class Spawned:
    """`llamba serve` in a process of its own; `url` is what it printed when it was ready."""

    process: "subprocess.Popen[str]"
    errors: Path
    url: str = ""

    def said(self) -> str:
        """All of stderr up to now."""
        return self.errors.read_text()

    def wait_ready(self, timeout_s: float = 300) -> "Spawned":
        """Until it tells its address."""

        def address() -> str | None:
            assert self.process.poll() is None, self.said()
            found = re.search(r"^llamba serves .* at (\S+)\n", self.said(), re.MULTILINE)
            return found[1] if found else None

        self.url = until(address, timeout_s)
        return self

    def stop(self, sig: int = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(sig)
        return self.process.wait(timeout_s)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Spawned]]:
    """spawn("smollm2=/path", "--port", "0", env={...}) -> a process, killed after the test.

    `before` is code that the process runs first.
    """
    started: list[Spawned] = []

    def run(*args: str, before: str = "", env: dict[str, str | None] | None = None) -> Spawned:
        how = ["-c", f"{before}\n{_RUN}"] if before else ["-m", "llamba"]
        environment = {**os.environ, **(env or {})}
        environment = {name: value for name, value in environment.items() if value is not None}
        errors = tmp_path / f"stderr-{len(started)}.txt"
        with errors.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, *how, "serve", *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                text=True,
            )
        started.append(Spawned(process, errors))
        return started[-1]

    yield run
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()
