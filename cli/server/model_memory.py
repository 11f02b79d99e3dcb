"""Whether a model fits beside those that are loaded, and what to say if not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import ResourceError
from ...runtime.memory import RESERVE, MemoryNeed, available_memory


def measure(source: str, engine: Mapping[str, Any]) -> MemoryNeed:
    """What a model would take: reads the head of its file. Errors as those of LLM()."""
    from ...models.gguf import GGUFFile
    from ...models.lora import float_bytes
    from ...models.store import resolve
    from ...models.weights import Weights
    from ...runtime.footprint import memory_need
    from ...runtime.gpus import Gpus
    from ...runtime.sizing import configure

    others = ("chat_template", "seed", "lora")
    sizes = {name: value for name, value in engine.items() if name not in others}
    gguf, gpus = GGUFFile.open(resolve(source)), Gpus()
    try:
        weights = Weights.open(gguf)
        more = sum(float_bytes(path) for path, _ in engine.get("lora", ()))
        sizes.setdefault("device", "auto")
        config = configure(weights, **sizes, gpus=gpus, adapter_bytes=more)
        need = memory_need(weights, config)
        return replace(need, arena=need.arena + more)
    finally:
        gpus.close()
        gguf.close()


def fit_context(source: str, engine: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's settings with a context no longer than the model's own."""
    from ...models.gguf import GGUFFile
    from ...models.store import resolve

    length = engine.get("context_length")
    if not isinstance(length, int):
        return dict(engine)
    with GGUFFile.open(resolve(source)) as gguf:
        longest = gguf.metadata.get(f"{gguf.metadata.get('general.architecture')}.context_length")
    fits = not isinstance(longest, int) or longest < 1 or length <= longest
    return {**engine, "context_length": length if fits else longest}


class MemoryBudget:
    """What all models together may take.

    Args:
        limit: bytes, weights included; None: what the machine has.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._available: int | None = None

    def nothing_loaded(self) -> None:
        """Look at the machine again: no model takes memory just now."""
        self._available = available_memory()

    def check(self, name: str, need: MemoryNeed, loaded: Sequence[tuple[str, MemoryNeed]]) -> None:
        """ResourceError, with the numbers, if `name` does not fit beside the loaded models.

        Alone on the machine, LLM() itself knows better: weights that do not fit are read again and
        again there, and the user is warned.
        """
        wanted = need.total
        taken = sum(each.total for _, each in loaded)
        if self._limit is not None and wanted + taken > self._limit:
            raise ResourceError(self._refusal(name, need, loaded, taken, self._limit, "the limit"))
        if self._available is None or not loaded:
            return
        room = max(0, self._available - RESERVE)
        if wanted + taken > room:
            raise ResourceError(self._refusal(name, need, loaded, taken, room, "this machine"))

    @staticmethod
    def _refusal(
        name: str,
        need: MemoryNeed,
        loaded: Sequence[tuple[str, MemoryNeed]],
        taken: int,
        most: int,
        whose: str,
    ) -> str:
        parts = (
            f"{name} needs {size(need.total)} (weights {size(need.weights)}, KV "
            f"cache {size(need.kv)}, activations {size(need.arena)})"
        )
        has = f"{whose} for all models is {size(most)}"
        if whose == "this machine":
            has = f"this machine has {size(most)} for models"
        if not loaded:
            return f"{parts}, but {has}: a smaller context or model, or a higher limit, helps"
        names = ", ".join(each for each, _ in loaded)
        return (
            f"{parts}, but {has} and {names}, in use just now, "
            f"{'takes' if len(loaded) == 1 else 'take'} {size(taken)}: try again later, or serve "
            "with a smaller context"
        )


def size(num_bytes: int) -> str:
    """For messages.

    >>> size(350_000_000), size(6_000_000_000)
    ('350 MB', '6.0 GB')
    """
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
