"""LoRA adapters as the package PEFT saves them: adapter_config.json and adapter_model.safetensors.

Each names modules of a model, whose matrices W they change to W + factor * B A, with factor
alpha / rank, or alpha / sqrt(rank) with rank-stabilised LoRA.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidModelFileError, ModelNotFoundError, UnsupportedModelError
from .checkpoint import check_folder, read_json
from .floats import FLOATS, Float32, to_float32
from .name_patterns import NamePattern
from .safetensors_file import StoredTensor, read_header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MERGE = (
    "merge it with PEFT (model.merge_and_unload(), then save_pretrained) and convert the result"
)
_LINEAR = re.compile(r"(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
_EMBEDDING = re.compile(r"(.+)\.lora_embedding_([AB])(?:\.[^.]+)?")
_SAVED = re.compile(r"\.modules_to_save(\.[^.]+)?(?=\.(weight|bias)$)")
_REFUSED_TENSORS = (
    ("lora_magnitude_vector", "DoRA"),
    ("lora_B.bias", "LoRA with biases"),
    ("token_adapter", "single trained tokens"),
)
# What changes the meaning of A and B, where it is set.
_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow",
    "lora_bias": "LoRA with biases",
    "layer_replication": "replicated layers",
    "target_parameters": "LoRA of parameters that are no module's weight (target_parameters)",
    "trainable_token_indices": "single trained tokens (trainable_token_indices)",
}
# Methods that change the model's own weights before training, so that A and B fit others only.
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, eq=False)
class LowRank:
    """What an adapter adds to one matrix of the checkpoint, `shape` as it lies there.

    module: its name without `.weight`. turned: A and B are of the matrix turned around (fan in and
    out, or an embedding).
    """

    module: str
    a: StoredTensor
    b: StoredTensor
    alpha: float
    factor: float
    turned: bool
    embedding: bool

    @property
    def rank(self) -> int:
        """Rows of A."""
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.b.shape[0], self.a.shape[1]
        return (columns, rows) if self.turned else (rows, columns)

    def halves(self) -> tuple[Float32, Float32]:
        """(rows, rank) and (rank, columns), whose product is added, without the factor.

        InvalidModelFileError: a number is not finite.
        """
        a, b = (to_float32(t.raw(), t.dtype) for t in (self.a, self.b))
        for stored, values in ((self.a, a), (self.b, b)):
            if not np.isfinite(values).all():
                raise InvalidModelFileError(
                    f"{stored.path}: tensor {stored.name} holds numbers that are not finite"
                )
        return (a.T, b.T) if self.turned else (b, a)


@dataclass(frozen=True, eq=False)
class PeftAdapter:
    """A checked adapter folder.

    changes: by the module's name. saved: whole tensors that replace the model's, by their names.
    copies: of the model's own, of which only the shapes count.
    """

    folder: Path
    config: Mapping[str, Any]
    changes: Mapping[str, LowRank]
    saved: Mapping[str, StoredTensor]
    copies: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, folder: str | Path) -> "PeftAdapter":
        """Read the headers.

        ModelNotFoundError: a file is missing. InvalidModelFileError: one is not sound.
        UnsupportedModelError: another kind of adapter.
        """
        folder = Path(folder)
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "not found"
            raise ModelNotFoundError(f"{folder}: {what}; give a folder with {CONFIG}")
        check_folder(folder)
        if not (folder / CONFIG).is_file():
            raise ModelNotFoundError(
                f"{folder}: {CONFIG} is missing; give a folder with a LoRA adapter as PEFT saves it"
            )
        config = read_json(folder / CONFIG)
        _check_config(folder / CONFIG, config)
        halves: dict[str, dict[str, StoredTensor]] = {}
        embeddings: set[str] = set()
        saved: dict[str, StoredTensor] = {}
        copies: dict[str, StoredTensor] = {}
        for name, tensor in _tensors(folder).items():
            clean = (
                name.removeprefix("base_model.").removeprefix("model.")
                if (name.startswith("base_model.model."))
                else name
            )
            if match := _LINEAR.fullmatch(clean) or _EMBEDDING.fullmatch(clean):
                halves.setdefault(match[1], {})[match[2]] = tensor
                if ".lora_embedding_" in clean:
                    embeddings.add(match[1])
            elif refused := next((what for part, what in _REFUSED_TENSORS if part in clean), None):
                raise _refused(folder, f"tensor {name}", refused)
            elif clean.endswith(".base_layer.weight"):
                copies[clean.replace(".base_layer", "")] = tensor
            else:
                saved[_SAVED.sub("", clean).replace(".base_layer.bias", ".bias")] = tensor
        if not halves and not saved:
            raise InvalidModelFileError(f"{folder / WEIGHTS}: it has no tensors")
        changes = {
            module: _low_rank(folder, config, module, found, module in embeddings)
            for module, found in halves.items()
        }
        return cls(folder, config, changes, saved, copies)

    @property
    def one_alpha(self) -> float:
        """The alpha that, by the rank of each matrix, gives the factor of most of them."""
        alphas = [change.factor * change.rank for change in self.changes.values()]
        return max(set(alphas), key=alphas.count) if alphas else 0.0


def is_peft(folder: str | Path) -> bool:
    """Whether a folder holds an adapter and not a model."""
    folder = Path(folder)
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors*"))


def _refused(folder: Path, where: str, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{folder}: {where}: {what} is not converted; {_MERGE}")


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(
            f"{path}: peft_type is {kind!r}, only LORA is converted; {_MERGE}"
        )
    for key, what in _REFUSED.items():
        if config.get(key):
            raise _refused(path.parent, f"{key} is {config[key]!r}", what)
    if config.get("alora_invocation_tokens"):
        raise UnsupportedModelError(
            f"{path}: an activated LoRA (alora_invocation_tokens), which begins in the middle of a "
            "prompt; only adapters that work from the first token on are run"
        )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise UnsupportedModelError(
            f"{path}: init_lora_weights is {start!r}: it was trained on changed weights; save it "
            "once more as an ordinary LoRA (save_pretrained with "
            "path_initial_model_for_weight_conversion)"
        )
    for key in ("r", "lora_alpha"):
        value = config.get(key, 8)
        if not _is_positive(value):
            raise InvalidModelFileError(f"{path}: {key} is {value!r}, expected a positive number")
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(key) or {}, dict):
            raise InvalidModelFileError(f"{path}: {key} is {config[key]!r}, expected an object")


def _is_positive(value: object) -> bool:
    """A number above 0 that float32 holds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 3.4e38


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / "adapter_model.bin").is_file():
            raise UnsupportedModelError(
                f"{folder}: only adapter_model.bin, a pickle, which could run any code and is not "
                "read; save it once more with PEFT's save_pretrained(FOLDER)"
            )
        raise ModelNotFoundError(f"{folder}: {WEIGHTS} is missing")
    return read_header(path)


def _low_rank(
    folder: Path,
    config: Mapping[str, Any],
    module: str,
    found: Mapping[str, StoredTensor],
    embedding: bool,
) -> LowRank:
    path = folder / WEIGHTS
    if missing := {"A", "B"} - found.keys():
        raise InvalidModelFileError(f"{path}: lora_{missing.pop()} of {module} is missing")
    a, b = found["A"], found["B"]
    for tensor in (a, b):
        if tensor.dtype not in FLOATS:
            raise UnsupportedModelError(
                f"{path}: tensor {tensor.name} has dtype {tensor.dtype}, which is not converted"
            )
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise _refused(folder, f"lora_A {a.shape} and lora_B {b.shape} of {module}", "no matrix")
    rank = _by_pattern(folder, config, "rank_pattern", module, config.get("r", 8))
    alpha = _by_pattern(folder, config, "alpha_pattern", module, config.get("lora_alpha", 8))
    if not a.shape[0] == b.shape[1] == rank:
        raise InvalidModelFileError(
            f"{path}: lora_A {a.shape} and lora_B {b.shape} of {module} don't go with its rank "
            f"{rank} in {CONFIG}"
        )
    factor = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    turned = embedding or bool(config.get("fan_in_fan_out"))
    return LowRank(module, a, b, float(alpha), float(factor), turned, embedding)


_compiled = functools.lru_cache(4096)(NamePattern)


def _by_pattern(
    folder: Path, config: Mapping[str, Any], key: str, module: str, default: Any
) -> Any:
    """A module's own value: of the first pattern that fits the end of its name, as in PEFT."""
    for pattern, value in (config.get(key) or {}).items():
        try:
            fits = _compiled(pattern).fits(module)
        except ValueError as error:
            raise InvalidModelFileError(
                f"{folder / CONFIG}: {key}: {pattern!r:.200} is no pattern ({error})"
            ) from None
        if fits:
            if not _is_positive(value):
                raise InvalidModelFileError(
                    f"{folder / CONFIG}: {key}: {pattern!r} is {value!r}, expected a positive "
                    "number"
                )
            return value
    return default


def spelled(name: str) -> str:
    """A name without the parts that wrappers add, by which adapters and checkpoints are matched."""
    return ".".join(part for part in name.split(".") if part not in ("model", "language_model"))


def names_by_spelling(names: Iterator[str]) -> dict[str, list[str]]:
    """A checkpoint's names by what `spelled` makes of them."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(spelled(name), []).append(name)
    return found
