"""Which kernels there are, which are common, and which a model may ask for: to compile ahead."""

import importlib
import inspect
import pkgutil
import re
from itertools import product

from ..models.weights import Weights
from .cache import CACHE_TYPES
from .config import ACTIVATIONS, DEFAULT_MAX_SEQUENCES, EngineConfig
from .footprint import layouts_of
from .forward import INTERPRETER

_BESIDE = ("adapter", "slices", "collect")  # modules: of adapters, of importance matrices
_ARGUMENTS = ["op", "step", "thread"]
# Formats of 3 bits and less, the exact path of quantized weights, and KV pages of float32.
_RARE = re.compile(
    r"_(?:iq[123]\w*|tq\d_0)$|float_(?:rows|lanes)_(?!f32|f16|bf16)|(?:attention|rope)\w*_f32$"
)


def of_model(weights: Weights) -> set[str]:
    """The kernels that a model may ask for, whatever the settings.

    Raises:
        UnsupportedModelError: it has a format that the kernels do not run.
    """
    names = {*INTERPRETER}
    causal = weights.architecture.causal
    for activations, cache_type, deterministic, sequences in product(
        ACTIVATIONS, CACHE_TYPES, (False, True), (1, DEFAULT_MAX_SEQUENCES)
    ):
        config = EngineConfig(
            context_length=min(weights.hyperparameters.context_length, 4096),
            num_threads=1,
            activations=activations,
            cache_type=cache_type,
            deterministic=deterministic and causal,
            max_sequences=sequences,
            whole_prompts=not causal,
        )
        names.update(layouts_of(weights, config)[0].kernels)
    return names | {name for name in every() if _module(name) in _BESIDE}


def every() -> set[str]:
    """All kernels there are. (Imports Numba.)"""
    from .kernels import cpu

    names = {*INTERPRETER}
    for found in pkgutil.iter_modules(cpu.__path__):
        module = importlib.import_module(f"{cpu.__name__}.{found.name}")
        path = module.__name__.partition(".")[2]
        for name, value in vars(module).items():
            function = getattr(value, "py_func", None)
            if getattr(function, "__module__", None) != module.__name__:
                continue
            if [*inspect.signature(value.py_func).parameters] == _ARGUMENTS:
                names.add(f"{path}:{name}")
    return names


def usual() -> set[str]:
    """Those that the models which people use ask for, with the usual settings."""
    return {name for name in every() if not _RARE.search(name)}


def _module(kernel: str) -> str:
    return kernel.partition(":")[0].rpartition(".")[2]
