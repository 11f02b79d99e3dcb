"""Where compiled kernels lie: the key of their folder, the user's cache, read-only system folders.

A folder's name is a hash of every kernel source, the versions and the target, because Numba's own
cache notices neither an edit in another file nor a changed constant. An object file ends with the
SHA-256 of its code: one that a crash or a full disk cut short is compiled again.

Code is run from these folders. So the system-wide ones, which `llamba kernels build -o` fills and
nothing else ever writes to, count only where nobody but root and we could have written.
"""

import atexit
import contextlib
import json
import os
import stat
import sys
import warnings
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import KernelError
from .target import Target

_PACKAGE = Path(__file__).resolve().parents[1]
_STALE_DAYS = 30
_TABLES = ("grids.py", "iq4_nl.py", "mxfp4.py")  # that kernels hold as constants
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH  # by others than the owner
ABOUT = "about.json"
_FACTS = ("cpu", "isa", "arch", "target", "llamba", "numba", "llvmlite", "python")  # it holds
_KEY_LEN = 24
PATH_VARIABLE = "LLAMBA_KERNEL_PATH"
MODEL, QUANTIZERS = "model", "quantizers"  # families of kernels, each with a key of its own
_not_written: set[Path] = set()  # folders that `writable` has warned of


def symbol(kernel: str) -> str:
    """The exported symbol of a kernel."""
    return "llamba_" + kernel.replace(".", "_").replace(":", "__")


# ---- the key -----------------------------------------------------------------------------------
def family(kernel: str) -> str:
    """Which sources a kernel is made of: "quantizers" or "model". Each family has folders of its
    own, so that an edit in a quantizer doesn't recompile what models run on.
    """
    return QUANTIZERS if kernel.startswith("quant.quantizers.") else MODEL


@lru_cache
def cache_key(wanted: Target, kernels: str = MODEL) -> str:
    """Hash of the kernel sources of a family, the compilers' versions and the target."""
    quant, own = _PACKAGE / "quant", _PACKAGE / "runtime" / "kernels"
    files = [quant / name for name in ("kernel_workers.py", "compiler.py", "target.py", *_TABLES)]
    files += sources(quant / "cpu")
    if kernels == QUANTIZERS:
        files += sources(quant / "quantizers")
    else:
        files += [own / "records.py", *sources(own / "cpu")]
    digest = hashed(files)
    digest.update(f"{version('numba')} {version('llvmlite')} {sys.version_info[:2]}".encode())
    digest.update(f"{wanted.arch} {wanted.cpu} {wanted.features} {wanted.isa}".encode())
    return digest.hexdigest()[:_KEY_LEN]


def gpu_key(architecture: int) -> str:
    """Hash of what the PTX of a GPU's kernels depends on, but for the compilers' versions.

    The sources decide: PTX that was made elsewhere is run by machines that can't compile it.
    """
    digest = hashed(gpu_sources())
    digest.update(f"cuda {architecture}".encode())
    return digest.hexdigest()[:_KEY_LEN]


def gpu_sources() -> list[Path]:
    """The files that PTX depends on; kernels share constants with the modules that launch them."""
    quant, kernels = _PACKAGE / "quant", _PACKAGE / "runtime" / "kernels"
    files = [quant / name for name in ("kernel_workers.py", "compiler.py", *_TABLES)]
    files += [*sources(quant / "cuda"), quant / "cpu" / "vector.py", kernels / "records.py"]
    return [*files, *sources(kernels / "cuda"), *sources(kernels / "cuda" / "launches")]


def versioned(key: str) -> str:
    """A key of the same kind for what these versions of the compilers make of it."""
    versions = f"{key} {version('numba')} {version('llvmlite')} {sys.version_info[:2]}"
    return sha256(versions.encode()).hexdigest()[:_KEY_LEN]


def hashed(files: Sequence[Path]) -> Any:
    """A digest of files' names and bytes, to which more can be added."""
    digest = sha256()
    for file in files:
        with open(file, "rb", buffering=0) as source:
            digest.update(file.name.encode() + b"\0" + source.read() + b"\0")
    return digest


def sources(folder: Path) -> list[Path]:
    """The modules of a folder."""
    return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".py")]


def is_key(name: str) -> bool:
    """Whether a folder of this name may be one of ours: LLAMBA_CACHE can be any folder."""
    return len(name) == _KEY_LEN and set(name) <= set("0123456789abcdef")


@lru_cache
def version(package: str) -> str:
    """An installed package's version, without importing it, nor importlib.metadata (10 ms)."""
    for entry in sys.path:
        with contextlib.suppress(OSError):
            name = package + "-"
            for found in os.listdir(entry or "."):
                if found.startswith(name) and found.endswith(".dist-info"):
                    return found.removeprefix(name).removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as look_up

    try:
        return look_up(package)
    except PackageNotFoundError:
        return "none"


# ---- the user's cache --------------------------------------------------------------------------
def cache_root() -> Path:
    """The folder that holds one directory per (sources, versions, target).

    By the rules of models/cache_folder.py, but kernels do without a home folder.
    """
    if own := os.environ.get("LLAMBA_CACHE"):
        return Path(own).expanduser().absolute() / "kernels"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "llamba" / "kernels"
    try:
        return Path.home() / ".cache" / "llamba" / "kernels"
    except RuntimeError:  # no HOME and no passwd entry
        return _homeless_folder() / "kernels"


@lru_cache
def _homeless_folder() -> Path:
    """A folder below the temporary one. What lies there is run: it must be ours alone."""
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"llamba-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return _temporary_folder()


@lru_cache
def _temporary_folder() -> Path:
    """A folder for this process, which takes it away in the end."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="llamba-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def writable_directory(wanted: Target, kernels: str = MODEL) -> Path:
    """A family's directory, or a temporary one (with a warning) where it can't be written."""
    return writable(cache_root() / cache_key(wanted, kernels), about_target(wanted))


def writable(folder: Path, about: dict[str, str]) -> Path:
    """This folder made ready, or a temporary one (with a warning) where it can't be written."""
    try:
        return prepared(folder, about)
    except OSError as error:
        if folder not in _not_written:  # a GPU's kernels come in several turns
            _not_written.add(folder)
            warnings.warn(
                f"kernels can't be cached in {folder} ({error.strerror}); they are compiled again "
                "at each start. Set LLAMBA_CACHE to a writable folder, or let an administrator run "
                "`llamba kernels build -o FOLDER`.",
                stacklevel=4,
            )
        return _temporary_folder()


def about_target(wanted: Target) -> dict[str, str]:
    """What a directory's note says of a CPU."""
    return {"cpu": wanted.cpu, "isa": wanted.isa, "arch": wanted.arch}


def prepared(folder: Path, about: dict[str, str]) -> Path:
    """A directory for kernels, with a note of what they are for. OSError: it can't be written."""
    import tempfile

    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(folder.stat().st_mode & ~0o022)  # else `distrust` would not let it be used
    with tempfile.TemporaryFile(dir=folder):
        pass
    if not (folder / ABOUT).exists():
        note = {
            **about,
            "llamba": __version__,
            **{name: version(name) for name in ("numba", "llvmlite")},
            "python": "{}.{}".format(*sys.version_info[:2]),
        }
        _write(folder, ABOUT, json.dumps(note).encode())
    return folder


def prune(keep: Path) -> None:
    """Remove the directories of other sources or targets that nothing has loaded for a month."""
    import shutil
    import time

    if keep.parent != cache_root():  # the stand-in for a cache that can't be written
        return
    limit = time.time() - _STALE_DAYS * 86400
    with contextlib.suppress(OSError):  # another process may be at it, too
        for folder in keep.parent.iterdir():
            if folder == keep or not is_key(folder.name) or folder.is_symlink():
                continue
            if folder.is_dir() and folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)


# ---- folders for all users ---------------------------------------------------------------------
def system_roots() -> list[Path]:
    """Folders as of `cache_root` that an administrator may have filled, the first one first."""
    own = [entry for entry in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if entry]
    usual = ["/usr/share", "/usr/local/share", os.path.join(sys.prefix, "share")]
    roots = [*own, *(os.path.join(base, "llamba", "kernels") for base in usual)]
    return [Path(root) for root in dict.fromkeys(roots)]


def system_directories(wanted: Target, kernels: str = MODEL) -> list[Path]:
    """The directories for this target, these sources and versions that may be loaded from.

    Warns of one that anybody could have written to, and of a root in the variable that is none.
    They are named without links: nobody can lead those elsewhere after they were looked at.
    """
    return trusted_directories(cache_key(wanted, kernels))


def trusted_directories(key: str) -> list[Path]:
    """The directories of this key for all users, as `system_directories` says."""
    found = []
    for root in system_roots():
        folder = Path(os.path.realpath(root / key))
        if os.path.isdir(folder):  # Path.is_dir raises where a folder above can't be entered
            if (why := distrust(folder)) is None:
                found.append(folder)
            else:
                warnings.warn(f"kernels in {folder} are not used: {why}", stacklevel=4)
    for root in os.environ.get(PATH_VARIABLE, "").split(os.pathsep):
        if root and not os.path.isdir(root):
            warnings.warn(f"{PATH_VARIABLE}: {root} is not a folder", stacklevel=4)
    return found


def distrust(path: Path) -> str | None:
    """Why code from this file or folder is not run: somebody else could have put it there.

    It must belong to root or to us and be writable by its owner alone; the folders above it must
    not let everybody put something else in its place.
    """
    if os.name != "posix":
        return None
    real = Path(os.path.realpath(path))
    for each in (real, *real.parents):
        try:
            found = os.stat(each)
        except OSError as error:
            return f"{each}: {error.strerror}"
        if not _is_ours(found):
            return f"{each} belongs to another user (number {found.st_uid})"
        sticky = each != real and found.st_mode & stat.S_ISVTX
        if found.st_mode & (_WRITABLE if each == real else stat.S_IWOTH) and not sticky:
            return f"others may write to {each} (chmod go-w)"
    return None


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())


# ---- object files ------------------------------------------------------------------------------
def write_object(folder: Path, kernel: str, code: bytes, suffix: str = ".o") -> None:
    """Put a kernel's object code into a cache directory, all of it or nothing."""
    _write(folder, symbol(kernel) + suffix, code + sha256(code).digest())


def _write(folder: Path, name: str, data: bytes) -> None:
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f"{os.getpid()}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, 0o644)  # other users may load what one of them has prepared
        os.replace(temporary, folder / name)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):  # the disk is full
            raise OSError(error.errno, error.strerror, str(folder)) from error
        raise


def forget(folder: Path, process: int) -> None:
    """Remove what a process that was killed had not finished writing."""
    for file in folder.glob(f"{process}-*.tmp"):
        with contextlib.suppress(OSError):
            file.unlink()


def read_object(
    folder: Path, kernel: str, *, shared: bool = False, suffix: str = ".o"
) -> bytes | None:
    """A kernel's object code from a cache directory; None when it is absent or damaged.

    shared: the directory is for all users: a file that others could have written counts for none.
    """
    try:
        with open(folder / (symbol(kernel) + suffix), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if shared and os.name == "posix":
                if found.st_mode & _WRITABLE or not _is_ours(found):
                    return None
            data = file.read()
    except OSError:
        return None
    code, digest = data[:-32], data[-32:]
    return code if sha256(code).digest() == digest else None


def find(kernels: Sequence[str], wanted: Target) -> dict[str, bytes | None]:
    """The object code of one family's kernels: the system's, the user's, or None."""
    codes: dict[str, bytes | None] = dict.fromkeys(kernels)
    of = family(kernels[0]) if kernels else MODEL
    own = cache_root() / cache_key(wanted, of)
    for folder in (*system_directories(wanted, of), own):
        for kernel in [k for k, code in codes.items() if code is None]:
            codes[kernel] = read_object(folder, kernel, shared=folder != own)
    return codes


def describe(folder: Path) -> dict[str, Any]:
    """What a directory of a root says of itself, with the number and the bytes of its kernels."""
    about: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        read = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if isinstance(read, dict):
            about = {k: v for k, v in read.items() if k in _FACTS and isinstance(v, str)}
    files = [*folder.glob("*.o"), *folder.glob("*.ptx")]
    sizes = [file.stat().st_size for file in files]
    return {**about, "kernels": len(sizes), "bytes": sum(sizes)}


def checked_writable(root: Path, key: str, about: dict[str, str]) -> Path:
    """A root of -o, made ready for kernels of this key. KernelError: it can't be written."""
    try:
        return prepared(root / key, about)
    except OSError as error:
        raise KernelError(f"kernels can't be written to {root}: {error.strerror}") from None
