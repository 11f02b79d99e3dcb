"""Models of the Hugging Face hub: `hf:owner/repo[:quant]`, `hf:owner/repo/file.gguf`, or its URL.

huggingface_hub (the extra `hub`) lists repositories and knows tokens and endpoints; a model that is
in its cache already needs neither it nor the network.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DownloadError, LlambaError, ModelError, ModelNotFoundError
from . import hub_cache
from .cache_folder import Progress, cache_dir, exclusive, require_space, writing
from .hub_names import PREFERRED, Reference, choices, choose, matching, models_of, parse, tag_of

if TYPE_CHECKING:
    from .hub_api import Repository

__all__ = [
    "Cached",
    "Reference",
    "find_cached",
    "list_cached",
    "parse",
    "pull",
    "remove",
    "resolve",
]

_VARIABLE = "HF_HOME"


@dataclass(frozen=True)
class Cached:
    """A model in the hub's cache: its name, its first file, the size of all its files."""

    name: str
    path: Path
    num_bytes: int


def resolve(reference: Reference, progress: Progress | None = None) -> Path:
    """The model's first file: from the cache when it is there, else from the hub.

    A name without a quantization is looked up at the hub once, and then means what it meant then:
    what else happens to be cached must not change it. DownloadError, ModelNotFoundError.
    """
    if found := find_cached(_pinned(reference)):
        return found
    try:
        return pull(reference, progress)
    except DownloadError:
        if found := find_cached(reference):
            return found
        raise


def pull(reference: Reference, progress: Progress | None = None) -> Path:
    """Fetch all files of the model into the hub's cache; the path of the first (P14)."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        if found := find_cached(reference):
            return found
        raise DownloadError(
            f"{reference} is not in the cache {hub_cache.hub_cache_dir()}, and HF_HUB_OFFLINE is "
            "set: unset it to pull the model"
        )
    from .hub_api import Repository

    repository = Repository(reference)
    sizes = repository.sizes
    files = choose(sizes, reference)
    total, done = sum(sizes[file] for file in files), 0

    def report(now: int) -> None:
        if progress:
            progress("download", done + now, total)

    with writing(hub_cache.hub_cache_dir(), _VARIABLE):
        paths = []
        for file in files:
            paths.append(_fetch(repository, reference, file, report, progress))
            done += sizes[file]
            report(0)
        hub_cache.set_ref(reference.repo, reference.revision, repository.commit)
    if _is_plain(reference):
        with contextlib.suppress(OSError, ModelError):  # it only saves a question to the hub
            _choice_path(reference).parent.mkdir(parents=True, exist_ok=True)
            _choice_path(reference).write_text(files[0])
    return paths[0]


def _fetch(
    repository: "Repository",
    reference: Reference,
    file: str,
    report: Callable[[int], None],
    progress: Progress | None,
) -> Path:
    """One file into its place in the cache, unless it is there."""
    from . import transfer  # brings the HTTP client

    remote = repository.file(file)
    blob = hub_cache.repo_dir(reference.repo) / "blobs" / remote.etag
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock = hub_cache.lock_path(reference.repo, remote.etag)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(lock, progress):
        path = hub_cache.snapshot_path(reference.repo, repository.commit, file)
        there = blob if blob.exists() else path  # a copy where the system has no links
        if not there.is_file() or there.stat().st_size != remote.num_bytes:
            rest = remote.num_bytes - transfer.bytes_kept(blob)
            require_space(blob.parent, rest, str(reference), _VARIABLE)
            transfer.fetch(
                remote.url,
                blob,
                num_bytes=remote.num_bytes,
                checksum=remote.checksum,
                authorization=repository.authorization(remote.url),
                progress=report,
            )
        if blob.exists():
            hub_cache.place(reference.repo, repository.commit, file, remote.etag)
        return path


def _is_plain(reference: Reference) -> bool:
    return not reference.quant and not reference.file and reference.revision == "main"


def _choice_path(reference: Reference) -> Path:
    return cache_dir() / "hub" / reference.repo.replace("/", "--")


def _pinned(reference: Reference) -> Reference:
    """A plain name as the file that it meant when it was pulled, or as the preferred one."""
    if not _is_plain(reference):
        return reference
    try:
        return reference._replace(file=_choice_path(reference).read_text())
    except (OSError, ValueError, ModelError):
        return reference._replace(quant=PREFERRED[0])


def find_cached(reference: Reference) -> Path | None:
    """The model's first file in the cache, if all of its files are there. No network."""
    for snapshot in hub_cache.revision_snapshots(reference.repo, reference.revision):
        present = hub_cache.ggufs(snapshot)
        try:
            return present[choose(present, reference)[0]]
        except LlambaError:  # not there, or not all of its shards
            continue
    return None


def list_cached() -> list[Cached]:
    """The complete models in the hub's cache, each repository's by its newest snapshot."""
    found: dict[str, Cached] = {}
    for repo in hub_cache.repos():
        for snapshot in hub_cache.snapshots(repo):
            present = hub_cache.ggufs(snapshot)
            models = models_of(present)
            tags = [tag_of(model[0]) for model in models]
            for model, tag in zip(models, tags, strict=True):
                if not all(file in present for file in model):
                    continue
                unique = tag and tags.count(tag) == 1
                name = f"hf:{repo}:{tag}" if unique else f"hf:{repo}/{model[0]}"
                num_bytes = sum(present[file].stat().st_size for file in model)
                found.setdefault(name, Cached(name, present[model[0]], num_bytes))
    return list(found.values())


def remove(reference: Reference) -> int:
    """Delete the model's files and blobs from the hub's cache; the bytes freed.

    Without a quantization the repository must hold one model only. ModelNotFoundError.
    """
    present: dict[str, Path] = {}
    for snapshot in hub_cache.snapshots(reference.repo):
        present |= hub_cache.ggufs(snapshot, dangling=True)
    if not present:
        raise ModelNotFoundError(f"{reference} is not in the cache {hub_cache.hub_cache_dir()}")
    models = matching(present, reference)
    if len(models) != 1:
        raise ModelNotFoundError(
            f"{reference}: {len(models)} models of this repository in the cache fit, "
            f"name one of: {choices(present)}"
        )
    return hub_cache.remove_files(reference.repo, models[0])
