"""`llamba list`: the models in the cache."""

import click

from .console import note, print_json, print_table, size


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """Show the models in the cache."""
    from ..models import store
    from ..models.catalogue import CATALOGUE

    models = store.list_models()
    if as_json:
        print_json(
            [
                {
                    "name": model.name,
                    "path": str(model.path),
                    "num_bytes": model.num_bytes,
                    "source": model.source,
                }
                for model in models
            ]
        )
        return
    if models:
        rows = [(m.name, size(m.num_bytes), str(m.source), str(m.path)) for m in models]
        print_table(("NAME", "SIZE", "SOURCE", "PATH"), rows, right=" r")
    else:
        note(f"no models in {store.cache_dir()} yet")
    absent = [name for name in CATALOGUE if name not in {model.name for model in models}]
    if absent:
        note(f"to be had with `llamba pull`: {', '.join(absent)}")
