"""From the name that a user types to a model that is ready."""

from pathlib import Path
from typing import TYPE_CHECKING

from .console import show_warnings
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


def open_llm(name: str, options: EngineOptions) -> "LLM":
    """The model, ready to generate; shows what takes long on stderr."""
    show_warnings()
    from ..runtime.llm import LLM

    with progress(name) as update:
        return LLM(name, progress=update, **options.given())


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
