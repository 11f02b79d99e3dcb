"""`llamba merge`: the shards of a model into one file."""

from pathlib import Path

import click

from ..errors import InvalidParameterError
from . import loading
from .console import file_row, print_json, printable, size
from .progress import progress


@click.command("merge")
@click.argument("shards", metavar="SHARD...", nargs=-1)
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(shards: tuple[str, ...], out: Path, force: bool, as_json: bool) -> None:
    """Join the shards of a model into one file, as it was before the split.

    SHARD is any one of them, or several; the others are found by their names, and all stay where
    they are.

    \b
      llamba merge part-00001-of-00003.gguf model.gguf
    """
    if not shards:
        raise click.UsageError("give a SHARD, and OUT, the new file")
    with loading.open_file(shards[0]) as gguf:
        _check_shards(gguf.paths, shards, out)
        from ..models.gguf_split import merge_file

        with progress(out.name) as update:
            file = merge_file(gguf, out, overwrite=force, progress=update)
        count = len(gguf.paths)
    if as_json:
        row = file_row(out, file.num_bytes, file.sha256)
        print_json({"files": [row], "num_shards": count})
        return
    click.echo(f"{'file':8} {printable(str(out))} ({size(file.num_bytes)}, of {count} shards)")
    click.echo(f"{'sha256':8} {file.sha256}")


def _check_shards(paths: list[Path], shards: tuple[str, ...], out: Path) -> None:
    """InvalidParameterError: one isn't of the model of the first, or OUT was forgotten."""
    from ..models.output_targets import is_one_of

    if len(paths) > 1 and is_one_of(out, paths):
        raise InvalidParameterError(f"{out}: is a shard itself; name the new file, OUT, at the end")
    for shard in shards[1:]:
        if not is_one_of(Path(shard), paths):
            what = f"is none of the {len(paths)} shards" if len(paths) > 1 else "is no shard"
            raise InvalidParameterError(
                f"{shard}: {what} of {shards[0]}; give shards of one model, and OUT at the end"
            )
