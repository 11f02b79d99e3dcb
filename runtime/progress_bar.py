"""A bar on stderr for many prompts at once."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import InvalidParameterError


@contextmanager
def progress_bar(total: int, wanted: bool | None) -> Iterator[Callable[[], None] | None]:
    """A function that counts one up, from any thread; None where no bar is shown.

    `wanted` None: if stderr is a terminal and there is more than one to count.
    """
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidParameterError(f"progress_bar={wanted!r}: must be True, False or None")
    show = sys.stderr.isatty() and total > 1 if wanted is None else wanted
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as progress:
        task = progress.add_task("prompts", total=total)
        yield lambda: progress.advance(task)
