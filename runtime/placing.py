"""Where a model runs: on the CPU, on a GPU, or its first layers on the CPU and the others on a GPU.

A GPU that was asked for and can't be had is an error, never a fallback; device="auto" takes one
that holds at least half of the layers, and says so if it isn't all of them.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, InvalidParameterError
from ..models.weights import Weights
from .config import DEFAULT_CONTEXT_LENGTH, GPU_STEP_TOKENS, EngineConfig, check_int
from .gpus import Gpus, gpu_number
from .memory import megabytes

if TYPE_CHECKING:
    from .cuda.driver import DeviceInfo
    from .cuda.sizing import Fit, GpuSizing

logger = logging.getLogger(__name__)

MAX_LAYERS = 10_000  # 99 and the like mean all


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for; None where nothing was.

    gpu_layers: how many of the last layers the GPU runs; None: as many as fit. settings: all that
    isn't chosen by memory. step_tokens: for measurements.
    """

    device: str
    gpu_layers: int | None
    settings: EngineConfig
    context_length: int | None
    kv_tokens: int | None
    longest: int
    has_adapters: bool
    step_tokens: int | None = None

    @property
    def asked(self) -> str:
        """The setting that asked for a GPU, as messages name it."""
        if self.device != "auto":
            return f"device={self.device!r}"
        layers = self.gpu_layers
        return "gpu_layers='all'" if layers == MAX_LAYERS else f"gpu_layers={layers}"

    @property
    def text_length(self) -> int:
        """The longest text: that was asked for, or that the CPU would take where it may run it."""
        if self.context_length is not None:
            return self.context_length
        return 0 if self.is_firm else min(self.longest, DEFAULT_CONTEXT_LENGTH)

    @property
    def is_firm(self) -> bool:
        """A GPU or nothing."""
        return self.device != "auto" or self.gpu_layers is not None


def read_gpu_layers(value: Any, device: str) -> int | None:
    """The setting as a number; None: as many as fit.

    >>> read_gpu_layers("auto", "auto"), read_gpu_layers("all", "cuda"), read_gpu_layers(8, "cuda")
    (None, 10000, 8)
    """
    if value is None:
        layers = None
    elif isinstance(value, str) and value in ("auto", "all"):
        layers = None if value == "auto" else MAX_LAYERS
    elif isinstance(value, str):
        raise InvalidParameterError(f"gpu_layers={value!r}: must be auto, all, or a whole number")
    else:
        layers = check_int("gpu_layers", value, 0, MAX_LAYERS, ", 'auto' or 'all'")
    number = gpu_number(device)
    if layers and device == "cpu":
        raise InvalidParameterError(
            f"gpu_layers={value}: device='cpu' has no GPU: leave one of them out"
        )
    if layers == 0 and number is not None:
        raise InvalidParameterError(
            f"gpu_layers=0: nothing would run on device={device!r}: leave one of them out"
        )
    return layers


def place(weights: Weights, gpus: Gpus, wish: Wish) -> EngineConfig | None:
    """The sizes on a GPU, alone or with the CPU; None: the CPU runs it all.

    Raises:
        DeviceError: the GPU that was asked for isn't there, or can't be used, or is too small.
        InvalidParameterError: a setting that a GPU does not keep, or a cut that can't be made.
    """
    number = gpu_number(wish.device)
    if wish.device == "cpu" or wish.gpu_layers == 0:
        return None
    if number is None and not wish.is_firm:
        return _if_it_helps(weights, gpus, wish)
    gpu = gpus.find(number or 0, wish.asked)
    if (why := _not_run(weights, wish)) is not None:
        raise InvalidParameterError(why)
    gpus.check_libraries(gpu)
    sizing = _sizing(weights, gpus, gpu, wish)
    return _asked_for(sizing, gpu, wish, weights.hyperparameters.num_layers)


def _not_run(weights: Weights, wish: Wish) -> str | None:
    from .cuda.support import not_run

    return not_run(
        weights,
        deterministic=wish.settings.deterministic,
        has_adapters=wish.has_adapters,
        context_length=wish.text_length,
    )


def _sizing(weights: Weights, gpus: Gpus, gpu: "DeviceInfo", wish: Wish) -> "GpuSizing":
    from .checked_sizes import check_sizes
    from .cuda.sizing import GpuSizing

    check_sizes(weights)
    return GpuSizing(
        weights,
        gpu,
        gpus.free_bytes(gpu),
        context_length=wish.context_length,
        kv_tokens=wish.kv_tokens,
        longest=min(wish.longest, GPU_STEP_TOKENS) if wish.settings.whole_prompts else wish.longest,
        settings=wish.settings,
        step_tokens=wish.step_tokens,
    )


def _asked_for(sizing: "GpuSizing", gpu: "DeviceInfo", wish: Wish, num_layers: int) -> EngineConfig:
    """So many layers as were asked for; without a number, as many as fit."""
    if wish.gpu_layers is None:
        fit = sizing.all_layers() or sizing.most_layers()
        if fit is None:
            raise sizing.refusal(num_layers)
    else:
        count = min(wish.gpu_layers, num_layers)
        sizing.check_cut(count)
        if (fit := sizing.some_layers(count)) is None:
            raise sizing.refusal(count)
    return _finished(sizing, gpu, fit, num_layers, is_told=wish.gpu_layers is None)


def _if_it_helps(weights: Weights, gpus: Gpus, wish: Wish) -> EngineConfig | None:
    """The first GPU, if there is one and half of the layers fit."""
    if not gpus.has_driver():
        return None
    found, why = gpus.usable()
    if not found:
        logger.info("no GPU is used: %s", why)
        return None
    gpu, num_layers = found[0], weights.hyperparameters.num_layers
    name = f"cuda:{gpu.index} ({gpu.name})"
    if (why := _not_run(weights, wish)) is not None:
        logger.info("%s is not used: %s", name, why)
        return None
    try:
        gpus.check_libraries(gpu)
        sizing = _sizing(weights, gpus, gpu, wish)
    except DeviceError as error:
        logger.info("%s is not used: %s", name, error)
        return None
    fit = sizing.all_layers() or sizing.most_layers()
    count = 0 if fit is None else fit.config.gpu_layers
    if fit is None or 2 * count < num_layers:
        logger.warning(
            "%s is not used: of %d layers it could hold %d (%s of memory are free); "
            "gpu_layers=N says how many it shall run",
            name,
            num_layers,
            count,
            megabytes(sizing.free),
        )
        return None
    return _finished(sizing, gpu, fit, num_layers, is_told=True)


def _finished(
    sizing: "GpuSizing", gpu: "DeviceInfo", fit: "Fit", num_layers: int, *, is_told: bool
) -> EngineConfig:
    """With warnings of what was not asked for."""
    config = sizing.finish(fit)
    if usual := sizing.shrunk(config):
        logger.warning(
            "context_length is %d instead of %d, so that the KV cache fits into the GPU's memory",
            config.context_length,
            usual,
        )
    if is_told and config.gpu_layers < num_layers:
        logger.warning(
            "%d of %d layers run on cuda:%d (%s), the others on the CPU, which is slower: more do "
            "not fit (%s of memory are free); a smaller quant or context would",
            config.gpu_layers,
            num_layers,
            gpu.index,
            gpu.name,
            megabytes(sizing.free),
        )
    return config
