"""What `llamba doctor` says of GPUs: which there are, what is missing, what a model would do."""

from typing import TYPE_CHECKING, Any

from ..errors import LlambaError
from .console import size

if TYPE_CHECKING:
    from ..models.weights import Weights
    from ..runtime.cuda.driver import DeviceInfo
    from ..runtime.gpus import Gpus


def examine_gpus(gpus: "Gpus") -> dict[str, Any]:
    """The GPUs, their driver, cuBLAS and kernels; or why there is none that can be used."""
    from ..runtime.cuda.driver import version_text

    found, why = gpus.usable()
    if not found:
        return {"gpus": f"none: {why}"}
    about: dict[str, Any] = {f"cuda:{gpu.index}": _gpu(gpu, gpus) for gpu in found}
    if why:
        about["not used"] = why
    first = found[0]
    return {
        "gpus": about,
        "cuda": {
            "driver": f"for CUDA {version_text(first.driver_version)}",
            "cuBLAS": _cublas(first),
            "kernels": _kernels(first),
        },
    }


def _gpu(gpu: "DeviceInfo", gpus: "Gpus") -> str:
    from ..runtime.cuda.driver import version_text

    capability = version_text(gpu.architecture, 10)
    text = f"{gpu.name} (compute capability {capability}, {gpu.num_multiprocessors} multiprocessors"
    try:
        free = f"{size(gpus.free_bytes(gpu))} of {size(gpu.total_bytes)} free"
    except LlambaError as error:  # the libraries that running needs, say
        free = f"{size(gpu.total_bytes)}; it can't be opened: {error}"
    return f"{text}, {free})"


def _cublas(gpu: "DeviceInfo") -> str:
    from ..runtime.cuda.blas import open_library

    try:
        return open_library(gpu.driver_version)[1]
    except LlambaError as error:
        return f"none: {error}"


def _kernels(gpu: "DeviceInfo") -> str:
    """How many are there, and where."""
    from ..quant import kernel_cache
    from ..runtime.cuda import ptx_cache

    try:
        architecture = ptx_cache.architecture_for(gpu.architecture, gpu.driver_version)
    except LlambaError as error:
        return f"none: {error}"
    key = kernel_cache.gpu_key(architecture)
    own = kernel_cache.cache_root() / kernel_cache.versioned(key)
    counts = [
        (folder, len(list(folder.glob("*.ptx"))))
        for folder in (*kernel_cache.trusted_directories(key), own)
    ]
    return ", ".join(f"{count} compiled in {folder}" for folder, count in counts if count) or (
        f"none compiled yet in {own}: the first model does that, once"
    )


def runs_on(weights: "Weights", gpus: "Gpus") -> str:
    """Where a model would run by default."""
    from ..runtime.cuda.sizing import describe_gpu
    from ..runtime.sizing import configure

    try:
        config = configure(weights, device="auto", gpus=gpus)
    except LlambaError as error:
        return f"nothing: {error}"
    return describe_gpu(weights, config) if config.gpu_layers else "the CPU"
