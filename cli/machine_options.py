"""The options about what a model may take of the machine: a GPU, memory, the CPU's time."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import InvalidParameterError
from ..runtime.gpus import DEVICES, gpu_number
from .units import SIZE

_F = TypeVar("_F", bound=Callable[..., Any])


_LIMIT = click.option(
    "--memory-limit",
    type=SIZE,
    help="Most to take in all, models included, such as 2G [what is free].",
)


class DeviceName(click.ParamType):
    """`auto`, `cpu`, `cuda`, `cuda:1`."""

    name = "DEVICE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same, if it names a device."""
        try:
            gpu_number(value)
        except InvalidParameterError:
            self.fail(f"{value!r} must be {DEVICES}", param, ctx)
        return value


class Layers(click.ParamType):
    """`auto`, `all`, or a number of layers."""

    name = "N|auto|all"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """A number >= 0, or the word."""
        if isinstance(value, int) or value in ("auto", "all"):
            return value
        # int() refuses thousands of digits, and takes other scripts'.
        if not (value.isascii() and value.isdecimal() and len(value) < 20):
            self.fail(f"{value!r} must be auto, all, or a number of layers", param, ctx)
        return int(value)


_DEVICE = click.option(
    "--device",
    type=DeviceName(),
    help="cpu, cuda, or cuda:1 for one of several GPUs; auto takes a GPU that holds at least half "
    "of the layers [auto].",
)
_GPU_LAYERS = click.option(
    "-ngl",
    "--gpu-layers",
    "--n-gpu-layers",
    "gpu_layers",
    type=Layers(),
    help="The GPU runs the last N layers and the output, the CPU the others [as many as fit].",
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
            _DEVICE,
            _GPU_LAYERS,
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
            _DEVICE,
            _GPU_LAYERS,
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
        **device_from(options),
    }


def device_from(options: dict[str, Any]) -> dict[str, Any]:
    """Takes out where it runs."""
    return {"device": options.pop("device"), "gpu_layers": options.pop("gpu_layers")}


def machine_from(options: dict[str, Any]) -> dict[str, Any]:
    """Takes them out, as fields of EngineOptions."""
    return {
        "memory_limit": options.pop("memory_limit"),
        "mmap": False if options.pop("no_mmap") else None,
        "mlock": options.pop("mlock"),
        "nice": options.pop("nice"),
        "background": options.pop("background"),
        **device_from(options),
    }
