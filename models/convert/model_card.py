"""The head of a model's README.md: the few lines of YAML that a conversion takes over."""

import re
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?:\s+(.*))?$")


def read_model_card(folder: Path) -> dict[str, str | list[str]]:
    """Texts, and lists of texts, of the front matter; what is nested deeper is left out.

    A README that is missing, or can't be read, or has no front matter, says nothing.
    """
    try:
        with (folder / "README.md").open("rb") as file:
            lines = file.read(_MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        return {}
    found: dict[str, Any] = {}
    current = ""
    for line in lines[1 : lines.index("---", 1)]:
        line = line.replace("\t", "  ")
        item = re.match(r"\s*-\s+(.*)$", line)
        if (match := _KEY.match(line)) is not None:
            current = match[1]
            found[current] = _inline(match[2] or "")
        elif item and current and not found[current] and found[current] != []:
            found[current] = [_scalar(item[1])]
        elif item and current and isinstance(found[current], list):
            found[current].append(_scalar(item[1]))
        elif line.strip() and not line.lstrip().startswith("#"):
            found.pop(current, None)  # nested deeper, or text over several lines
            current = ""
    return {key: value for key, value in found.items() if value not in (None, "", "null", "~")}


def _inline(text: str) -> str | list[str]:
    """A value behind its key: a text, or [a, b]."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(part) for part in text[1:-1].split(",") if part.strip()]
    return _scalar(text)


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return re.sub(r"\s+#.*$", "", text)
