"""All families that are converted, by the classes that config.json names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, UnsupportedModelError
from . import (
    families_bailing,
    families_decoders,
    families_encoders,
    families_experts,
    families_further,
    families_gemma,
    families_gemma4,
    families_older,
    families_sigmoid,
)
from .family import Family

FAMILIES: tuple[Family, ...] = (
    *families_decoders.FAMILIES,
    *families_further.FAMILIES,
    *families_bailing.FAMILIES,
    *families_gemma.FAMILIES,
    *families_gemma4.FAMILIES,
    *families_experts.FAMILIES,
    *families_sigmoid.FAMILIES,
    *families_older.FAMILIES,
    *families_encoders.FAMILIES,
)
BY_CLASS: dict[str, Family] = {name: family for family in FAMILIES for name in family.classes}


def family_of(config: Mapping[str, Any], path: Path) -> tuple[str, Family]:
    """(the class, its family) of config.json, which lies at `path`.

    InvalidModelFileError without a class; UnsupportedModelError for one that is not converted.
    """
    classes = config.get("architectures")
    if isinstance(classes, list) and len(classes) and isinstance(classes[0], str):
        name = classes[0]
    else:
        inner = config.get("text_config")
        if isinstance(inner, Mapping) and inner.get("architectures"):
            return family_of(inner, path)
        raise InvalidModelFileError(
            f"{path}: architectures is {classes!r}, expected the name of the model's class"
        )
    if name not in BY_CLASS:
        near = near_classes(name)
        raise UnsupportedModelError(
            f"{path}: {name} is not converted{f' (near: {near})' if near else ''}; docs/MODELS.md "
            f"lists the {len(BY_CLASS)} classes that are"
        )
    return name, BY_CLASS[name]


def near_classes(name: str) -> str:
    """Up to three classes of like names; what most names end with doesn't count."""
    import difflib

    ends = re.compile(r"(For[A-Z]|LMHead|Model).*")
    causal_last = sorted(BY_CLASS, key=lambda each: (each.endswith("ForCausalLM"), each))
    stems = {ends.sub("", each).lower(): each for each in causal_last}
    found = difflib.get_close_matches(ends.sub("", name).lower()[:100], stems, cutoff=0.7)
    return ", ".join(stems[stem] for stem in found)
