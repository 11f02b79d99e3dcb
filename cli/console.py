"""What goes where: answers and reports to stdout, everything else to stderr."""

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from ..runtime.config import EngineConfig


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
    _say("error: " + printable(" ".join(text.split("\n"))), fg="red")


def printable(text: str) -> str:
    r"""Control characters as escapes: a file's texts must not move the cursor or colour the line.

    >>> printable("red: \x1b[31m")
    'red: \\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\ufffd" else repr(c)[1:-1] for c in text)


def file_row(path: "Path", num_bytes: int, sha256: str | None) -> dict[str, Any]:
    """A written file in `files` of --json; of one that a dry run would write, sha256 is None."""
    return {"path": str(path), "num_bytes": num_bytes, "sha256": sha256}


def show_warnings(*, details: bool = False) -> None:
    """Warnings of the library's log and of Python go to stderr as one line each.

    details, or a person who watches: what a model is going to take, too.
    """
    import logging
    import warnings

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say = note if record.levelno < logging.WARNING else warn
            say(record.getMessage())

    root = __name__.split(".")[0]
    logger = logging.getLogger(root)
    if not logger.handlers:
        logger.addHandler(Handler())
        logger.propagate = False
    if details or sys.stderr.isatty():
        for module in ("load", "placing"):
            logging.getLogger(f"{root}.runtime.{module}").setLevel(logging.INFO)
    warnings.showwarning = lambda message, *_: warn(" ".join(str(message).split()))


def describe_sizes(config: "EngineConfig") -> str:
    """The context that a model was loaded with.

    >>> from llamba.runtime.config import EngineConfig
    >>> describe_sizes(EngineConfig(context_length=4096, num_threads=2, kv_tokens=8192))
    'context 4096 tokens'
    >>> describe_sizes(EngineConfig(context_length=4096, num_threads=2, kv_tokens=1000))
    'context 1024 tokens (of 4096, as the KV cache is smaller)'
    """
    longest, wanted = config.max_sequence_length, config.context_length
    less = f" (of {wanted}, as the KV cache is smaller)" if longest < wanted else ""
    return f"context {longest} tokens{less}"


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
