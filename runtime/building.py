"""From a configuration to the program that runs it: on the CPU, on a GPU, or on both."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..models.lora import Adapter
from ..models.weights import Weights
from .config import EngineConfig
from .gpus import Gpus

if TYPE_CHECKING:
    from .split import ModelProgram, Part

Progress = Callable[[str, int, int], None]


def build(
    weights: Weights,
    config: EngineConfig,
    gpus: Gpus,
    *,
    adapters: Sequence[Adapter] = (),
    progress: Progress | None = None,
) -> "ModelProgram":
    """The program. Errors are those of forward.build_program, and DeviceError."""
    num_layers = weights.hyperparameters.num_layers
    here = config.cpu_layers(num_layers)
    if not config.gpu_layers:
        return _on_cpu(weights, config, None, adapters, progress)
    there = _on_gpu(weights, config, range(len(here), num_layers), gpus, progress)
    if not here:
        return there
    from .split import SplitProgram

    try:
        return SplitProgram(_on_cpu(weights, config, here, adapters, progress), there)
    except BaseException:
        there.close()
        raise


def _on_cpu(
    weights: Weights,
    config: EngineConfig,
    layers: range | None,
    adapters: Sequence[Adapter],
    progress: Progress | None,
) -> "Part":
    from .forward import build_program

    program = build_program(
        weights,
        num_pages=config.num_pages,
        num_threads=config.num_threads,
        max_tokens=config.max_tokens,
        max_sequences=config.max_sequences,
        activations=config.activations,
        cache_type=config.cache_type,
        deterministic=config.deterministic,
        context_length=config.max_sequence_length,
        layers=layers,
        adapters=adapters,
        progress=None if progress is None else partial(progress, "compile"),
    )
    program.lower_priority(config.nice)
    return program


def _on_gpu(
    weights: Weights,
    config: EngineConfig,
    layers: range,
    gpus: Gpus,
    progress: Progress | None,
) -> "Part":
    from .cuda.build import build_program
    from .cuda.forms import Forms
    from .gpus import gpu_number

    def told(event: str, done: int, total: int) -> None:
        assert progress is not None
        progress("compile_gpu" if event == "compile" else event, done, total)

    device = gpus.take(gpu_number(config.device) or 0)
    try:
        return build_program(
            weights,
            device,
            num_pages=config.num_pages,
            max_tokens=config.max_tokens,
            max_sequences=config.max_sequences,
            forms=config.gpu_forms or Forms(),
            activations=config.activations,
            cache_type=config.cache_type,
            context_length=config.max_sequence_length,
            layers=layers,
            owned=True,
            progress=None if progress is None else told,
        )
    except BaseException:
        device.close()
        raise
