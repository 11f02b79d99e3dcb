"""What takes long, shown on stderr: a bar in a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

import click

from .console import note, size


class Progress(Protocol):
    """Is told how far something is."""

    def __call__(self, event: str, done: int, total: int, more: str = "") -> None:
        """total: 0 = unknown. more: shown behind the numbers."""
        ...


TITLES = {
    "wait": "waiting for another llamba that is fetching {name}",
    "download": "fetching {name}",
    "verify": "checking {name}",
    "read": "reading {name} into memory",
    "lock": "locking {name} in memory",
    "convert": "converting to {name}",
    "upload": "bringing {name} to the GPU",
    "collect": "collecting from {name}",
    "quantize": "quantizing {name}",
    "split": "splitting {name}",
    "merge": "merging {name}",
    "compare": "comparing {name}",
    "compile": "compiling kernels for this CPU, once",
    "compile_gpu": "compiling kernels for this GPU, once",
    "compile_for": "compiling kernels for {name}",
}
KERNELS = ("compile", "compile_gpu", "compile_for")
COUNTED = (*KERNELS, "upload", "collect")  # the others are in bytes
TIMED = ("collect",)  # whose lines say when they will be done, as bars do
SHORT_S = 0.5  # work that is done sooner is not worth a line or a bar, nor rich's import
_EVERY_S = 10.0  # between lines where stderr is no terminal


@contextmanager
def progress(name: str, *, bars: bool = True) -> Iterator[Progress]:
    """Shows the events of the store ("wait", "download", "verify": bytes) and of the kernels

    ("compile": a count) once they take longer than SHORT_S; `name` is the model's. bars=False:
    lines in a terminal, too.
    """
    shown = _Bars(name) if bars and sys.stderr.isatty() else _Lines(name)
    started: dict[str, float] = {}
    compiled: tuple[int, int] | None = None

    def update(event: str, done: int, total: int, more: str = "") -> None:
        nonlocal compiled
        if event in KERNELS:
            compiled = done, total
        now = time.monotonic()
        if now - started.setdefault(event, now) >= SHORT_S or event in ("wait", *KERNELS):
            shown.update(event, done, total, more)

    try:
        yield update
    except KeyboardInterrupt:
        shown.close()
        if compiled and compiled[0] < compiled[1]:
            click.echo(err=True)  # closes the line of the terminal's ^C
            note("stopped: {} of {} kernels are compiled and kept".format(*compiled))
        raise
    finally:
        shown.close()


def _amount(event: str) -> Callable[[float], str]:
    return str if event in COUNTED else size


def duration(seconds: float) -> str:
    """For people.

    >>> duration(41.2), duration(754), duration(9000)
    ('0:41', '12:34', '2:30:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _left(seconds: float, done: int, total: int) -> str:
    """More of a line: the time that is left, `done` having taken so long.

    >>> _left(30, 1, 3), _left(30, 3, 3)
    (', 1:00 left', '')
    """
    left = seconds * (total - done) / done
    return f", {duration(left)} left" if left > 0 else ""


class _Lines:
    """A line when it starts, one every ten seconds, one when it is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_at: dict[str, float] = {}
        self.finished: set[str] = set()
        self.started: dict[str, float] = {}

    def update(self, event: str, done: int, total: int, more: str = "") -> None:
        """The store calls often; most calls say nothing."""
        now = time.monotonic()
        started = self.started.setdefault(event, now)
        last = bool(total) and done >= total
        if event in self.finished or (now < self.next_at.get(event, 0.0) and not last):
            return
        self.next_at[event] = now + _EVERY_S
        text = TITLES.get(event, event).format(name=self.name)
        show = _amount(event)
        if done and total:
            text += f": {show(done)} of {show(total)}{more}"
            if event in TIMED:
                text += _left(now - started, done, total)
        elif total:
            text += f" ({show(total)})"
        note(text + (", done" if last else ""))
        if last:
            self.finished.add(event)

    def close(self) -> None:
        """Lines stay."""


class _Bars:
    """One bar of rich an event, gone when all is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}

    def update(self, event: str, done: int, total: int, more: str = "") -> None:
        """The first call of an event makes its bar."""
        if self.bars is None:
            self.bars = self._start()
        show = _amount(event)
        text = f"{show(done)} of {show(total)}{more}" if total else ""
        if event not in self.tasks:
            title = TITLES.get(event, event).format(name=self.name)
            self.tasks[event] = self.bars.add_task(title, amount=text)
        self.bars.update(self.tasks[event], completed=done, total=total or None, amount=text)

    @staticmethod
    def _start() -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bars.start()
        return bars

    def close(self) -> None:
        """The bars leave no trace; what follows starts where they were."""
        if self.bars is not None:
            self.bars.stop()
            self.bars = None


class ChunkProgress:
    """Parts of a text that are done, with a figure that is known better with each.

    In a terminal one line that changes; elsewhere a line every ten seconds. A context manager.
    """

    def __init__(self, what: str = "chunk") -> None:
        self._what = what
        self._started = time.monotonic()
        self._next = _EVERY_S
        self._live = sys.stderr.isatty()
        self._shown = False

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._started

    def update(self, done: int, total: int, figure: str = "") -> None:
        """So many of all are done; `figure` is what is known so far."""
        seconds = self.seconds
        text = f"{self._what} {done}/{total}" + (f": {figure}" if figure else "")
        text += _left(seconds, done, total)
        if self._live:
            click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
            self._shown = True
        elif seconds >= self._next:
            note(text)
            self._next = seconds + _EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The changing line goes."""
        if self._shown:
            click.echo("\r\x1b[2K", err=True, nl=False)
