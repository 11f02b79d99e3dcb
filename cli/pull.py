"""`llamba pull`: a model into the cache."""

import click

from .console import note, print_json, size
from .progress import progress


@click.command("pull")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--json", "as_json", is_flag=True, help="One JSON list when all are there.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch a model into the cache: a catalogue name, or hf:OWNER/REPO[:QUANT]."""
    from ..models import store
    from ..models.gguf import shard_paths

    rows = []
    for name in names:
        with progress(name) as update:
            path = store.pull(name, progress=update)
        num_bytes = sum(shard.stat().st_size for shard in shard_paths(path))
        rows.append({"name": name, "path": str(path), "num_bytes": num_bytes})
        if not as_json:
            note(f"{name} is there ({size(num_bytes)})")
            click.echo(path)
    if as_json:
        print_json(rows)
