"""All of a file's metadata, as typed values and as pairs to be written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, ModelNotFoundError, UnsupportedModelError
from ..gguf_pairs import Pair, array_pair, pair
from .checkpoint import read_json
from .config import Config
from .family import Family

Value = tuple[str, Any]  # (a type of KINDS, the value, or a list of values)

_POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}


def architecture_values(
    folder: Path, family: Family, config: Config, class_name: str
) -> dict[str, Value]:
    """The keys that begin with the architecture's name."""
    values: dict[str, Value] = {}
    for key in family.keys:
        if (value := key.value(config)) is not None:
            values[f"{family.architecture}.{key.name}"] = (
                key.kind,
                _checked(config, key.name, key.kind, value),
            )
    if family.pooled and (pooling := _pooling(folder)) is not None:
        values[f"{family.architecture}.pooling_type"] = ("u32", pooling)
    return values


def _checked(config: Config, name: str, kind: str, value: Any) -> Any:
    """A value of config.json as its type asks for it."""
    items = value if isinstance(value, list | tuple) else [value]
    for item in items:
        whole = isinstance(item, int) and not isinstance(item, bool)
        sound = {
            "str": isinstance(item, str),
            "bool": isinstance(item, bool),
            "f32": whole or isinstance(item, float),
        }.get(kind, whole or (isinstance(item, float) and item.is_integer()))
        if not sound:
            raise config.invalid(name, item, f"a value of type {kind}")
    if kind in ("u32", "i32"):
        items = [int(item) for item in items]
        if kind == "u32" and any(not 0 <= item < 1 << 32 for item in items):
            raise config.invalid(name, value, "a whole number that isn't negative")
    return list(items) if isinstance(value, list | tuple) else items[0]


def _pooling(folder: Path) -> int | None:
    """How sentence-transformers makes one vector of a text, by modules.json and its folder."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        chosen = next((m["path"] for m in modules if m["type"].endswith("Pooling")), None)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidModelFileError(f"{path}: not a list of modules ({error})") from None
    if chosen is None:
        return None
    place = folder / str(chosen) / "config.json"
    if not place.resolve().is_relative_to(folder.resolve()):
        raise InvalidModelFileError(f"{path}: {chosen!r} lies outside of the folder")
    try:
        pooling = read_json(place)
    except ModelNotFoundError:
        raise ModelNotFoundError(f"{place} is missing, which modules.json names") from None
    for key, kind in (("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "lasttoken")):
        if pooling.get(f"pooling_mode_{key}"):
            return _POOLING[kind]
    if pooling.get("pooling_mode") in _POOLING:
        return _POOLING[pooling["pooling_mode"]]
    raise UnsupportedModelError(f"{place}: no pooling that is run (only {', '.join(_POOLING)})")


def to_pairs(values: Mapping[str, Value]) -> list[Pair]:
    """What is written; numbers in arrays that have no type of their own are i32."""
    pairs = []
    for key, (kind, value) in values.items():
        if isinstance(value, list):
            pairs.append(array_pair(key, "i32" if kind == "u32" else kind, value))
        else:
            pairs.append(pair(key, kind, value))
    return pairs
