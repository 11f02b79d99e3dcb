"""What a name of the hub means: its parts, and the files of a repository that it chooses."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import DownloadError, ModelNotFoundError
from .gguf_names import shard_paths

_NAME = re.compile(
    r"(?:hf:(?://)?|(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/)"
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^:?]+))?(?::(?P<quant>[\w.-]+))?(?:\?.*)?"
)
_PAGE = re.compile(r"(?:blob|resolve|tree|raw)/(?P<revision>[\w-][\w.-]*)(?:/(?P<file>.*))?")
_TAG = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\w+|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))(?=$|[-./])",
    re.IGNORECASE,
)
PREFERRED = ("q4_k_m", "q8_0")


class Reference(NamedTuple):
    """What a name asks for: a repository, and a quantization or a file in it, or neither."""

    repo: str
    quant: str = ""
    file: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (
            f"/{self.file}" if self.file else self.quant and f":{self.quant}"
        )


def parse(name: str) -> Reference | None:
    """The reference that a name or address of the hub is; None for any other kind of name."""
    match = _NAME.fullmatch(name)
    if not match:
        if name.startswith("hf:"):
            raise ModelNotFoundError(f"{name}: expected hf:owner/repo[:quant]")
        if re.match(r"https?://", name):
            raise ModelNotFoundError(
                f"{name}: only addresses of huggingface.co are fetched; "
                "download the file and pass its path"
            )
        return None
    repo, file, revision = match["repo"], unquote(match["file"] or ""), "main"
    if page := _PAGE.fullmatch(file):  # blob/ is the web page, the file itself is meant (P15)
        revision, file = page["revision"], page["file"] or ""
    if file and not file.endswith(".gguf"):
        raise ModelNotFoundError(f"{name}: {file} is not a .gguf file; write hf:{repo}[:quant]")
    return Reference(repo, match["quant"] or "", file, revision)


def choose(files: Iterable[str], reference: Reference) -> list[str]:
    """The files, all shards in order, of the one model among `files` that `reference` means.

    ModelNotFoundError: none or several; the message lists what there is. DownloadError: a shard is
    missing.
    """
    names = set(files)
    models = models_of(names)
    if not models:
        raise ModelNotFoundError(f"{reference}: there is no .gguf file in this repository")
    fitting = matching(names, reference)
    if not reference.quant and not reference.file and len(fitting) > 1:
        preferred = (matching(names, reference._replace(quant=tag)) for tag in PREFERRED)
        fitting = next((found for found in preferred if found), fitting)
    if len(fitting) != 1:
        what = "several models fit" if fitting else "there is no such model in this repository"
        raise ModelNotFoundError(f"{reference}: {what}; choose one of: {choices(names)}")
    missing = [file for file in fitting[0] if file not in names]
    if missing:
        raise DownloadError(f"{reference}: the repository lacks the shard {missing[0]}")
    return fitting[0]


def matching(files: Iterable[str], reference: Reference) -> list[list[str]]:
    """The models that fit: by file, by exact quantization, else by a part of the name."""
    files = set(files)
    if reference.file:
        own = [f for f in files if reference.file in (f, f.rpartition("/")[2])]
        return [_shards(file) for file in own]
    models, quant = models_of(files), reference.quant.casefold()
    if not quant:
        return models
    exact = [model for model in models if tag_of(model[0]).casefold() == quant]
    part = re.compile(rf"(?:^|[-./]){re.escape(quant)}(?:$|[-./])", re.IGNORECASE)
    return exact or [model for model in models if part.search(model[0])]


def models_of(files: Iterable[str]) -> list[list[str]]:
    """The models among the files, each as all of its shards; no vision towers, no matrices."""
    found = {}
    for file in sorted(files):
        base = file.rpartition("/")[2].lower()
        if base.endswith(".gguf") and "mmproj" not in base and "imatrix" not in base:
            shards = _shards(file)
            found[shards[0]] = shards
    return list(found.values())


def _shards(file: str) -> list[str]:
    return [path.as_posix() for path in shard_paths(Path(file))]


def tag_of(file: str) -> str:
    """The quantization that a file's name ends with, "" when it names none."""
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", file.rpartition("/")[2])
    tags = _TAG.findall(stem)
    return tags[-1] if tags else ""


def choices(files: Iterable[str], most: int = 24) -> str:
    """The models to choose from, for a message: by quantization where that tells them apart."""
    models = models_of(files)
    tags = [tag_of(model[0]) for model in models]
    plain = all(tags) and len(set(tags)) == len(tags)
    shown = tags if plain else [model[0] for model in models]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
