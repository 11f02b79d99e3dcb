"""A model of twenty lines for the front ends: it says what a test tells it to, and remembers."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click.testing
import pytest

from llamba.cli import loading, prompt
from llamba.cli.main import cli
from llamba.runtime.config import EngineConfig
from llamba.runtime.outputs import CompletionOutput, RequestMetrics
from llamba.runtime.request import RequestOutput, SamplingParams

NAMES = ["smollm2", "qwen2.5-coder-0.5b"]


@dataclass
class FakeLLM:
    """`says` is streamed word by word; an exception in it is raised; `interrupt_after` words in,
    SIGINT arrives as if the user had pressed Ctrl-C."""

    says: list[str | Exception] = field(default_factory=lambda: ["Because of Rayleigh scattering."])
    chat_template: Any = "template"
    context_length: int = 64
    interrupt_after: int | None = None
    finish_reason: str = "stop"
    default_params: SamplingParams = SamplingParams()
    pause_s: float = 0.0
    gate: int | None = None  # a pipe: each word waits for a byte of it
    calls: list[tuple[str, Any, Any]] = field(default_factory=list)
    closed: bool = False

    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> Any:
        return SimpleNamespace(gguf=SimpleNamespace(metadata=self.metadata))

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(context_length=self.context_length, num_threads=1)

    def chat(self, messages: Any, params: Any = None, *, stream: bool = False) -> Any:
        assert stream
        self.calls.append(("chat", [dict(m) for m in messages], params))
        return self._stream(" ".join(m["content"] for m in messages))

    def generate(self, prompts: Any, params: Any = None, *, stream: bool = False) -> Any:
        assert stream
        self.calls.append(("generate", prompts, params))
        return self._stream(prompts)

    def _stream(self, asked: str) -> Iterator[RequestOutput]:
        says = self.says[min(len(self.calls), len(self.says)) - 1]
        if isinstance(says, Exception):
            raise says
        text = ""
        pieces = [f"{word} " for word in says.split(" ")]
        pieces[-1] = pieces[-1][:-1]
        for i, piece in enumerate(pieces if says else []):
            if i == self.interrupt_after:
                signal.raise_signal(signal.SIGINT)  # os.kill may choose another thread
            if self.gate is not None:
                os.read(self.gate, 1)
            time.sleep(self.pause_s)
            text += piece
            yield self._output(asked, text, i + 1, None, piece)
        yield self._output(asked, text, len(text.split()), self.finish_reason, "")

    def _output(self, asked: str, text: str, num: int, reason: Any, delta: str) -> RequestOutput:
        completion = CompletionOutput(0, text, list(range(num)), None, reason, None, 7)
        num_prompt = len(asked.split())
        metrics = RequestMetrics(num_prompt, 0, num, 0.0, 0.1, 0.1, 0.2)
        return RequestOutput(
            "req-0",
            asked,
            list(range(num_prompt)),
            [completion],
            reason is not None,
            metrics,
            delta,
        )

    def check_generates(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    @property
    def messages(self) -> Any:
        """What the last call was given."""
        return self.calls[-1][1]

    @property
    def params(self) -> Any:
        """The parameters of the last call."""
        return self.calls[-1][2]


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or touches the user's cache, nor reacts to the user's settings."""
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LLAMBA_DEBUG", raising=False)
    monkeypatch.setattr(prompt, "known_names", lambda: list(NAMES))


@pytest.fixture(autouse=True)
def never_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says on stderr does not depend on how long its work takes here."""
    monkeypatch.setattr("llamba.cli.progress.SHORT_S", math.inf)


@pytest.fixture(autouse=True)
def private_log() -> Iterator[None]:
    """A command sets up its process's log and never takes it back: -v would last for all tests."""
    names = ("llamba", "llamba.runtime.load", "llamba.runtime.placing")
    before = [(log, log.level, log.propagate, log.handlers[:]) for log in map(getLogger, names)]
    yield
    for log, level, propagate, handlers in before:
        log.setLevel(level)
        log.propagate, log.handlers[:] = propagate, handlers


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """The model that `run` and `chat` open; `opened` remembers (name, options)."""
    fake = FakeLLM()
    opened: list[Any] = []

    def open_llm(name: str, options: Any) -> FakeLLM:
        opened.append((name, options))
        return fake

    monkeypatch.setattr(loading, "open_llm", open_llm)
    fake.opened = opened  # type: ignore[attr-defined]
    return fake


@pytest.fixture
def invoke() -> Callable[..., click.testing.Result]:
    """Runs a command line; `input=None` is an empty stdin that is no terminal."""

    def run(*args: str, input: str | None = None) -> click.testing.Result:
        return click.testing.CliRunner().invoke(cli, args, input=input, prog_name="llamba")

    return run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A store with one model of 3 MB."""
    import llamba.models
    from llamba.errors import ModelNotFoundError

    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(3_000_000))
    model = SimpleNamespace(name="smollm2", path=path, num_bytes=3_000_000, source="catalogue")
    fake = SimpleNamespace(removed=[], models=[model])

    def pull(name: str, progress: Any = None) -> Path:
        if name not in NAMES:
            raise ModelNotFoundError(f"no model {name!r}")
        for done in (0, 1_000_000, 3_000_000):
            progress("download", done, 3_000_000)
        return path

    fake.pull = pull
    fake.list_models = lambda: fake.models
    fake.remove = lambda name: fake.removed.append(name) or 3_000_000
    fake.cache_dir = lambda: tmp_path
    monkeypatch.setitem(sys.modules, "llamba.models.store", fake)  # type: ignore[misc]
    monkeypatch.setattr(llamba.models, "store", fake, raising=False)
    return fake
