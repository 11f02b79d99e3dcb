"""The adapters of a loaded model: their names, the scales that requests get, whose pages are whose.

A choice is a scale for each adapter, in order; the empty one stands for all zeros: the model alone.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidParameterError
from ..models.lora import Adapter, read_adapter
from ..models.weights import Weights

Choice = tuple[float, ...]
MAX_SCALE = 1e6
# What LLM(lora=...) takes: files, or pairs of a file and its scale.
Lora = Sequence[str | Path | tuple[str | Path, float]]


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter as it is shown: its name in requests, its file, its default scale."""

    name: str
    path: Path
    scale: float


def read_adapters(lora: Lora, weights: Weights) -> tuple[list[Adapter], list[float]]:
    """The adapters of LLM(lora=...), and their scales."""
    if not isinstance(lora, (str, Path, Sequence)):
        raise InvalidParameterError(
            f"lora={lora!r}: must be a path, or a list of paths or of (path, scale)"
        )
    adapters, scales = [], []
    for path, scale in map(_as_pair, [lora] if isinstance(lora, (str, Path)) else lora):
        adapter = read_adapter(path, weights)
        if (other := next((a for a in adapters if a.name == adapter.name), None)) is not None:
            raise InvalidParameterError(
                f"lora: {other.path} and {adapter.path} have the same name {adapter.name!r}, by "
                "which requests choose: rename one of the files"
            )
        adapters.append(adapter)
        scales.append(_check_scale(adapter.name, scale))
    return adapters, scales


class AdapterSet:
    """Which adapters there are, and what requests say of them. May be used by several threads."""

    def __init__(self, adapters: Sequence[Adapter] = (), scales: Sequence[float] = ()) -> None:
        self._files = [(adapter.name, adapter.path) for adapter in adapters]
        self._digests = [adapter.digest for adapter in adapters]
        self._default: Choice = tuple(scales)
        self._key = os.urandom(32)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._files)

    @property
    def infos(self) -> list[AdapterInfo]:
        """All of them, in order."""
        return [
            AdapterInfo(name, path, scale)
            for (name, path), scale in zip(self._files, self._default, strict=True)
        ]

    def choose(self, lora: Mapping[str, float] | None) -> Choice:
        """The choice of a request: the default scales for None, else 0 for what isn't named."""
        scales = self._default if lora is None else self._scales(lora)
        return scales if any(scales) else ()

    def set_default(self, lora: Mapping[str, float]) -> None:
        """Change the scales of later requests that don't say; adapters that aren't named get 0."""
        self._default = self._scales(lora)

    def namespace(self, choice: Choice) -> int:
        """The namespace of the pages that a choice makes: 0 of the model alone, else negative."""
        if not choice:
            return 0
        digest = hashlib.blake2b(repr(choice).encode(), digest_size=8, key=self._key).digest()
        return -1 - int.from_bytes(digest, "little")

    def identity(self, choice: Choice) -> bytes:
        """What a choice means, for pages that outlive this process."""
        used = [(d, scale) for d, scale in zip(self._digests, choice, strict=False) if scale]
        return b"".join(digest + repr(scale).encode() for digest, scale in used)

    def describe(self, choice: Choice) -> str:
        """The same for people, without commas."""
        named = zip(self._files, choice, strict=False)
        return " ".join(
            f"{name}:{scale:g}".replace(",", " ") for (name, _), scale in named if scale
        )

    def _scales(self, lora: Any) -> Choice:
        if not isinstance(lora, Mapping):
            raise InvalidParameterError(
                f"lora={str(lora)[:60]}: must be a mapping from adapters' names to scales, or None"
            )
        names = [name for name, _ in self._files]
        for name in lora:
            if name not in names:
                known = f"there are {', '.join(names)}" if names else "the model has none"
                raise InvalidParameterError(f"lora: no adapter {str(name)[:60]!r}: {known}")
        return tuple(_check_scale(n, lora[n]) if n in lora else 0.0 for n in names)


def _check_scale(name: str, scale: Any) -> float:
    number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not number or not abs(scale) <= MAX_SCALE:  # nor NaN, nor 10**400
        raise InvalidParameterError(
            f"lora: the scale of {name!r} is {str(scale)[:40]}: must be a number such as 1.0, "
            f"not beyond {MAX_SCALE:,.0f}"
        )
    return float(scale)


def _as_pair(entry: Any) -> tuple[str | Path, Any]:
    if isinstance(entry, (str, Path)):
        return entry, 1.0
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], (str, Path)):
        return entry
    raise InvalidParameterError(
        f"lora: {str(entry)[:60]!r}: must be the path of an adapter file, or (path, scale)"
    )
