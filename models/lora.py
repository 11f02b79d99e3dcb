"""LoRA adapters: small GGUF files that change a model's matrices W to W + scale * B A.

The file is llama.cpp's (convert_lora_to_gguf.py): `general.type` "adapter", `adapter.type` "lora",
and for each changed tensor X of the model two matrices, X.lora_a and X.lora_b.
"""

import hashlib
import logging
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError, UnsupportedModelError
from ..quant import format_of
from .gguf import GGUFFile, TensorInfo
from .weights import Weights

logger = logging.getLogger(__name__)

EMBEDDING = "token_embd.weight"
_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"


@dataclass(frozen=True, eq=False)
class Pair:
    """What is added to one matrix (rows, columns), as float32: `up` (rows, rank) times `down`.

    `down` is (rank, columns); of the embedding (rows, rank), by token, and `up` (columns, rank).
    The file's own factor, alpha / rank, is in `up`.
    """

    down: NDArray[np.float32]
    up: NDArray[np.float32]

    @property
    def rank(self) -> int:
        """Columns of `up`."""
        return self.up.shape[1]


@dataclass(frozen=True, eq=False)
class Adapter:
    """A checked adapter file: pairs by the name of the model's tensor; a digest of its bytes."""

    path: Path
    name: str
    pairs: dict[str, Pair] = field(repr=False)
    digest: bytes = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Of its matrices as float32."""
        return sum(pair.down.nbytes + pair.up.nbytes for pair in self.pairs.values())


def is_adapter(gguf: GGUFFile) -> bool:
    """Whether a file is an adapter and not a model."""
    return _word(gguf, "general.type") == "adapter"


def _word(gguf: GGUFFile, key: str) -> str | None:
    """A key's value if it is a string: arrays can't be compared with one."""
    value = gguf.metadata.get(key)
    return value if isinstance(value, str) else None


def float_bytes(path: str | Path) -> int:
    """What an adapter takes in memory, from the head of its file."""
    with GGUFFile.open(path) as gguf:
        return sum(4 * prod(info.shape) for info in gguf.tensors.values())


def read_adapter(path: str | Path, weights: Weights) -> Adapter:
    """Read an adapter for a model.

    ModelNotFoundError: no such file. InvalidModelFileError: not a sound adapter, or of other sizes.
    UnsupportedModelError: it belongs to another model, or is of a kind that is not run.
    """
    path = Path(path)
    with GGUFFile.open(path) as gguf:
        _check_kind(gguf, weights)
        alpha = gguf.metadata.get(_ALPHA, 0.0)
        if not isinstance(alpha, (int, float)) or not np.isfinite(alpha):
            raise InvalidModelFileError(f"{path}: {_ALPHA} is {alpha!r}, expected a number")
        pairs = {
            name: _read_pair(path, name, a, b, weights, float(alpha))
            for name, (a, b) in _halves(gguf).items()
        }
        if not pairs:
            raise InvalidModelFileError(f"{path}: the adapter has no lora_a and lora_b tensors")
        return Adapter(path, path.stem, pairs, _digest(gguf))


def _check_kind(gguf: GGUFFile, weights: Weights) -> None:
    metadata, path = gguf.metadata, gguf.path
    if not is_adapter(gguf):
        kind = metadata.get("general.type", "model")
        raise UnsupportedModelError(
            f"{path}: not an adapter (general.type is {kind!r}): LoRA files come from llama.cpp's "
            "convert_lora_to_gguf.py; a whole model is given as the model"
        )
    kind = _word(gguf, "adapter.type")
    if kind != "lora":
        raise UnsupportedModelError(f"{path}: adapter.type is {kind!r}, only 'lora' is run")
    of_adapter, of_model = _word(gguf, "general.architecture"), weights.architecture.name
    of_file = weights.gguf.metadata.get("general.architecture", of_model)
    if of_adapter not in (of_model, of_file):
        raise UnsupportedModelError(
            f"{path}: an adapter for architecture {of_adapter!r}, but the model is {of_file!r}: "
            "use it with the model it was trained on"
        )
    if _INVOCATION in metadata:
        raise UnsupportedModelError(
            f"{path}: an activated LoRA ({_INVOCATION}), which begins in the middle of a prompt; "
            "only adapters that work from the first token on are run"
        )


def _halves(gguf: GGUFFile) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """The pairs of tensors by the name of what they change."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for name, info in gguf.tensors.items():
        stem, _, suffix = name.rpartition(".")
        if suffix in ("lora_a", "lora_b"):
            found.setdefault(stem, {})[suffix] = info
        elif name.endswith("_norm.weight"):  # llama.cpp leaves them out as well
            logger.warning("%s: %s is left out: norms are not adapted", gguf.path, name)
        else:
            raise InvalidModelFileError(
                f"{gguf.path}: tensor {name} is neither a lora_a nor a lora_b"
            )
    for name, halves in found.items():
        if len(halves) < 2:
            [missing] = {"lora_a", "lora_b"} - halves.keys()
            raise InvalidModelFileError(f"{gguf.path}: tensor {name}.{missing} is missing")
    return {name: (halves["lora_a"], halves["lora_b"]) for name, halves in found.items()}


def _read_pair(
    path: Path, name: str, a: TensorInfo, b: TensorInfo, weights: Weights, alpha: float
) -> Pair:
    target = weights.optional(name)
    if target is None:
        raise UnsupportedModelError(
            f"{path}: the model has no tensor {name}: the adapter belongs to another model"
        )
    if len(target.shape) == 3:
        raise UnsupportedModelError(
            f"{path}: {name} is a tensor of {target.shape[0]} experts or heads, and these are not "
            "adapted; train the adapter without them (attention and dense matrices work)"
        )
    shapes = tuple(a.shape), tuple(b.shape)
    if len(target.shape) != 2 or any(len(shape) != 2 for shape in shapes):
        raise InvalidModelFileError(
            f"{path}: {name}: lora_a {shapes[0]} and lora_b {shapes[1]} do not go with "
            f"{tuple(target.shape)}: all must be matrices"
        )
    rows, columns = target.shape
    rank = b.shape[1]
    expected = ((rank, columns), (rows, rank))
    if name == EMBEDDING:
        expected = ((rows, rank), (columns, rank))
    if shapes[0][name == EMBEDDING] != rank:
        raise InvalidModelFileError(
            f"{path}: {name}: the ranks of lora_a {shapes[0]} and lora_b {shapes[1]} differ"
        )
    if shapes != expected:
        raise InvalidModelFileError(
            f"{path}: {name}: lora_a {shapes[0]} and lora_b {shapes[1]} do not go with the model's "
            f"{tuple(target.shape)}: the adapter belongs to a model of other sizes"
        )
    with np.errstate(over="ignore"):
        factor = np.float32(alpha / rank if alpha else 1.0)  # no alpha: as it is
        up = _floats(path, b) * factor
    if not np.isfinite(up).all():
        raise InvalidModelFileError(
            f"{path}: {_ALPHA} is {alpha:g}: times lora_b of {name} that is out of range"
        )
    return Pair(_floats(path, a), up)


def _floats(path: Path, info: TensorInfo) -> NDArray[np.float32]:
    """A copy: nothing of the file is needed afterwards."""
    name = f"{path}: tensor {info.name}"
    fmt = format_of(info.type_id, name)
    if info.shape[-1] % fmt.block_len:
        raise InvalidModelFileError(
            f"{name} has rows of {info.shape[-1]} elements, expected a multiple of {fmt.block_len} "
            f"for its format {fmt.name}"
        )
    values = np.array(fmt.dequantize(info.data, info.shape), np.float32)
    if not np.isfinite(values).all():
        raise InvalidModelFileError(f"{name} has values that are not finite numbers")
    return values


def _digest(gguf: GGUFFile) -> bytes:
    hashed: Any = hashlib.sha256()
    for header in gguf.headers():
        hashed.update(header)
    for info in gguf.tensors.values():
        hashed.update(np.ascontiguousarray(info.data).reshape(-1).view(np.uint8))
    return hashed.digest()
