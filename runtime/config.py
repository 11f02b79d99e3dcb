"""EngineConfig: the sizes an engine is built with, and how context and KV pool are chosen."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InvalidParameterError
from .batch import PAGE_SIZE
from .cache import CACHE_TYPES
from .gpus import gpu_number

if TYPE_CHECKING:
    from .cuda.forms import Forms

# llama.cpp takes the model's own length, which is up to 128k tokens and gigabytes of KV cache.
DEFAULT_CONTEXT_LENGTH = 8192
MIN_CONTEXT_LENGTH = 512  # a default is not shrunk below this to fit memory
DEFAULT_MAX_SEQUENCES = 16
# On a GPU weights are read once for all sequences of a step: one of 64 takes little longer than one
# of 32. With more, each would wait long for its next token, and so would all for pages.
GPU_MAX_SEQUENCES = 64
MAX_SEQUENCES = 256
MIN_KV_TOKENS = 2 * PAGE_SIZE  # a sequence's page, and one to copy a shared page to
MAX_KV_TOKENS = 1 << 28
MAX_STEP_TOKENS = 8192
STEP_TOKENS = 512  # of a decoder: longer prompts run in chunks
GPU_STEP_TOKENS = 2048  # the same on a GPU: the most that its kernels are made for
ACTIVATIONS = ("int8", "float32")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of one engine.

    Raises InvalidParameterError naming the setting that is out of its range.

    >>> EngineConfig(context_length=100, num_threads=2).num_pages
    4
    >>> small = EngineConfig(context_length=4096, num_threads=2, kv_tokens=1000)
    >>> small.num_pages, small.max_sequence_length
    (32, 1024)
    """

    context_length: int  # tokens of one sequence, prompt and answer together
    num_threads: int
    max_tokens: int = STEP_TOKENS  # of one step
    activations: str = "int8"
    max_sequences: int = DEFAULT_MAX_SEQUENCES  # that run at once; the others wait
    kv_tokens: int = 0  # positions of all KV pages together; 0 becomes one context
    cache_type: str = "f16"
    deterministic: bool = False
    prefix_cache: bool = True
    whole_prompts: bool = False  # an encoder, whose tokens see the whole text: one step for each
    mmap: bool = True  # the weights stay in the file's pages; False: in memory of this process
    mlock: bool = False  # the system may not drop the weights from memory
    nice: int = 0  # added to the priority number of the threads that run the model
    background: bool = False
    device: str = "cpu"  # where layers run: "cpu", or a GPU, "cuda:0"
    gpu_layers: int = 0  # the last so many of them; the others run on the CPU
    gpu_forms: "Forms | None" = None  # in which weights lie there

    def __post_init__(self) -> None:
        """Check every field."""
        check_int("context_length", self.context_length, 1, 1 << 24)
        check_int("num_threads", self.num_threads, 1, 1024)
        check_int("max_tokens", self.max_tokens, 1, MAX_STEP_TOKENS)
        check_int("max_sequences", self.max_sequences, 1, MAX_SEQUENCES)
        if self.kv_tokens == 0 and type(self.kv_tokens) is int:
            object.__setattr__(self, "kv_tokens", max(self.context_length, MIN_KV_TOKENS))
        check_int("kv_tokens", self.kv_tokens, MIN_KV_TOKENS, MAX_KV_TOKENS)
        check_choice("activations", self.activations, ACTIVATIONS)
        check_choice("cache_type", self.cache_type, CACHE_TYPES)
        check_choice("deterministic", self.deterministic, (True, False))
        for name in ("prefix_cache", "mmap", "mlock", "background"):
            check_choice(name, getattr(self, name), (True, False))
        check_int("nice", self.nice, -20, 19)
        assert bool(self.gpu_layers) == (gpu_number(self.device) is not None), self.device

    @property
    def num_pages(self) -> int:
        """KV pages of the pool that all sequences and cached prefixes share."""
        return num_pages_for(self.kv_tokens)

    def cpu_layers(self, num_layers: int) -> range:
        """Of the model's layers those that the CPU runs: the first ones, or all."""
        return range(num_layers - min(self.gpu_layers, num_layers))

    @property
    def max_sequence_length(self) -> int:
        """Tokens of the longest sequence: the context, or the whole pool where that is smaller."""
        longest = min(self.context_length, self.num_pages * PAGE_SIZE)
        return min(longest, self.max_tokens) if self.whole_prompts else longest


def num_pages_for(num_tokens: int) -> int:
    """Pages that hold so many KV positions."""
    return -(-num_tokens // PAGE_SIZE)


def choose_context_length(
    wanted: int | None, model_length: int, *, kv_bytes_per_page: int, budget: int | None
) -> int:
    """The context length to run with, in tokens.

    A wanted one is taken as it is, and refused if the model was not trained for it. Without one:
    the model's own, at most 8192, halved while its KV cache is over `budget` bytes.
    """
    if wanted is not None:
        why = ", the length that the model was trained for"
        return check_int("context_length", wanted, 1, model_length, why)
    length = min(model_length, DEFAULT_CONTEXT_LENGTH)
    while (
        budget is not None
        and length // 2 >= MIN_CONTEXT_LENGTH
        and num_pages_for(length) * kv_bytes_per_page > budget
    ):
        length //= 2
    return length


def choose_kv_tokens(
    wanted: int | None, context_length: int, *, kv_bytes_per_page: int, budget: int | None
) -> int:
    """KV positions for all sequences together.

    A wanted number is taken as it is. Without one: a context, and as much again for other sequences
    and cached prefixes as `budget` bytes allow.
    """
    if wanted is not None:
        return check_int("kv_tokens", wanted, MIN_KV_TOKENS, MAX_KV_TOKENS)
    least = max(context_length, MIN_KV_TOKENS)
    if budget is None:
        return 2 * least
    affordable = budget // kv_bytes_per_page * PAGE_SIZE
    return max(least, min(affordable, 2 * least))


def check_int(name: str, value: Any, low: int, high: int, why: str = "") -> int:
    """The value; InvalidParameterError if it is no whole number, or out of its range."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidParameterError(
            f"{name}={value!r}: must be a whole number from {low} to {high}{why}"
        )
    return value


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise InvalidParameterError for a setting that is none of the choices."""
    if type(value) is not type(choices[0]) or value not in choices:
        raise InvalidParameterError(
            f"{name}={value!r}: must be one of {', '.join(map(str, choices))}"
        )
