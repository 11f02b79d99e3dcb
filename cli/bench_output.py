"""The forms in which `llamba bench` writes its rows: llama-bench's md, json, jsonl and csv."""

import csv
import sys
from typing import Any, Protocol

import click

from .console import print_json


class Writer(Protocol):
    """Takes the rows one by one."""

    def write(self, row: dict[str, Any], name: str) -> None:
        """One more row; `name` is the test's."""

    def close(self) -> None:
        """That was the last."""


class Markdown:
    """llama-bench's table, a row as soon as it is measured."""

    columns = ("model", "size", "params", "threads", "test", "t/s")
    widths = (30, 10, 10, 7, 15, 20)
    on_gpus = ("backend", "ngl"), (10, 3)  # columns before "threads"

    def __init__(self) -> None:
        self.begun = self.has_gpus = False

    def write(self, row: dict[str, Any], name: str) -> None:
        """One more row."""
        if not self.begun:
            self.has_gpus = row["n_gpu_layers"] > 0
            if self.has_gpus:
                more, wide = self.on_gpus
                self.columns = (*self.columns[:3], *more, *self.columns[3:])
                self.widths = (*self.widths[:3], *wide, *self.widths[3:])
            self._line(self.columns)
            rules = ("-" * (width - 1) + ("-:"[i > 0]) for i, width in enumerate(self.widths))
            click.echo("| " + " | ".join(rules) + " |")
            self.begun = True
        params = row["model_n_params"]
        mib = row["model_size"] / 2**20
        where = (row["backends"], str(row["n_gpu_layers"])) if self.has_gpus else ()
        self._line(
            (
                row["model_type"],
                f"{mib / 1024:.2f} GiB" if mib >= 1024 else f"{mib:.2f} MiB",
                f"{params / 1e9:.2f} B" if params >= 1e9 else f"{params / 1e6:.2f} M",
                *where,
                str(row["n_threads"]),
                name,
                f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
            )
        )

    def _line(self, cells: tuple[str, ...]) -> None:
        shown = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, self.widths, strict=True))
        )
        click.echo("| " + " | ".join(shown) + " |")
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is left to write."""


class Json:
    """One list at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any], name: str) -> None:
        """One more row."""
        self.rows.append(row)

    def close(self) -> None:
        """Writes them."""
        print_json(self.rows)


class JsonLines:
    """One object a line, as soon as it is measured."""

    def write(self, row: dict[str, Any], name: str) -> None:
        """One more row."""
        print_json(row)
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is left to write."""


class Csv:
    """Comma separated, with a head; the samples are left out as in llama-bench."""

    def __init__(self) -> None:
        self.writer: Any = None

    def write(self, row: dict[str, Any], name: str) -> None:
        """One more row."""
        row = {key: value for key, value in row.items() if not isinstance(value, list)}
        if self.writer is None:
            self.writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            self.writer.writeheader()
        self.writer.writerow(row)
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is left to write."""


WRITERS: "dict[str, type[Writer]]" = {
    "md": Markdown,
    "json": Json,
    "jsonl": JsonLines,
    "csv": Csv,
}
