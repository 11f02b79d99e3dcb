"""Where `llamba bench` measures: a test's sizes on a GPU, and what its rows say of it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..models.weights import Weights
    from ..runtime.config import EngineConfig
    from ..runtime.gpus import Gpus


def placed(
    weights: "Weights",
    gpus: "Gpus",
    memory: dict[str, Any],
    *,
    num_pages: int,
    num_parallel: int,
    num_threads: int,
    step_tokens: int | None,
    settings: dict[str, Any],
) -> "EngineConfig | None":
    """The sizes of a program that a GPU runs, or some layers of; None: the CPU runs it all."""
    from ..runtime.batch import PAGE_SIZE
    from ..runtime.config import MAX_SEQUENCES, EngineConfig
    from ..runtime.placing import Wish, place, read_gpu_layers

    num_tokens, device = max(2, num_pages) * PAGE_SIZE, memory["device"] or "auto"
    common = {name: value for name, value in settings.items() if name != "adapters"}
    wish = Wish(
        device=device,
        gpu_layers=read_gpu_layers(memory["gpu_layers"], device),
        settings=EngineConfig(
            context_length=1,
            num_threads=num_threads,
            max_sequences=min(num_parallel, MAX_SEQUENCES),
            **common,
        ),
        context_length=num_tokens,
        kv_tokens=num_tokens,
        longest=max(num_tokens, weights.hyperparameters.context_length),
        has_adapters=bool(settings.get("adapters")),
        step_tokens=step_tokens,
    )
    return place(weights, gpus, wish)


def device_facts(config: "EngineConfig | None", gpus: "Gpus") -> dict[str, Any]:
    """A row's fields, under llama-bench's names."""
    if config is None:
        return {"device": "cpu", "n_gpu_layers": 0}
    from ..runtime.gpus import gpu_number

    gpu = gpus.find(gpu_number(config.device) or 0)
    forms = config.gpu_forms
    return {
        "backends": "CUDA",
        "gpu_info": gpu.name,
        "device": config.device,
        "n_gpu_layers": config.gpu_layers,
        "gpu_forms": "none" if forms is None else str(forms),
    }
