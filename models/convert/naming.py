"""What a model is called: parts of its name, its size, and the file's usual name.

The rules are those of the GGUF naming convention as llama.cpp's gguf-py applies them.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

_VERSION = re.compile(r"(v|iter)?\d+([.]\d+)*", re.IGNORECASE)
_KIND = re.compile(r"i?q\d(_\w)*|b?fp?(16|32)", re.IGNORECASE)
_SIZE = re.compile(
    r"(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl)", re.IGNORECASE
)
_TUNING = re.compile(r"chat|instruct|vision|lora", re.IGNORECASE)
# A README may say anything: no path to another folder, and nothing that no file's name can hold.
_UNFIT = re.compile(r"[\x00-\x1f /]")


class NameParts(NamedTuple):
    """Of `owner/Name-7B-Instruct-v0.1`: the whole name, owner, Name, Instruct, v0.1 and 7B."""

    name: str | None = None
    organization: str | None = None
    basename: str | None = None
    finetune: str | None = None
    version: str | None = None
    size_label: str | None = None


def title(name: str) -> str:
    """Words instead of hyphens, the lower-case ones capitalized but for versions and numbers."""
    words = name.strip().replace("-", " ").split()
    plain = re.compile(r"v\d+(?:\.\d+)*|\d.*")
    return " ".join(w.title() if w.islower() and not plain.fullmatch(w) else w for w in words)


def name_parts(model_id: str, num_parameters: int) -> NameParts:
    """Take a model's id apart. num_parameters: which sizes in the name can be the model's own."""
    if " " in model_id:
        return NameParts(model_id)
    owner, slash, name = model_id.partition("/")
    if not slash:
        owner, name = "", model_id
    if owner.startswith("."):
        owner = ""
    parts: list[list] = []  # [text, what it is], "" for what no rule knows
    for text in filter(None, name.split("-")):
        parts.append(list(_classified(text, not parts, num_parameters)))
    # Words for a size count only where no number gives it.
    if any(kind == "size" and re.search(r"\d", text) for text, kind in parts):
        for part in parts:
            if part[1] == "size" and part[0].isalpha():
                part[1] = ""
    base = _basename_len(parts)
    label = "-".join(dict.fromkeys(t for t, kind in parts if kind == "size")) or None
    finetune = "-".join(
        t for at, (t, kind) in enumerate(parts) if kind == "tuning" or (at >= base and not kind)
    )
    version = "-".join(t for at, (t, kind) in enumerate(parts) if kind == "version" and at >= base)
    basename = "-".join(t for t, _ in parts[:base]) or None
    if not (label or finetune or version):
        basename = None  # too little to tell the parts apart
    return NameParts(name, owner or None, basename, finetune or None, version or None, label)


def _classified(text: str, first: bool, num_parameters: int) -> tuple[str, str]:
    """(the text as it is written, what it is)."""
    if _VERSION.fullmatch(text):
        return text, "version"
    if _KIND.fullmatch(text):
        return text.upper(), "format"
    if not first and _SIZE.fullmatch(text):
        return _size_part(text.replace("_", "."), num_parameters)
    if not first and _TUNING.fullmatch(text):
        return text, "tuning"
    return text, ""


def _size_part(text: str, num_parameters: int) -> tuple[str, str]:
    if text[-1].isdecimal():  # 7b1 is 7.1B
        text = f"{text[:-2]}.{text[-1]}{text[-2]}"
    if len(text) > 1 and text[-2].isdecimal() and text[-1] in "kmbt":
        text = text[:-1] + text[-1].upper()
    try:
        size = float(text[:-1]) * 1000 ** " KMBT".find(text[-1])
    except ValueError:
        return text, "size"
    if num_parameters and abs(size - num_parameters) > 7 * num_parameters // 8:
        return text[:-1] + text[-1].lower(), "tuning"  # a context's length, most likely
    return text, "size"


def _basename_len(parts: Iterable[list]) -> int:
    """Parts of the base name: words and versions at the start, without a last version."""
    parts = list(parts)
    length = 0
    while length < len(parts) and (
        parts[length][1] == "version" or (not parts[length][1] and parts[length][0][0].isalpha())
    ):
        length += 1
    if length == len(parts):
        while length and parts[length - 1][1] == "version":
            length -= 1
    return length


def rounded(count: int) -> str:
    """A number of parameters in at least two digits: 1.5B, 135M."""
    sizes = ((12, "T"), (9, "B"), (6, "M"))
    power, letter = next((size for size in sizes if count > 10 ** size[0]), (3, "K"))
    # Multiplied, as there: halves fall on the same side.
    scaled = count * float(f"1e-{power}")
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{letter}"


def size_label(shapes: dict[str, tuple[int, ...]]) -> str:
    """A label by the tensors' sizes; with experts, 8x7B: their number, and the size of one."""
    shared = one = counts = stacks = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        if "_exps." in name and len(shape) >= 3:
            count = shape[-2 if ".bias" in name else -3]
            one, counts, stacks = one + size // count, counts + count, stacks + 1
        else:
            shared += size
    if stacks and counts // stacks:
        return f"{counts // stacks}x{rounded(shared + one)}"
    return rounded(shared + one)


def file_name(
    name: str | None,
    basename: str | None,
    size: str | None,
    finetune: str | None,
    version: str | None,
    outtype: str,
) -> str:
    """Basename-Size-Finetune-Version-TYPE.gguf."""
    further = [part for part in (size, finetune, version) if part]
    words = [basename or name or "ggml-model", *further, outtype.upper()]
    return f"{'-'.join(_UNFIT.sub('-', word.strip()) for word in words)}.gguf"
