"""SIGTERM and SIGHUP in the middle of writing: nothing is left, and the shell is told why."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.cli.main import WRITING, cli
from llamba.cli.signals import Ended, ended_in_order
from llamba.models.gguf_pairs import pair
from llamba.models.gguf_writer import GGUFWriter, NewTensor

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(Path(__file__).parent))
    Terminal = importlib.import_module("terminal").Terminal

if os.name == "nt":
    pytest.skip("signals of POSIX", allow_module_level=True)

DEFAULT = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
# `llamba quantize`, which waits for a signal when some of the tensors are written.
WAITS = """
import sys, time
from llamba.cli import progress
from llamba.models.output_file import OutputFile

progress.SHORT_S = 0.0
plain, calls = OutputFile.write, []

def write(file, data):
    plain(file, data)
    calls.append(len(data))
    if len(calls) == 4:
        try:
            print("begun", flush=True)
            while True:  # not pause(), which would miss a signal that comes just before it
                time.sleep(0.02)
        finally:
            ENDING

OutputFile.write = write
from llamba.cli.main import main
sys.argv = ["llamba", "quantize", *ARGS]
main()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path, rows = tmp_path / "m.gguf", 2048
    new = [NewTensor(f"blk.{n}.attn_q.weight", 0, (rows, 256)) for n in range(4)]
    with GGUFWriter(path, [pair("general.architecture", "str", "llama")], new) as writer:
        for _ in new:
            writer.write(np.ones((rows, 256), np.float32))
    return path


@pytest.fixture
def default_signals() -> Iterator[None]:
    """As a command finds them; whoever runs the tests may have ignored some."""
    before = [signal.signal(each, signal.SIG_DFL) for each in DEFAULT]
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in zip((*DEFAULT, signal.SIGINT), (*before, interrupt), strict=True):
        signal.signal(each, handler)


def code_for(source: Path, ending: str = "pass") -> str:
    """ending: a statement to be run when the exception has come."""
    arguments = repr([str(source), str(source.with_name("o.gguf")), "COPY"])
    return WAITS.replace("ARGS", arguments).replace("ENDING", ending)


@pytest.mark.parametrize(
    ("sighup", "code", "name"),
    [(signal.SIG_DFL, 129, "SIGHUP"), (signal.SIG_IGN, 143, "SIGTERM")],
    ids=["", "nohup"],
)
def test_nothing_is_left(source: Path, sighup: signal.Handlers, code: int, name: str) -> None:
    """Of two signals, the first is said, if it isn't ignored."""
    before = source.read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", code_for(source, 'print("ending", flush=True); sys.stdin.read()')],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, sighup),
        text=True,
    ) as run:
        assert run.stdout is not None and run.stdout.readline() == "begun\n"
        assert len(list(source.parent.iterdir())) == 2
        run.send_signal(signal.SIGHUP)
        if sighup == signal.SIG_DFL:  # of two that are pending, either may be handled first
            assert run.stdout.readline() == "ending\n"
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate(timeout=60)
    assert "Traceback" not in errors and "Exception" not in errors
    assert (run.returncode, errors.splitlines()[-1]) == (code, f"stopped by {name}")
    assert list(source.parent.iterdir()) == [source]
    assert source.read_bytes() == before


def test_the_terminal_is_closed(source: Path) -> None:
    """There is no stderr any more for the bar to be taken away from."""
    with Terminal(code_for(source)) as terminal:
        terminal.expect("quantizing o.gguf")
        terminal.expect("begun")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, terminal.fd)  # closes it
        os.close(nothing)
        assert terminal.process.wait(60) == 129
    assert list(source.parent.iterdir()) == [source]


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_the_next_does_not_disturb_the_end(default_signals: None, first: signal.Signals) -> None:
    steps: list[str] = []
    # In this order: once pytest has taken the exception, the alarm that is set raises another.
    with pytest.raises(KeyboardInterrupt) as found, ended_in_order():
        assert signal.SIG_DFL not in map(signal.getsignal, DEFAULT)
        try:
            signal.raise_signal(first)
        finally:
            for kind in DEFAULT:
                signal.raise_signal(kind)
            steps += in_a_generator()
    assert steps == ["removed"]
    if first == signal.SIGTERM:
        assert isinstance(found.value, Ended)
        assert (found.value.name, found.value.exit_code) == ("SIGTERM", 143)
    assert {*map(signal.getsignal, DEFAULT)} == {signal.SIG_DFL}
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def in_a_generator() -> list[str]:
    """Closing one is how the threads of quantize are ended."""
    done: list[str] = []

    def work() -> Generator[int]:
        try:
            yield 1
        finally:
            signal.raise_signal(signal.SIGHUP)
            done.append("removed")

    with closing(work()) as numbers:
        next(numbers)
    return done


def test_what_is_swallowed_comes_again(default_signals: None) -> None:
    with pytest.raises(Ended) as found, ended_in_order():
        with suppress(Ended):  # a library that hides all errors
            signal.raise_signal(signal.SIGHUP)
        while True:
            signal.pause()
    assert found.value.name == "SIGHUP"


def test_handlers_of_others_stay(default_signals: None) -> None:
    def own(*_: object) -> None:
        """Of a program that calls the command."""

    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_in_order():
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(("name", "num_arguments"), [("merge", 2), ("serve", 1), ("chat", 1)])
def test_who_has_it(
    name: str,
    num_arguments: int,
    invoke: Callable[..., Any],
    default_signals: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers and chats handle signals in their own way."""
    seen: list[Any] = []
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    monkeypatch.setattr(command, "invoke", lambda *_: seen.append(signal.getsignal(signal.SIGTERM)))
    invoke(name, *["x"] * num_arguments)
    assert len(seen) == 1 and (seen[0] is signal.SIG_DFL) == (name not in WRITING)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
