"""The keys that say what a file is: `general.*`, from the folder's name, README and configs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, ModelNotFoundError
from .checkpoint import read_json
from .model_card import read_model_card
from .naming import NameParts, name_parts, size_label, title

Value = tuple[str, Any]

# general.file_type, by the format of most tensors.
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32, "MXFP4_MOE": 38}
QUANTIZATION_VERSION = 2

# Keys of the README's head -> GGUF's; the first that is there counts.
_CARD = {
    "name": ("name", "model_name"),
    "author": ("author", "model_author", "model_creator"),
    "version": ("version", "model_version"),
    "organization": ("organization", "model_organization"),
    "finetune": ("finetune", "model_finetune"),
    "basename": ("basename", "model_basename", "model_type"),
    "description": ("description", "model_description"),
    "size_label": ("size_label", "model_size_label"),
    "license": ("license",),
    "license.name": ("license_name",),
    "license.link": ("license_link",),
    "source.url": ("url", "model_url"),
    "source.doi": ("doi", "model_doi"),
    "source.uuid": ("uuid", "model_uuid"),
    "source.repo_url": ("repo_url", "model_repo_url"),
}
_FLOAT32_LIMIT = 3.4e38
_PARTS = ("organization", "basename", "finetune", "version", "size_label")
_ORDER = (
    "name", "author", "version", "organization", "finetune", "basename", "description",
    "size_label", "license", "license.name", "license.link", "source.url", "source.doi",
    "source.uuid", "source.repo_url",
)  # fmt: skip
# generation_config.json's keys -> general.sampling.*
_SAMPLING = {
    "top_k": ("i32", ("top_k",)),
    "top_p": ("f32", ("top_p",)),
    "min_p": ("f32", ("min_p",)),
    "xtc_probability": ("f32", ("xtc_probability",)),
    "xtc_threshold": ("f32", ("xtc_threshold",)),
    "temp": ("f32", ("temperature",)),
    "penalty_last_n": ("i32", ("penalty_last_n",)),
    "penalty_repeat": ("f32", ("penalty_repeat", "repetition_penalty")),
    "mirostat": ("i32", ("mirostat",)),
    "mirostat_tau": ("f32", ("mirostat_tau",)),
    "mirostat_eta": ("f32", ("mirostat_eta",)),
}


def general_values(
    folder: Path,
    config: Mapping[str, Any],
    shapes: dict[str, tuple[int, ...]],
    *,
    architecture: str,
    name: str | None = None,
) -> dict[str, Value]:
    """The keys but for the file's type.

    shapes: of the file's tensors, for its size. name: instead of what the folder says.
    """
    card = read_model_card(folder)
    texts = _texts(folder, config, card, sum(map(_product, shapes.values())))
    if name is not None:
        texts["name"] = name
    texts.setdefault("size_label", size_label(shapes))
    values: dict[str, Value] = {
        "general.architecture": ("str", architecture),
        "general.type": ("str", "model"),
    }
    values |= _sampling(folder)
    values |= {f"general.{key}": ("str", texts[key]) for key in _ORDER if key in texts}
    total = sum(map(_product, shapes.values()))
    values |= _ancestors(
        "base_model", card, ("base_model", "base_models", "base_model_sources"), total
    )
    values |= _ancestors("dataset", card, ("datasets", "dataset", "dataset_sources"), total)
    for key, sources in (
        ("general.tags", ("tags", "pipeline_tag")),
        ("general.languages", ("languages", "language")),
    ):
        if items := [item for source in sources for item in _listed(card.get(source))]:
            values[key] = ("str", items)
    return values


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _listed(value: object) -> list[str]:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []


def _texts(
    folder: Path, config: Mapping[str, Any], card: Mapping[str, Any], total: int
) -> dict[str, str]:
    """What README.md says, else config.json's own name of it, else the folder's name."""
    texts: dict[str, str] = {}
    for key, sources in _CARD.items():
        if (value := next((card[s] for s in sources if s in card), None)) is not None:
            texts[key] = ",".join(value) if isinstance(value, list) else value
    ids = [folder.resolve().name]
    path = config.get("_name_or_path")
    if isinstance(path, str) and path and path.count("/") <= 1:  # a name, not a path somewhere
        ids.insert(0, path)
    for model_id in ids:
        parts = name_parts(model_id, total)
        if parts.name:
            texts.setdefault("name", title(parts.name))
        for key in _PARTS:
            value = getattr(parts, key)
            if value is not None:
                texts.setdefault(key, title(value) if key == "organization" else value)
    return texts


def _sampling(folder: Path) -> dict[str, Value]:
    try:
        given = read_json(folder / "generation_config.json")
    except (ModelNotFoundError, InvalidModelFileError):
        return {}
    values: dict[str, Value] = {}
    for key, (kind, sources) in _SAMPLING.items():
        value = next((given[s] for s in sources if given.get(s) is not None), None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if kind == "i32" and value == value // 1 and abs(value) < 1 << 31:
                values[f"general.sampling.{key}"] = (kind, int(value))
            elif kind == "f32" and abs(value) < _FLOAT32_LIMIT:
                values[f"general.sampling.{key}"] = (kind, value)
    return values


def _ancestors(
    what: str, card: Mapping[str, Any], sources: tuple[str, ...], total: int
) -> dict[str, Value]:
    """The models or data sets that a model was made from, numbered."""
    ids = _listed(next((card[s] for s in sources if s in card), None))
    if not ids:
        return {}
    values: dict[str, Value] = {f"general.{what}.count": ("u32", len(ids))}
    for number, model_id in enumerate(ids):
        url = model_id if re.match(r"(https?|ssh)://", model_id) else None
        if url is not None:
            match = re.fullmatch(r"https?://huggingface\.co/([^/]+/[^/]+)", url)
            parts = name_parts(match[1], total) if match else NameParts()
        else:
            parts = name_parts(model_id, total)
            if parts.organization and parts.name:
                url = f"https://huggingface.co/{parts.organization}/{parts.name}"
        found = {
            "name": parts.name and title(parts.name),
            "version": parts.version,
            "organization": parts.organization and title(parts.organization),
            "repo_url": url,
        }
        values |= {f"general.{what}.{number}.{k}": ("str", v) for k, v in found.items() if v}
    return values
