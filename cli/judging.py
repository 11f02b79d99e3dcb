"""What `perplexity`, `compare` and `eval` share: their options, the text, the models opened."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import InvalidParameterError, RequestError, UnsupportedTaskError
from .console import show_warnings
from .machine_options import machine_from, machine_options
from .progress import progress

if TYPE_CHECKING:
    from ..runtime.scoring import Scorer

_F = TypeVar("_F", bound=Callable[..., Any])
_CACHE_TYPES = click.Choice(["f16", "f32", "q8_0"])
_ACTIVATIONS = click.Choice(["int8", "float32"])


@dataclass(frozen=True)
class ModelFacts:
    """What reports say of a file before it is run."""

    name: str  # as the user wrote it
    path: Path
    description: str
    num_bytes: int  # of its tensors
    num_parameters: int
    vocab_size: int
    file_bytes: int
    paths: tuple[Path, ...]  # all shards

    @property
    def bits_per_weight(self) -> float:
        """Of all tensors, norms included."""
        return 8 * self.num_bytes / self.num_parameters


def model_options(command: _F) -> _F:
    """Adds the options about how a model is run; `scorer_options` takes them out again."""
    for option in reversed(
        (
            click.option("-t", "--threads", type=int, help="[the physical cores we may use]"),
            click.option("--activations", type=_ACTIVATIONS, help="float32 is exact, slow [int8]"),
            click.option("--cache-type", type=_CACHE_TYPES, help="How KV pages are kept [f16]."),
        )
    ):
        command = option(command)
    return machine_options(command)


def chunk_options(command: _F) -> _F:
    """Adds -c and --chunks."""
    command = click.option("--chunks", type=int, help="Only the first so many; -1: all [-1].")(
        command
    )
    return click.option("-c", "--ctx-size", type=int, help="Tokens of a chunk [512].")(command)


def scorer_options(options: dict[str, Any]) -> dict[str, Any]:
    """Takes them out, as arguments of Scorer; those that were not given are left to it."""
    found = {
        "num_threads": options.pop("threads"),
        "activations": options.pop("activations"),
        "cache_type": options.pop("cache_type"),
        **machine_from(options),
    }
    return {name: value for name, value in found.items() if value is not None}


def max_chunks(chunks: int | None) -> int | None:
    """llama-perplexity's --chunks: -1 is all. InvalidParameterError: less than one."""
    if chunks is not None and chunks != -1 and chunks < 1:
        raise InvalidParameterError(f"--chunks {chunks}: must be at least 1, or -1 for all")
    return None if chunks == -1 else chunks


def open_scorer(name: str, **options: Any) -> "Scorer":
    """The model, ready to give logits; shows what takes long on stderr."""
    show_warnings()
    with progress(name) as update:
        from ..runtime.scoring import Scorer

        return Scorer(name, progress=update, **options)


def facts_of(name: str) -> ModelFacts:
    """What is known without running it; errors are those of opening a model."""
    from . import loading

    with loading.open_file(name) as gguf:
        from ..models.weights import Weights
        from .bench_about import about

        weights = Weights.open(gguf)
        numbers = weights.hyperparameters
        if not weights.architecture.causal:
            use = "rerank" if numbers.num_labels else "embed"
            raise UnsupportedTaskError(
                f"{name}: an encoder (architecture {weights.architecture.name}) predicts no next "
                "token, so it has neither a perplexity nor answers: give a model that generates "
                f"text; this one is for llamba {use}"
            )
        found = about(weights)
        return ModelFacts(
            name,
            gguf.path,
            found["model_type"],
            found["model_size"],
            found["model_n_params"],
            numbers.vocab_size,
            gguf.num_bytes,
            tuple(gguf.paths),
        )


def read_text(source: str) -> str:
    """The text of a file, or of stdin for `-`, without the line end that closes it.

    RequestError: it can't be read, is empty or not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise RequestError(f"{source}: can't be read: {error.strerror or error}") from None
    name = "stdin" if source == "-" else source
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name}: byte {error.start} is not UTF-8: convert it, for instance with "
            "iconv -f latin1 -t utf-8"
        ) from None
    text = text.removesuffix("\n")  # as llama-perplexity does
    if not text.strip():
        raise RequestError(f"{name}: no text ({len(data)} bytes)")
    return text
