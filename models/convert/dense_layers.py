"""The dense layers that sentence-transformers keeps beside a model, on top of its pooled vector."""

import json
from pathlib import Path

from ...errors import InvalidModelFileError, ModelNotFoundError, UnsupportedModelError
from .checkpoint import read_json
from .family import Piece
from .metadata import Value
from .plan import Part, Planned
from .safetensors_file import read_header

NAMES = ("dense_2.weight", "dense_3.weight")  # GGUF's, in the order in which they are applied


def dense_layers(folder: Path) -> list[Planned]:
    """The matrices of modules.json's Dense modules; none where it is missing or has none.

    ModelNotFoundError: a module's file is missing. UnsupportedModelError: more than two, or layers
    with a bias or an activation.
    """
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        paths = [str(m["path"]) for m in modules if m["type"].endswith("Dense")]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidModelFileError(
            f"{folder}/modules.json: not a list of modules ({error})"
        ) from None
    if len(paths) > len(NAMES):
        raise UnsupportedModelError(f"{folder}/modules.json: more than two Dense modules")
    return [_layer(folder, path, name) for path, name in zip(paths, NAMES, strict=False)]


def _layer(folder: Path, path: str, name: str) -> Planned:
    place = folder / path
    if not place.resolve().is_relative_to(folder.resolve()):
        raise InvalidModelFileError(f"{folder}/modules.json: {path!r} lies outside of the folder")
    activation = str(read_json(place / "config.json").get("activation_function", "Identity"))
    if not activation.endswith("Identity"):
        raise UnsupportedModelError(f"{place}/config.json: {activation} isn't run, only Identity")
    file = place / "model.safetensors"
    if not file.is_file():
        raise ModelNotFoundError(f"{file} is missing, which modules.json names")
    tensors = read_header(file)
    if set(tensors) != {"linear.weight"}:
        raise UnsupportedModelError(
            f"{file}: {', '.join(sorted(tensors))}, where only linear.weight is run"
        )
    stored = tensors["linear.weight"]
    return Planned(name, {-1: Part(stored, Piece(name))}, shape=stored.shape)


def dense_values(architecture: str, layers: list[Planned]) -> dict[str, Value]:
    """Their sizes as keys."""
    values: dict[str, Value] = {}
    for layer in layers:
        stem = f"{architecture}.{layer.name.removesuffix('.weight')}_feat"
        values[f"{stem}_in"] = ("u32", layer.shape[-1])
        values[f"{stem}_out"] = ("u32", layer.shape[0])
    return values
