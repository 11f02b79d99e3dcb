"""EngineConfig: the sizes an engine is built with, and how the context length is chosen."""

import logging
from dataclasses import dataclass

from ..errors import InvalidParameterError
from .batch import PAGE_SIZE

logger = logging.getLogger(__name__)

# llama.cpp takes the model's own length, which is up to 128k tokens and gigabytes of KV cache.
DEFAULT_CONTEXT_LENGTH = 8192
MIN_CONTEXT_LENGTH = 512  # a default is not shrunk below this to fit memory
ACTIVATIONS = ("int8", "float32")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of one engine.

    Raises InvalidParameterError naming the setting that is out of its range.

    >>> EngineConfig(context_length=100, num_threads=2).num_pages
    4
    """

    context_length: int  # tokens of one sequence, prompt and answer together
    num_threads: int
    max_tokens: int = 512  # tokens of one step: longer prompts run in chunks
    activations: str = "int8"

    def __post_init__(self) -> None:
        """Check every field."""
        for name, high in (
            ("context_length", 1 << 24),
            ("num_threads", 1024),
            ("max_tokens", 8192),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
                raise InvalidParameterError(
                    f"{name}={value!r}: must be a whole number from 1 to {high}"
                )
        if self.activations not in ACTIVATIONS:
            raise InvalidParameterError(
                f"activations={self.activations!r}: must be one of {', '.join(ACTIVATIONS)}"
            )

    @property
    def num_pages(self) -> int:
        """KV pages that hold one full context."""
        return num_pages_for(self.context_length)


def num_pages_for(num_tokens: int) -> int:
    """Pages that hold so many KV positions."""
    return -(-num_tokens // PAGE_SIZE)


def choose_context_length(
    wanted: int | None, model_length: int, *, kv_bytes_per_page: int, budget: int | None
) -> int:
    """The context length to run with, in tokens.

    A wanted one is taken as it is, and refused if the model was not trained for it. Without one:
    the model's own, at most 8192, halved (with a warning) while its KV cache is over `budget`
    bytes.
    """
    if wanted is not None:
        if (
            not isinstance(wanted, int)
            or isinstance(wanted, bool)
            or not 1 <= wanted <= model_length
        ):
            raise InvalidParameterError(
                f"context_length={wanted!r}: must be a whole number from 1 to {model_length}, "
                "the length that the model was trained for"
            )
        return wanted
    length = default = min(model_length, DEFAULT_CONTEXT_LENGTH)
    while (
        budget is not None
        and length // 2 >= MIN_CONTEXT_LENGTH
        and num_pages_for(length) * kv_bytes_per_page > budget
    ):
        length //= 2
    if length < default:
        logger.warning(
            "context_length is %d instead of %d, so that the KV cache fits into memory",
            length,
            default,
        )
    return length
