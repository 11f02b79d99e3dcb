"""The models in Anthropic's form, for clients that say so by their version header."""

from collections.abc import Sequence
from typing import Any

from ..listed_models import rfc3339
from ..served import ModelEntry

VERSION_HEADER = "anthropic-version"  # all of Anthropic's clients send it, and no others do


def anthropic_model(name: str, entry: ModelEntry) -> dict[str, Any]:
    """A model by one of its names."""
    created = rfc3339(entry.created)
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def anthropic_list(listed: Sequence[tuple[str, ModelEntry]]) -> dict[str, Any]:
    """All of them, on one page."""
    data = [anthropic_model(name, entry) for name, entry in listed]
    ids = [name for name, _ in listed] or [None]
    return {"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


_TEXT, _NAME = {"type": "string"}, {"type": ["string", "null"]}
ANTHROPIC_MODEL = {
    "type": "object",
    "properties": {
        "type": {"const": "model"},
        "id": _TEXT,
        "display_name": _TEXT,
        "created_at": _TEXT,
    },
    "required": ["type", "id", "display_name", "created_at"],
}
ANTHROPIC_MODELS = {
    "type": "object",
    "properties": {
        "data": {"type": "array", "items": ANTHROPIC_MODEL},
        "has_more": {"type": "boolean"},
        "first_id": _NAME,
        "last_id": _NAME,
    },
    "required": ["data", "has_more", "first_id", "last_id"],
}
