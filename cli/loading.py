"""From the name that a user types to a model that is ready."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidParameterError
from .console import note, show_warnings
from .options import EngineOptions
from .progress import progress

if TYPE_CHECKING:
    from ..models.gguf import GGUFFile
    from ..models.tokenizer import Tokenizer
    from ..runtime.llm import LLM


def find(name: str) -> Path:
    """The model's file; fetched, with progress, when it is not there yet.

    Raises ModelNotFoundError, DownloadError.
    """
    from ..models import store

    show_warnings()
    with progress(name) as update:
        return store.resolve(name, progress=update)


def open_llm(name: str, options: EngineOptions, *, max_sequences: int | None = 1) -> "LLM":
    """The model, ready to generate; shows what takes long on stderr.

    max_sequences: one conversation by default: no kernels for many are compiled on the first start.
    """
    show_warnings()
    with progress(name) as update, _uncollected():
        from ..runtime.llm import LLM

        return LLM(name, progress=update, max_sequences=max_sequences, **options.given())


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is looked for: half a million objects come to stay (30 ms of a start)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()  # nor is it looked for among these, from now on
    finally:
        if enabled:
            gc.enable()


def check_prompt_cache(file: Path | None, options: EngineOptions) -> None:
    """Raise what is wrong with --prompt-cache FILE, as far as that is known without the model."""
    if file is None:
        return
    if options.prefix_cache is False:
        raise InvalidParameterError("--prompt-cache and --no-prefix-cache: give one of them")
    from ..runtime.prefix_file import check_target

    check_target(file)


@contextmanager
def prompt_cache(llm: "LLM", file: Path | None) -> Iterator[None]:
    """Starts with the prefixes saved in `file`, if it exists, and saves them there at the end.

    An error in between leaves the file as it was; SystemExit is an end like any other.
    """
    if file is None:
        yield
        return
    if file.exists() and file.stat().st_size:  # mktemp makes an empty one
        found = llm.load_prefix_cache(file)
        if found.num_pages < found.num_saved:
            note(
                f"{file}: {found.num_pages} of {found.num_saved} pages restored, more do not fit; "
                "--kv-tokens makes room"
            )
    try:
        yield
    except SystemExit:
        llm.save_prefix_cache(file)
        raise
    llm.save_prefix_cache(file)


def has_broken_template(llm: "LLM") -> bool:
    """Whether the file has a chat template that can't be used: `chat` says why (PAINS P29)."""
    return llm.chat_template is None and "tokenizer.chat_template" in llm.weights.gguf.metadata


def open_file(name: str) -> "GGUFFile":
    """The model's container."""
    path = find(name)
    from ..models.gguf import GGUFFile

    return GGUFFile.open(path)


def open_tokenizer(name: str) -> "Tokenizer":
    """The model's tokenizer; vocabulary-only files will do."""
    path = find(name)
    from ..models.tokenizer import Tokenizer

    return Tokenizer.from_file(path)
