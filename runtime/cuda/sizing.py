"""The sizes of an engine on a GPU: which layers run there, its context, pages and forms.

All by its free memory, of which a twentieth and 512 MB stay free.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import DeviceError, InvalidParameterError
from ...models.weights import Weights
from ..batch import PAGE_SIZE
from ..cache import kv_bytes_per_page
from ..config import (
    DEFAULT_CONTEXT_LENGTH,
    GPU_STEP_TOKENS,
    MIN_KV_TOKENS,
    STEP_TOKENS,
    EngineConfig,
    choose_context_length,
    num_pages_for,
)
from ..memory import megabytes
from ..split import can_split, nearest_cut
from .forms import Forms, choose_forms, forms_bytes, planes_bytes
from .need import arena_bytes

if TYPE_CHECKING:
    from .driver import DeviceInfo

logger = logging.getLogger(__name__)

RESERVE = 512 << 20
RESERVE_SHARE = 20  # a twentieth
SMALL_STEPS = (1024, 512)  # where memory is short
# A context is not made shorter than this only to have more layers on the GPU.
COMFORTABLE_CONTEXT = 2048
MAX_POOL = 16  # contexts: more pages than that are seldom found again


@dataclass(frozen=True)
class Fit:
    """What a number of layers takes on a GPU."""

    config: EngineConfig
    weights: int
    arena: int
    kv: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.arena + self.kv


class GpuSizing:
    """Chooses what a GPU runs of a model.

    Args:
        settings: what was asked for, as fields of EngineConfig; None where nothing was.
        longest: the model's context.
    """

    def __init__(
        self,
        weights: Weights,
        gpu: "DeviceInfo",
        free_bytes: int,
        *,
        context_length: int | None,
        kv_tokens: int | None,
        longest: int,
        settings: EngineConfig,
        step_tokens: int | None = None,
    ) -> None:
        self._weights, self._gpu, self.free = weights, gpu, free_bytes
        self._step_tokens = step_tokens
        self._settings, self._longest = settings, longest
        self._context_length, self._kv_tokens = context_length, kv_tokens
        self._num_layers = weights.hyperparameters.num_layers
        self._exact = settings.activations == "float32"
        self._arenas: dict[tuple[int, int], int] = {}
        self.room = max(0, free_bytes - free_bytes // RESERVE_SHARE - RESERVE)

    def all_layers(self) -> Fit | None:
        """The whole model, if it fits."""
        return self._fitting(self._num_layers)

    def some_layers(self, count: int) -> Fit | None:
        """The last `count` layers and the output, if they fit."""
        return self._fitting(min(count, self._num_layers))

    def most_layers(self) -> Fit | None:
        """As many layers as fit; None: not one does."""
        low, high = 0, self._num_layers  # low fits, high doesn't
        found = None
        while low + 1 < high:
            middle = (low + high) // 2
            if (fit := self._fitting(middle)) is None:
                high = middle
            else:
                low, found = middle, fit
        numbers = self._weights.hyperparameters
        cut = self._num_layers - low
        if found is None or can_split(numbers, cut):
            return found
        count = self._num_layers - nearest_cut(numbers, cut)
        return self._fitting(count) if count else None

    def finish(self, fit: Fit) -> EngineConfig:
        """With the forms of weights that there is room for, and pages for more than a context."""
        config, layers = fit.config, self._layers(fit.config.gpu_layers)
        page = kv_bytes_per_page(self._weights.hyperparameters, config.cache_type, layers)
        left = self.room - fit.total
        # Another context's pages are kept free before copies of weights are made.
        pages = config.num_pages
        if self._kv_tokens is None:
            pages += max(0, min(pages, left // 2 // page))
        forms = choose_forms(
            self._weights,
            self.room,
            pages * page,
            fit.arena,
            layers=layers,
            max_sequences=config.max_sequences,
            exact=self._exact,
        )
        if self._kv_tokens is None:
            copies = forms_bytes(self._weights, forms, layers, exact=self._exact)
            left = self.room - fit.weights - fit.arena - copies - pages * page
            more = max(0, left // 2 // page)
            pages = min(pages + more, max(pages, MAX_POOL * num_pages_for(config.context_length)))
        return replace(config, kv_tokens=pages * PAGE_SIZE, gpu_forms=forms)

    def refusal(self, count: int) -> DeviceError:
        """Why so many layers don't fit, and what would."""
        fit = self._sized(count, *self._smallest())
        config, some = fit.config, self.most_layers()
        by_tokens = self._kv_tokens is not None
        setting = "kv_tokens" if by_tokens else "context_length"
        value = config.kv_tokens if by_tokens else config.context_length
        layers = "" if count == self._num_layers else f" of {count} layers"
        ways = [f"pass gpu_layers={some.config.gpu_layers}"] if some is not None else []
        ways += [f"a smaller {setting}" if ways else f"pass a smaller {setting}"]
        return DeviceError(
            f"device='{config.device}': the weights{layers} take {megabytes(fit.weights)}, "
            f"{setting}={value} needs {megabytes(fit.kv)} for the KV cache and "
            f"{megabytes(fit.arena)} are for activations, but {self._gpu.name} has only "
            f"{megabytes(self.free)} of memory free ({megabytes(self.free - self.room)} stay "
            f"free): {', '.join(ways)}, or device='cpu'"
        )

    def check_cut(self, count: int) -> None:
        """InvalidParameterError: the model can't be cut so that the GPU has the last `count`."""
        numbers, cut = self._weights.hyperparameters, self._num_layers - count
        if can_split(numbers, cut):
            return
        fewer = self._num_layers - nearest_cut(numbers, cut)
        more = self._num_layers - next(c for c in range(cut, -1, -1) if can_split(numbers, c))
        out = f"{fewer} or {more}" if fewer else str(more)
        raise InvalidParameterError(
            f"gpu_layers={count}: this model can't be cut there, as later layers use what earlier "
            f"ones keep: pass {out}"
        )

    def shrunk(self, config: EngineConfig) -> int:
        """The context that was meant, where it had to be made shorter; else 0."""
        usual = min(self._longest, DEFAULT_CONTEXT_LENGTH)
        return usual if self._context_length is None and config.context_length < usual else 0

    # -- sizes -----------------------------------------------------------------------------------
    def _layers(self, count: int) -> range:
        return range(self._num_layers - count, self._num_layers)

    def _fitting(self, count: int) -> Fit | None:
        """The first of the sizes that fit, from the most comfortable on."""
        for context, step in self._sizes():
            fit = self._sized(count, context, step)
            if fit.total <= self.room:
                return fit
        return None

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """(context, tokens of a step): shorter contexts before smaller steps."""
        first = choose_context_length(
            self._context_length, self._longest, kv_bytes_per_page=1, budget=None
        )
        contexts = [first]
        while self._context_length is None and contexts[-1] // 2 >= COMFORTABLE_CONTEXT:
            contexts.append(contexts[-1] // 2)
        steps = (GPU_STEP_TOKENS, *SMALL_STEPS)
        for step in steps if self._step_tokens is None else (self._step_tokens,):
            for context in contexts:
                yield context, step

    def _smallest(self) -> tuple[int, int]:
        return [*self._sizes()][-1]

    def _sized(self, count: int, context: int, step: int) -> Fit:
        layers, whole = self._layers(count), count == self._num_layers
        if not whole and self._step_tokens is None:
            step = STEP_TOKENS  # the CPU's: its layers are what takes long
        if self._settings.whole_prompts:
            step = max(step, context)
        kv_tokens = max(context, MIN_KV_TOKENS) if self._kv_tokens is None else self._kv_tokens
        config = replace(
            self._settings,
            context_length=context,
            kv_tokens=kv_tokens,
            max_tokens=step,
            device=f"cuda:{self._gpu.index}",
            gpu_layers=count,
        )
        page = kv_bytes_per_page(self._weights.hyperparameters, config.cache_type, layers)
        return Fit(
            config=config,
            weights=planes_bytes(self._weights, layers, exact=self._exact),
            arena=self._arena(config, step),
            kv=(config.num_pages + 1) * page,
        )

    def _arena(self, config: EngineConfig, step: int) -> int:
        """Of all layers: those of a part take a little less."""
        key = step, config.context_length
        if key not in self._arenas:
            self._arenas[key] = arena_bytes(
                self._weights,
                max_tokens=step,
                max_sequences=config.max_sequences,
                context_length=config.max_sequence_length,
                exact=self._exact,
            )
        return self._arenas[key]


def describe_gpu(weights: Weights, config: EngineConfig) -> str:
    """What a GPU is going to hold of a model, in a line."""
    count, forms = weights.hyperparameters.num_layers, config.gpu_forms or Forms()
    layers = range(count - config.gpu_layers, count)
    exact = config.activations == "float32"
    page = kv_bytes_per_page(weights.hyperparameters, config.cache_type, layers)
    num_bytes = planes_bytes(weights, layers, exact=exact)
    copies = forms_bytes(weights, forms, layers, exact=exact)
    more = f" and {megabytes(copies)} of copies ({forms})" if copies else ""
    return (
        f"{config.gpu_layers} of {count} layers on {config.device}, weights {megabytes(num_bytes)}"
        f"{more}, KV cache {megabytes(config.num_pages * page)} ({config.kv_tokens} tokens, "
        f"{config.cache_type})"
    )
