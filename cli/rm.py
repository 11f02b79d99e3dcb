"""`llamba rm`: a model out of the cache."""

import click

from .console import note, print_json, size


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Delete a model from the cache. Files elsewhere are never touched."""
    from ..models import store

    rows = []
    for name in names:
        num_bytes = store.remove(name)
        rows.append({"name": name, "num_bytes": num_bytes})
        if not as_json:
            note(f"{name} is removed ({size(num_bytes)} freed)")
    if as_json:
        print_json(rows)
