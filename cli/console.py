"""What goes where: answers and reports to stdout, everything else to stderr."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

Progress = Callable[[int, int], None]  # (done, total); total 0 = unknown


def has_color() -> bool:
    """Whether stderr wants colours: a terminal, and NO_COLOR is not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def _say(text: str, **style: Any) -> None:
    click.echo(click.style(text, **style) if has_color() else text, err=True)


def note(text: str) -> None:
    """A remark on stderr."""
    _say(text, dim=True)


def warn(text: str) -> None:
    """A warning on stderr."""
    _say(f"warning: {text}", fg="yellow")


def fail(text: str) -> None:
    """An error on stderr, always one line."""
    _say("error: " + " ".join(text.split("\n")), fg="red")


def show_warnings() -> None:
    """Warnings of the library's log and of Python go to stderr as one line each."""
    import logging
    import warnings

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warn(record.getMessage())

    logger = logging.getLogger(__name__.split(".")[0])
    if not logger.handlers:
        logger.addHandler(Handler())
        logger.propagate = False
    warnings.showwarning = lambda message, *_: warn(" ".join(str(message).split()))


def print_json(value: Any) -> None:
    """One JSON value on stdout; what JSON does not know is shown as text."""
    click.echo(json.dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    """NumPy's scalars and arrays, paths and bytes as JSON's own kinds."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Columns on stdout, aligned; `right` holds an `r` for every column set to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = (
            cell.rjust(width) if right[i : i + 1] == "r" else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        click.echo("  ".join(cells).rstrip())


def size(num_bytes: float) -> str:
    """Bytes for people: 97.9 MB (decimal, as file managers and model hubs count)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


@contextmanager
def progress(title: str, *, in_bytes: bool = False) -> Iterator[Progress]:
    """A progress bar on stderr that appears with its first call; plain lines when not a terminal.

    A bar of rich costs 0.1 s to import: it is paid only when there is something to wait for.
    """
    bar = _Bar(title, in_bytes) if sys.stderr.isatty() else _Lines(title, in_bytes)
    try:
        yield bar.update
    finally:
        bar.close()


class _Lines:
    """Progress as lines: when it starts, every ten seconds, and when it is done."""

    def __init__(self, title: str, in_bytes: bool) -> None:
        self.title = title
        self.show = size if in_bytes else str
        self.next_at = 0.0
        self.finished = False

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        last = bool(total) and done >= total
        if self.finished or (now < self.next_at and not last):
            return
        amount = f"{self.show(done)} of {self.show(total)}" if total else self.show(done)
        note(f"{self.title}: {amount}" + (", done" if last else ""))
        self.next_at = now + 10
        self.finished = last

    def close(self) -> None:
        pass


class _Bar:
    """Progress as a bar of rich."""

    def __init__(self, title: str, in_bytes: bool) -> None:
        self.title = title
        self.in_bytes = in_bytes
        self.bar: Any = None
        self.task: Any = None

    def update(self, done: int, total: int) -> None:
        if self.bar is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
            columns += [DownloadColumn()] if self.in_bytes else [MofNCompleteColumn()]
            columns += [TransferSpeedColumn()] if self.in_bytes else []
            self.bar = Progress(
                *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
            )
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=total or None)
        self.bar.update(self.task, completed=done, total=total or None)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
