"""The options about what a model may take of the machine: memory and the CPU's time."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .units import SIZE

_F = TypeVar("_F", bound=Callable[..., Any])


_LIMIT = click.option(
    "--memory-limit",
    type=SIZE,
    help="Most to take in all, models included, such as 2G [what is free].",
)
_LOCK = click.option(
    "--mlock",
    is_flag=True,
    default=None,
    help="Lock the weights in memory, so that the system never drops them.",
)


def machine_options(command: _F) -> _F:
    """Adds the options; `machine_from` takes them out again."""
    for option in reversed(
        (
            _LIMIT,
            click.option(
                "--no-mmap",
                is_flag=True,
                default=None,
                help="Read the weights into memory of the process instead of mapping the file.",
            ),
            _LOCK,
            click.option(
                "--nice",
                type=int,
                metavar="N",
                help="Add N to the priority number of the threads; 19 is the most polite [0].",
            ),
            click.option(
                "--background",
                is_flag=True,
                default=None,
                help="Leave the machine to others: half of the threads, at --nice 19.",
            ),
        )
    ):
        command = option(command)
    return command


def memory_options(command: _F) -> _F:
    """Adds those of `bench`, with llama-bench's name; `memory_from` takes them out again."""
    for option in reversed(
        (
            _LIMIT,
            click.option(
                "-mmp",
                "--mmap",
                type=click.Choice(["0", "1"]),
                help="0 reads the weights into memory of the process [1].",
            ),
            _LOCK,
        )
    ):
        command = option(command)
    return command


def memory_from(options: dict[str, Any]) -> dict[str, Any]:
    """Takes them out, as fields of EngineOptions."""
    return {
        "memory_limit": options.pop("memory_limit"),
        "mmap": False if options.pop("mmap") == "0" else None,
        "mlock": options.pop("mlock"),
    }


def machine_from(options: dict[str, Any]) -> dict[str, Any]:
    """Takes them out, as fields of EngineOptions."""
    return {
        "memory_limit": options.pop("memory_limit"),
        "mmap": False if options.pop("no_mmap") else None,
        "mlock": options.pop("mlock"),
        "nice": options.pop("nice"),
        "background": options.pop("background"),
    }
