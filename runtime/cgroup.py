"""The control groups that this process is in: where their limits are, from the inside out."""

from collections.abc import Iterator
from pathlib import Path


def read_text(path: Path) -> str | None:
    """A small file's text without its ends; None if it can't be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """A file that holds one whole number; None if it can't be read or holds something else."""
    text = read_text(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def cgroup_folders(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's group and of all groups around it (v2 and v1).

    A limit anywhere on the way up counts. In a container /proc/self/cgroup may name the group as
    the host sees it, which is not there inside: then what the mount shows is the container's own.
    """
    mount = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if hierarchy == "0" and not names:
            tops = [mount, mount / "unified"]
        elif controller in names.split(","):
            tops = [mount / names, mount / controller]
        else:
            continue
        for top in tops:
            if top.is_dir():
                yield from _upwards(top, path)


def _upwards(top: Path, path: str) -> Iterator[Path]:
    parts = [p for p in path.split("/") if p and p != ".."]
    for depth in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:depth])
        if folder.is_dir():
            yield folder
