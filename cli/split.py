"""`llamba split`: a model's file into shards."""

import re
from pathlib import Path
from typing import Any

import click

from . import loading
from .console import file_row, print_json, print_table, size
from .progress import progress


class ShardSize(click.ParamType):
    """`2G`, `500M`: powers of 1000, as llama-gguf-split has them."""

    name = "N(M|G)"
    _units = {"M": 10**6, "G": 10**9}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes, at least 1."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,9})([MG])", value.strip().upper())
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a size such as 2G or 500M", param, ctx)
        return int(match[1]) * self._units[match[2]]


@click.command("split")
@click.argument("model", metavar="IN")
@click.argument("prefix", metavar="PREFIX", type=click.Path(path_type=Path))
@click.option(
    "--split-max-size", type=ShardSize(), help="Most bytes of tensors in a shard: 500M, 2G."
)
@click.option(
    "--split-max-tensors", type=click.IntRange(1, 1 << 20), help="Most tensors in a shard [128]."
)
@click.option("--no-tensor-first-split", is_flag=True, help="Metadata alone in the first shard.")
@click.option("--dry-run", is_flag=True, help="Show the shards, write nothing.")
@click.option("--force", is_flag=True, help="Replace shards that exist.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    model: str,
    prefix: Path,
    split_max_size: int | None,
    split_max_tensors: int | None,
    no_tensor_first_split: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Divide a model's file into PREFIX-00001-of-0000N.gguf and so on.

    All shards appear together or none does; any of them is the whole model for every command.

    \b
      llamba split model.gguf part --split-max-size 2G
    """
    if split_max_size and split_max_tensors:
        raise click.UsageError("--split-max-size and --split-max-tensors: give one of them")
    with loading.open_file(model) as gguf:
        from ..models.gguf_split import Limits, plan_shards, shard_contents, split_file
        from ..models.gguf_writer import file_size
        from ..models.shard_set import shard_names

        limits = Limits(split_max_size or 0, split_max_tensors or 128, no_tensor_first_split)
        shards = plan_shards(list(gguf.tensors.values()), limits)
        names, contents = shard_names(prefix, len(shards)), shard_contents(gguf, shards)
        rows: list[dict[str, Any]] = [
            file_row(path, file_size(*content), None) | {"num_tensors": len(content.tensors)}
            for path, content in zip(names, contents, strict=True)
        ]
        if not dry_run:
            with progress(gguf.path.name) as update:
                written = split_file(gguf, prefix, limits, overwrite=force, progress=update)
            for row, file in zip(rows, written, strict=True):
                row |= {"num_bytes": file.num_bytes, "sha256": file.sha256}
    if as_json:
        print_json({"files": rows})
        return
    print_table(
        ("SHARD", "TENSORS", "SIZE", "SHA256"),
        [
            (row["path"], str(row["num_tensors"]), size(row["num_bytes"]), row["sha256"] or "-")
            for row in rows
        ],
        right=" rr",
    )
