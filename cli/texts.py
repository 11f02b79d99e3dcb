"""What `embed` and `rerank` share: where their texts come from, how the model is opened."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import RequestError
from . import loading
from .lora import lora_from, lora_option
from .machine_options import machine_from, machine_options
from .options import EngineOptions
from .prompt import clean

if TYPE_CHECKING:
    from ..runtime.llm import LLM

_F = TypeVar("_F", bound=Callable[..., Any])


def text_options(command: _F) -> _F:
    """Adds the options of both commands; `open_llm` and `read_texts` take them out again."""
    for option in reversed(
        (
            click.option(
                "-f",
                "--file",
                "files",
                multiple=True,
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Texts from a file, one a line (empty ones are none); repeatable.",
            ),
            click.option("--truncate", is_flag=True, help="Cut texts that are too long."),
            click.option("-t", "--threads", type=int, help="[the physical cores we may use]"),
            click.option(
                "-c",
                "--ctx-size",
                "--context-length",
                type=int,
                help="Tokens of the longest text [the model's, up to 8192].",
            ),
            click.option(
                "--activations",
                type=click.Choice(["int8", "float32"]),
                help="float32 is exact and slow [int8]",
            ),
            lora_option,
        )
    ):
        command = option(command)
    return machine_options(command)


def open_llm(model: str, options: dict[str, Any]) -> "LLM":
    """The model, as the options say."""
    return loading.open_llm(
        model,
        EngineOptions(
            num_threads=options.pop("threads"),
            context_length=options.pop("ctx_size"),
            activations=options.pop("activations"),
            lora=lora_from(options.pop("lora")),
            **machine_from(options),
        ),
        max_sequences=None,
    )


def read_texts(words: Sequence[str], files: Sequence[Path], what: str) -> list[str]:
    """The texts: arguments, the files' lines, stdin's lines (without others, or with -).

    Empty lines are none.

    RequestError: there are none, or they are not UTF-8: a vector of other text would help nobody.
    """
    texts = [clean(word) for word in words if word != "-"]
    for path in files:
        texts += _lines(path.read_bytes(), str(path))
    if "-" in words or not (words or files):
        texts += _lines(sys.stdin.buffer.read(), "stdin")
    if not texts:
        raise RequestError(f"no {what}: give them as arguments, with --file, or on stdin")
    return texts


def _lines(data: bytes, source: str) -> list[str]:
    try:
        return [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{source}: byte {error.start} is not UTF-8: convert it, for instance with "
            "iconv -f latin1 -t utf-8"
        ) from None
