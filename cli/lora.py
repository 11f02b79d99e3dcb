"""The option --lora: adapters and their scales, for one model or for several."""

import math
from collections.abc import Iterable
from pathlib import Path

import click

from ..errors import InvalidParameterError

lora_option = click.option(
    "--lora",
    "lora",
    multiple=True,
    metavar="FILE[:SCALE]",
    help="Change the model by a LoRA adapter (a GGUF file), the weights as they are; repeatable.",
)


def parse_lora(text: str) -> tuple[str, float]:
    """A file and its scale, 1 by default.

    >>> parse_lora("sql.gguf:0.5"), parse_lora("C:/sql.gguf")
    (('sql.gguf', 0.5), ('C:/sql.gguf', 1.0))
    """
    file, colon, number = text.rpartition(":")
    if not colon or not file or Path(text).exists() or (len(file) == 1 and file.isalpha()):
        return text, 1.0
    try:
        scale = float(number)
    except ValueError:
        if "/" in number or "\\" in number or number.endswith(".gguf"):  # a drive, or part of it
            return text, 1.0
        raise InvalidParameterError(
            f"--lora {text!r}: {number!r} is no scale; write FILE or FILE:SCALE, such as "
            "sql.gguf:0.5"
        ) from None
    if not math.isfinite(scale):
        raise InvalidParameterError(f"--lora {text!r}: the scale must be a finite number")
    return file, scale


def lora_from(texts: Iterable[str]) -> list[tuple[str, float]] | None:
    """LLM's argument; None if there are no adapters."""
    return [parse_lora(text) for text in texts] or None


def lora_of_models(
    texts: Iterable[str], names: Iterable[str]
) -> dict[str, tuple[tuple[str, float], ...]]:
    """The adapters of each of a server's models, from [MODEL=]FILE[:SCALE]."""
    known, found = list(names), {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or name not in known:
            if len(known) != 1:
                raise InvalidParameterError(
                    f"--lora {text!r}: say whose it is: MODEL=FILE, where MODEL is "
                    + (f"one of {', '.join(known)}" if known else "named on the command line")
                )
            name, rest = known[0], text
        file, scale = parse_lora(rest)
        found[name] = (*found.get(name, ()), (str(Path(file).expanduser().absolute()), scale))
    return found
