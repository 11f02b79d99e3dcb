"""Chunks of a text that are done, the running figure and the time left, on stderr."""

import sys
import time

import click

from .console import note
from .progress import duration

_EVERY_S = 10.0  # between lines where stderr is no terminal


class ChunkProgress:
    """In a terminal one line that changes; elsewhere a line every ten seconds and at the end."""

    def __init__(self, what: str = "chunk") -> None:
        self._what = what
        self._started = time.monotonic()
        self._next = self._started + _EVERY_S
        self._live = sys.stderr.isatty()
        self._shown = False

    def update(self, done: int, total: int, figure: str = "") -> None:
        """So many of all are done; `figure` is what is known so far."""
        now = time.monotonic()
        left = (now - self._started) / done * (total - done)
        text = f"{self._what} {done}/{total}" + (f": {figure}" if figure else "")
        text += f", {duration(left)} left" if done < total else ""
        if self._live:
            click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
            self._shown = True
        elif now >= self._next:
            note(text)
            self._next = now + _EVERY_S

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._started

    def __enter__(self) -> "ChunkProgress":
        """For `with ChunkProgress() as progress`."""
        return self

    def __exit__(self, *error: object) -> None:
        """The changing line goes."""
        if self._shown:
            click.echo("\r\x1b[2K", err=True, nl=False)
