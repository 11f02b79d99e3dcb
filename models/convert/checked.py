"""The planned file looked at with the engine's own eyes, before any of it is written."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import InvalidModelFileError
from ..gguf_types import TensorInfo
from ..hyperparameters import read_hyperparameters
from ..resolving import architecture_of, resolve_architecture
from ..tensor_plan import expected_tensors, fits, lacks_weight
from ..weights import Weights
from .config import Config
from .family import Family
from .plan import Planned

if TYPE_CHECKING:
    from ..gguf import GGUFFile

TYPE_IDS = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30, "MXFP4": 39}
Value = tuple[str, Any]  # (a type of KINDS, the value, or a list of values)


def check_runs(
    folder: Path, family: Family, metadata: Mapping[str, Value], planned: list[Planned]
) -> None:
    """Raise what the engine would say of the file, in the checkpoint's names where it can.

    InvalidModelFileError: a tensor is missing, or its shape doesn't fit config.json.
    UnsupportedModelError: a model of a kind that is not run.
    """
    file = cast("GGUFFile", _standing_in(folder, metadata, planned))
    architecture = resolve_architecture(architecture_of(file), file)
    numbers = read_hyperparameters(architecture, file)
    present = {entry.name: entry for entry in planned}
    for name, shape, needed in expected_tensors(architecture, numbers, present):
        if (entry := present.get(name)) is None:
            if needed:
                raise InvalidModelFileError(
                    f"{folder}: tensor {_checkpoint_name(family, name)} is missing ({name} in GGUF)"
                )
        elif not fits(name, entry.shape, shape):
            raise InvalidModelFileError(
                f"{folder}: tensor {entry.source} would have shape {entry.shape} as {name}, "
                f"config.json asks for {shape}"
            )
        elif (weight := lacks_weight(name, present)) is not None:
            raise InvalidModelFileError(
                f"{folder}: tensor {_checkpoint_name(family, weight)} is missing, "
                f"{entry.source} is there without it"
            )
    Weights.open(file)


def check_layers(folder: Path, family: Family, config: Config, planned: list[Planned]) -> None:
    """Raise for tensors without which, or with which, the model would silently be another one.

    InvalidModelFileError: the family's layer_tensors are not fulfilled.
    """
    present = {entry.name: entry for entry in planned}
    for layer in range(config.layers if family.layer_tensors else 0):
        assert family.layer_tensors is not None
        for ours, needed in family.layer_tensors(config, layer).items():
            entry = present.get(name := f"blk.{layer}.{ours}")
            if needed and entry is None:
                raise InvalidModelFileError(
                    f"{folder}: tensor {_checkpoint_name(family, name)} is missing ({name} in GGUF)"
                )
            if entry is not None and not needed:
                raise InvalidModelFileError(
                    f"{folder}: tensor {entry.source} is in a layer that, by config.json, has no "
                    f"such one ({name} in GGUF): the model's own code wouldn't read it"
                )


def _standing_in(
    folder: Path, metadata: Mapping[str, Value], planned: list[Planned]
) -> SimpleNamespace:
    """What the engine reads of an open file."""
    values = {}
    for key, (kind, value) in metadata.items():
        numbers = isinstance(value, list) and kind != "str"
        values[key] = np.array(value, bool if kind == "bool" else None) if numbers else value
    tensors = {
        entry.name: TensorInfo(
            entry.name,
            TYPE_IDS[entry.form],
            entry.shape,
            0,
            np.empty(0, np.uint8) if entry.made is None else entry.made.view(np.uint8),
        )
        for entry in planned
    }
    return SimpleNamespace(path=folder, metadata=values, tensors=tensors)


def _checkpoint_name(family: Family, name: str) -> str:
    """What the checkpoint would call a tensor of the file."""
    stem, _, kind = name.rpartition(".")
    parts = stem.split(".")
    layer = parts[1] if parts[0] == "blk" else ""
    wanted = ".".join(["blk", "{}", *parts[2:]]) if layer else stem
    found: dict[str, str] = {}
    for theirs, target in family.tensors.items():
        for piece in target if isinstance(target, tuple) else (target,):
            if piece is not None:
                found.setdefault(piece if isinstance(piece, str) else piece.name, theirs)
    if (theirs := found.get(f"{wanted}.{kind}")) is None:  # such as a scale, which is no weight
        if wanted not in found:
            return name
        theirs = f"{found[wanted]}.{kind}"
    return theirs.replace("{}", layer).replace("{e}", "0")
