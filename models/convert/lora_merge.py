"""Adapters merged into a checkpoint: W + scale * factor * B A in place of W, in float32."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidModelFileError, InvalidParameterError, UnsupportedModelError
from .checkpoint import Checkpoint
from .floats import Float32, to_float32
from .peft import LowRank, PeftAdapter, names_by_spelling, spelled
from .safetensors_file import StoredTensor

Change = tuple[LowRank | StoredTensor, float]  # what is added or put in place, its scale


@dataclass(frozen=True, slots=True)
class MergedTensor(StoredTensor):
    """A tensor of a checkpoint with what adapters change of it, computed when it is read."""

    base: StoredTensor
    changes: tuple[Change, ...] = ()

    def raw(self) -> NDArray[Any]:
        """The sum, float32, in memory: as large as the tensor, and once more while it is made."""
        values = to_float32(self.base.raw(), self.base.dtype)
        for change, scale in self.changes:
            if isinstance(change, LowRank):
                up, down = change.halves()
                product = up @ down
                product *= np.float32(scale * change.factor)
                values += product
            else:
                new: Float32 = to_float32(change.raw(), change.dtype)
                values = new if scale == 1 else values + np.float32(scale) * (new - values)
        return values

    def rows(self, size: int) -> Iterator[NDArray[Any]]:
        """The sum a piece at a time, made as a whole."""
        values = self.raw().reshape(-1, self.shape[-1] if self.shape else 1)
        step = max(1, size // values.shape[1])
        for first in range(0, len(values), step):
            yield values[first : first + step]


def merged(checkpoint: Checkpoint, adapters: Sequence[tuple[PeftAdapter, float]]) -> Checkpoint:
    """The checkpoint with adapters, each with its scale, in its tensors; nothing is read yet.

    InvalidModelFileError: an adapter and the checkpoint have different shapes.
    UnsupportedModelError: an adapter changes what the checkpoint doesn't have.
    """
    changes: dict[str, list[Change]] = {}
    spellings = names_by_spelling(iter(checkpoint.tensors))
    for adapter, scale in adapters:
        for low in adapter.changes.values():
            name = _find(checkpoint, adapter, f"{low.module}.weight", spellings)
            _check_shape(checkpoint, adapter, name, low)
            changes.setdefault(name, []).append((low, scale))
        for saved_name, saved in {**adapter.copies, **adapter.saved}.items():
            name = _find(checkpoint, adapter, saved_name, spellings)
            if saved.shape != checkpoint.tensors[name].shape:
                raise InvalidModelFileError(
                    f"{adapter.folder}: {saved_name} has shape {saved.shape}, the model's "
                    f"{checkpoint.tensors[name].shape}; were tokens added for the training? "
                    "Merge it with PEFT then (merge_and_unload) and convert the result"
                )
            if saved_name in adapter.saved:
                changes.setdefault(name, []).append((saved, scale))
    tensors = {
        name: _merged(tensor, changes[name]) if name in changes else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def _merged(tensor: StoredTensor, changes: Sequence[Change]) -> MergedTensor:
    if tensor.dtype.startswith("F8_"):
        raise UnsupportedModelError(
            f"{tensor.path}: tensor {tensor.name} has 8-bit floats, into which nothing is merged; "
            "take the model's bfloat16 checkpoint"
        )
    return MergedTensor(
        tensor.name, "F32", tensor.shape, tensor.path, tensor.start, tensor.num_bytes, tensor,
        tuple(changes),
    )  # fmt: skip


def _find(
    checkpoint: Checkpoint, adapter: PeftAdapter, name: str, spellings: dict[str, list[str]]
) -> str:
    """The checkpoint's name of what an adapter changes."""
    found = [name] if name in checkpoint.tensors else spellings.get(spelled(name), [])
    if len(found) == 1:
        _check_tied(checkpoint, adapter, found[0])
        return found[0]
    if name.split(".")[-2:] == ["lm_head", "weight"] and _is_tied(checkpoint):
        raise UnsupportedModelError(
            f"{adapter.folder}: it changes {name}, which this model doesn't have: its output is "
            "tied to its embeddings; merge it with PEFT, with tie_word_embeddings off"
        )
    what = "has no such tensor" if not found else f"has {len(found)} that it could be"
    raise UnsupportedModelError(
        f"{adapter.folder}: it changes {name}, and the checkpoint {checkpoint.folder} {what}: "
        "the adapter belongs to another model"
    )


def _check_tied(checkpoint: Checkpoint, adapter: PeftAdapter, name: str) -> None:
    if spelled(name) == "embed_tokens.weight" and _is_tied(checkpoint):
        raise UnsupportedModelError(
            f"{adapter.folder}: it changes {name}, to which the output of this model is tied, but "
            "not that output; convert the adapter itself and give it with --lora, or merge it with "
            "PEFT, with tie_word_embeddings off"
        )


def _is_tied(checkpoint: Checkpoint) -> bool:
    return not any(spelled(name) == "lm_head.weight" for name in checkpoint.tensors)


def _check_shape(checkpoint: Checkpoint, adapter: PeftAdapter, name: str, low: LowRank) -> None:
    shape = checkpoint.tensors[name].shape
    if low.shape == shape:
        return
    hint = "the adapter belongs to a model of other sizes"
    if low.shape == shape[::-1]:
        hint = "fan_in_fan_out in adapter_config.json is the wrong way round"
    raise InvalidModelFileError(
        f"{adapter.folder}: lora_A {low.a.shape} and lora_B {low.b.shape} of {low.module} don't go "
        f"with {name} {shape} of {checkpoint.folder}: {hint}"
    )


def parse_adapter(text: str) -> tuple[Path, float]:
    """FOLDER or FOLDER:SCALE. InvalidParameterError: the scale is not a finite number."""
    if Path(text).is_dir():
        return Path(text), 1.0
    folder, colon, scale = text.rpartition(":")
    if not colon:
        return Path(text), 1.0
    try:
        value = float(scale)
    except ValueError:
        return Path(text), 1.0
    if not np.isfinite(value):
        raise InvalidParameterError(f"--merge-lora {text}: the scale must be a finite number")
    return Path(folder), value
