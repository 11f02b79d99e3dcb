"""SIGTERM and SIGHUP in the middle of writing: nothing is left, and the shell is told why."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
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

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

# `llamba quantize`, which waits for a signal when some of the tensors are written.
WAITS = """
import signal, sys
from llamba.cli import progress
from llamba.models.output_file import OutputFile

progress.SHORT_S = 0.0
plain, calls = OutputFile.write, []

def write(file, data):
    plain(file, data)
    calls.append(len(data))
    if len(calls) == 4:
        print("begun", flush=True)
        while True:
            signal.pause()

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
    both = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(each, signal.SIG_DFL) for each in both]
    yield
    for each, handler in zip(both, before, strict=True):
        signal.signal(each, handler)


def code_for(source: Path) -> str:
    return WAITS.replace("ARGS", repr([str(source), str(source.with_name("o.gguf")), "COPY"]))


def end(source: Path, *kinds: signal.Signals, ignored: bool = False) -> tuple[int, str]:
    """The exit code and what was said at last when these signals come."""
    action = signal.SIG_IGN if ignored else signal.SIG_DFL
    with subprocess.Popen(
        [sys.executable, "-c", code_for(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, action),
        text=True,
    ) as run:
        assert run.stdout is not None and run.stdout.readline() == "begun\n"
        assert len(list(source.parent.iterdir())) == 2
        for kind in kinds:
            run.send_signal(kind)
        _, errors = run.communicate(timeout=60)
    assert "Traceback" not in errors and "Exception" not in errors
    return run.returncode, errors.splitlines()[-1]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left(source: Path, kind: signal.Signals) -> None:
    before = source.read_bytes()
    assert end(source, kind) == (128 + kind, f"stopped by {kind.name}")
    assert list(source.parent.iterdir()) == [source]
    assert source.read_bytes() == before


def test_nohup(source: Path) -> None:
    """Of two signals that have come, Python sees SIGHUP first."""
    kinds = signal.SIGHUP, signal.SIGTERM
    assert end(source, *kinds, ignored=True) == (143, "stopped by SIGTERM")
    assert list(source.parent.iterdir()) == [source]


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


def test_the_next_does_not_disturb_the_end(
    default_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But later it counts again: where the first one came, exceptions may have been swallowed."""
    now = [100.0]
    monkeypatch.setattr("llamba.cli.signals.time.monotonic", lambda: now[0])
    with ended_in_order():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        with pytest.raises(Ended) as found:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        now[0] += 60
        with pytest.raises(Ended):
            signal.raise_signal(signal.SIGHUP)
    assert (found.value.name, found.value.exit_code) == ("SIGTERM", 143)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
