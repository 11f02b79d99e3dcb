"""The Hugging Face cache on this disk, shared with its other users: find, place, list, remove.

Layout: `models--owner--repo/blobs/ETAG` hold the bytes, `snapshots/COMMIT/PATH` are links to them,
`refs/BRANCH` is the commit of a branch. Read without huggingface_hub, so that a list is instant.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .cache_folder import home, temporary_beside


def hub_cache_dir() -> Path:
    """$HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or ~/.cache with huggingface/hub."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := os.environ.get(variable):
            return Path(folder).expanduser()
    if folder := os.environ.get("HF_HOME"):
        return Path(folder).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else home() / ".cache") / "huggingface" / "hub"


def repo_dir(repo: str) -> Path:
    """The folder of a repository "owner/name"."""
    return hub_cache_dir() / f"models--{repo.replace('/', '--')}"


def lock_path(repo: str, etag: str) -> Path:
    """The lock that huggingface_hub takes, too, while it downloads this blob."""
    return hub_cache_dir() / ".locks" / repo_dir(repo).name / f"{etag}.lock"


def repos() -> Iterator[str]:
    """The repositories in the cache."""
    try:
        names = sorted(path.name for path in hub_cache_dir().glob("models--*--*"))
    except OSError:
        return
    for name in names:
        yield name.removeprefix("models--").replace("--", "/", 1)


def snapshots(repo: str) -> list[Path]:
    """A repository's snapshots: the one that `main` points to first, then the newest."""
    folder = repo_dir(repo)
    try:
        main = (folder / "refs" / "main").read_text().strip()
    except OSError:
        main = ""
    try:
        found = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
        return sorted(found, key=lambda path: (path.name != main, -path.stat().st_mtime))
    except OSError:
        return []


def revision_snapshots(repo: str, revision: str) -> list[Path]:
    """The snapshots that `revision` may mean: all for `main`, else the branch's or commit's own."""
    if revision == "main":
        return snapshots(repo)
    try:
        commit = (repo_dir(repo) / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        commit = revision
    return [path for path in snapshots(repo) if path.name == commit]


def ggufs(snapshot: Path, *, dangling: bool = False) -> dict[str, Path]:
    """The .gguf files of a snapshot by their path in the repository, without links to nothing."""
    found: dict[str, Path] = {}
    for path in sorted(snapshot.rglob("*.gguf")):
        if path.is_file() or (dangling and path.is_symlink()):
            found[path.relative_to(snapshot).as_posix()] = path
    return found


def snapshot_path(repo: str, commit: str, file: str) -> Path:
    """Where a file of a repository lies at a commit."""
    return repo_dir(repo) / "snapshots" / commit / file


def place(repo: str, commit: str, file: str, etag: str) -> Path:
    """Link a finished blob into a snapshot; where it is now."""
    blob = repo_dir(repo) / "blobs" / etag
    path = snapshot_path(repo, commit, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(blob, path.parent)
    if path.is_symlink() and os.readlink(path) == target:
        return path
    new = temporary_beside(path)
    try:
        new.unlink(missing_ok=True)
        new.symlink_to(target)
    except OSError:  # no links here (Windows without the privilege): the snapshot holds the file
        os.replace(blob, new)
    os.replace(new, path)
    return path


def set_ref(repo: str, revision: str, commit: str) -> None:
    """Keep which commit a branch is at."""
    if revision == commit:
        return
    path = repo_dir(repo) / "refs" / revision
    path.parent.mkdir(parents=True, exist_ok=True)
    new = temporary_beside(path)
    new.write_text(commit)
    os.replace(new, path)


def remove_files(repo: str, files: list[str]) -> int:
    """Delete these files from every snapshot, and the blobs that nothing links to any more.

    Returns the bytes freed. Other files of the repository stay; an empty repository goes.
    """
    folder, freed = repo_dir(repo), 0
    blobs: set[Path] = set()
    for snapshot in snapshots(repo):
        for file in files:
            path = snapshot / file
            if path.is_symlink():
                blobs.add(Path(os.path.realpath(path)))
            elif path.is_file():
                freed += path.stat().st_size
            path.unlink(missing_ok=True)
            _remove_empty(path.parent, folder / "snapshots")
    linked = {
        Path(os.path.realpath(p)) for p in (folder / "snapshots").rglob("*") if p.is_symlink()
    }
    for blob in blobs - linked:
        # A link that leads out of this repository's own blobs is not ours to follow.
        if blob.parent == Path(os.path.realpath(folder / "blobs")) and blob.is_file():
            freed += blob.stat().st_size
            blob.unlink()
    if not snapshots(repo):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(lock_path(repo, "any").parent, ignore_errors=True)
    return freed


def _remove_empty(folder: Path, stop: Path) -> None:
    """Remove `folder` and its parents below `stop` as far as they are empty."""
    while folder != stop and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
