"""The cache of compiled kernels: hits, keys, damage, races, and errors that can be read."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llamba.errors import KernelError
from llamba.models.cache_folder import cache_dir
from llamba.quant import jit, kernel_cache
from llamba.quant.target import Target, target

TESTS = Path(__file__).parents[1]
KERNELS = ["runtime.kernels.cpu.gather:gather_rows", "runtime.kernels.cpu.gather:gather_lanes"]

# Loads two kernels, runs one of them, and tells what happened.
SCRIPT = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
from llamba.quant import jit
kernels, told = sys.argv[2:], []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    jit.load(kernels, progress=lambda done, total: told.append((done, total)))
    warned = [str(w.message) for w in caught]
import numpy as np, rig
from llamba.runtime.kernels.records import GATHER
x = np.arange(96, dtype=np.float32).reshape(3, 32)
r, out = rig.Rig(), rig.Fenced((2, 32))
r.set_step(num_outputs=2, out_rows=np.array([2, 0]))
r.run("gather:gather_rows", GATHER, "num_outputs", x=r.last(x), x_stride=128, columns=32,
      out=out.at, out_stride=128)
assert (out.array == x[[2, 0]]).all()
numba = "numba" in sys.modules
print(json.dumps({"told": told, "warned": warned, "numba": numba}))
"""

Run = Callable[..., dict[str, Any]]


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(TESTS), *KERNELS]
    return subprocess.Popen(
        command,
        env=dict(os.environ, LLAMBA_CACHE=str(cache), **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that a first process has filled; for copying."""
    cache = tmp_path_factory.mktemp("cache")
    first = finish(start(cache))
    assert not first["warned"]
    assert first["told"] == [[0, 2], [1, 2], [2, 2]]
    return cache


@pytest.fixture
def cache(filled: Path, tmp_path: Path) -> Path:
    """A copy of the filled cache."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def objects(cache: Path) -> list[Path]:
    return sorted((cache / "kernels").glob("*/*.o"))


@pytest.mark.kernels
def test_a_second_process_compiles_nothing(cache: Path) -> None:
    before = [(f.name, f.read_bytes(), f.stat().st_mtime_ns) for f in objects(cache)]
    assert [name for name, _, _ in before] == sorted(f"{kernel_cache.symbol(k)}.o" for k in KERNELS)
    second = finish(start(cache))
    assert second == {"told": [], "warned": [], "numba": False}
    assert [(f.name, f.read_bytes(), f.stat().st_mtime_ns) for f in objects(cache)] == before


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "short": lambda data: data[:20],
    "half": truncate,
    "one byte less": lambda data: data[:-1],
    "one bit": flip,
    "garbage": lambda data: b"\x7fELF" + bytes(len(data)),
    "longer": lambda data: data + b"\0",
}


@pytest.mark.kernels
def test_a_damaged_file_is_compiled_again(cache: Path) -> None:
    first, second = objects(cache)
    good = first.read_bytes()
    first.write_bytes(flip(good))
    again = finish(start(cache))
    assert again["told"] == [[0, 1], [1, 1]]
    assert first.read_bytes() == good  # compilation is deterministic
    assert finish(start(cache))["told"] == []


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_noticed(tmp_path: Path, how: str) -> None:
    kernel_cache.write_object(tmp_path, KERNELS[0], b"\x7fELF" + bytes(range(256)) * 9)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    assert kernel_cache.read_object(tmp_path, KERNELS[0]) == b"\x7fELF" + bytes(range(256)) * 9
    file.write_bytes(DAMAGE[how](good))
    assert kernel_cache.read_object(tmp_path, KERNELS[0]) is None
    assert kernel_cache.read_object(tmp_path, KERNELS[1]) is None


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=f"No space left.*{tmp_path.name}"):
        kernel_cache.write_object(tmp_path, KERNELS[0], b"code")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_ends_the_compilers(tmp_path: Path) -> None:
    """SIGINT for the parent alone, as a supervisor sends it, within seconds of work."""
    code = """
import os, signal, sys, threading
from llamba.quant import kernel_workers
from llamba.quant.target import target

class Slow(kernel_workers.Worker):
    def compile(self, kernel):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        self.process.wait()  # for ever: it is told nothing
        raise RuntimeError("killed")

kernel_workers.Worker = Slow
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    kernel_workers.compile_all(["a:b"], kernel_workers.Path(sys.argv[1]), target(), None)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.kernels
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """It warns, works, and leaves alone whatever else is in the temporary folder."""
    blocked, temporary = tmp_path / "file", tmp_path / "tmp"
    blocked.write_text("not a folder")
    old = temporary / "somebody's"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    told = finish(start(blocked, TMPDIR=str(temporary)))
    (warning,) = told["warned"]
    assert "can't be cached" in warning and "LLAMBA_CACHE" in warning
    assert told["told"][-1] == [2, 2]
    assert old.exists()


@pytest.mark.kernels
@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_read(cache: Path) -> None:
    objects(cache)[0].unlink()
    (folder,) = (cache / "kernels").iterdir()
    folder.chmod(0o555)
    try:
        told = finish(start(cache))
    finally:
        folder.chmod(0o755)
    assert told["told"] == [[0, 1], [1, 1]] and len(told["warned"]) == 1


@pytest.mark.kernels
def test_two_processes_compile_at_once(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(2)]
    for told in map(finish, processes):
        assert not told["warned"]
    assert [f.suffix for f in objects(tmp_path)] == [".o", ".o"]
    assert finish(start(tmp_path))["told"] == []


# ---- the key -----------------------------------------------------------------------------------
def key(wanted: Target) -> str:
    return kernel_cache.cache_key.__wrapped__(wanted)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package's sources that the key is made from."""
    for part in ("quant", "runtime"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(kernel_cache._PACKAGE / part, tmp_path / part, ignore=ignored)
    monkeypatch.setattr(kernel_cache, "_PACKAGE", tmp_path)
    return tmp_path


def test_the_key_follows_every_kernel_source(package: Path) -> None:
    wanted = Target("x86_64", "znver4", "+avx2", "avx2", 8, 4)
    first = key(wanted)
    assert key(wanted) == first and len(first) == 24
    sources = [
        *(package / "quant" / name for name in ("kernel_workers.py", "compiler.py", "target.py")),
        *(package / "quant" / name for name in ("grids.py", "iq4_nl.py", "mxfp4.py")),
        *(package / "quant" / "cpu").glob("*.py"),
        package / "runtime" / "kernels" / "records.py",
        *(package / "runtime" / "kernels" / "cpu").glob("*.py"),
    ]
    assert len(sources) > 20
    seen = {first}
    for source in sources:
        before = source.read_bytes()
        source.write_bytes(before + b"# an edit\n")
        seen.add(key(wanted))
        source.write_bytes(before)
    assert len(seen) == len(sources) + 1
    (package / "quant" / "cpu" / "q9_k.py").write_text("# a new file\n")
    assert key(wanted) not in seen


def test_the_key_does_not_follow_other_files(package: Path) -> None:
    first = key(target())
    for file in (package / "quant" / "q4_k.py", package / "runtime" / "forward.py"):
        file.write_text("# an edit\n")
    assert key(target()) == first


def test_the_key_follows_the_target_and_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [
        Target("x86_64", "znver4", "+avx2", "avx2", 8, 4),
        Target("x86_64", "znver3", "+avx2", "avx2", 8, 4),
        Target("x86_64", "znver4", "+avx2,+fma", "avx2", 8, 4),
        Target("x86_64", "znver4", "+avx2", "avxvnni", 8, 4),
    ]
    keys = {key(t) for t in targets}
    monkeypatch.setattr(kernel_cache, "version", lambda name: "0.0." + name)
    keys.add(key(targets[0]))
    assert len(keys) == 5


def test_symbols_are_identifiers_of_their_own(rig: ModuleType) -> None:
    names = [f"runtime.kernels.cpu.matmul:matmul_rows_{f}" for f in rig.QUANTIZED]
    names += [f"runtime.kernels.cpu.matmul_lanes:matmul_lanes_{f}" for f in rig.QUANTIZED]
    symbols = {kernel_cache.symbol(n) for n in names}
    assert len(symbols) == len(names) and all(s.isidentifier() for s in symbols)


# ---- the cache's place -------------------------------------------------------------------------
def test_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMBA_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert kernel_cache.cache_root() == Path("/a/kernels")
    monkeypatch.delenv("LLAMBA_CACHE")
    assert kernel_cache.cache_root() == Path("/b/llamba/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert kernel_cache.cache_root() == Path("/c/.cache/llamba/kernels")


def test_the_place_follows_the_rules_of_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both lie in one folder, whatever the variables hold."""
    monkeypatch.chdir(tmp_path)
    for variables in ({"LLAMBA_CACHE": "~/x"}, {"LLAMBA_CACHE": "x"}, {"XDG_CACHE_HOME": "x"}, {}):
        for name in ("LLAMBA_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert kernel_cache.cache_root() == cache_dir() / "kernels"


def test_without_a_home_only_a_folder_of_our_own_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is run, so that nobody else may have put it there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = kernel_cache._homeless_folder.__wrapped__
    ours = place()
    assert ours.parent == tmp_path and ours.stat().st_mode & 0o777 == 0o700 and place() == ours
    ours.chmod(0o777)
    assert place() != ours
    ours.rmdir()
    ours.symlink_to(tmp_path)
    assert place() != ours


def test_old_directories_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path))
    kept, fresh, recent, old = (digit * 24 for digit in "abcd")
    ages = {kept: 90, fresh: 0, recent: 20, old: 40, "somebody's": 40}  # days
    for name, days in ages.items():
        folder = tmp_path / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "x.o").write_bytes(b"")
        then = time.time() - days * 86400
        os.utime(folder, (then, then))
    kernel_cache.prune(tmp_path / "kernels" / kept)
    left = {f.name for f in (tmp_path / "kernels").iterdir()}
    assert left == {kept, fresh, recent, "somebody's"}


@pytest.mark.kernels
def test_what_is_loaded_counts_as_used(cache: Path) -> None:
    (folder,) = (cache / "kernels").iterdir()
    os.utime(folder, (0, 0))
    finish(start(cache))
    assert time.time() - folder.stat().st_mtime < 3600


# ---- errors ------------------------------------------------------------------------------------
@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for this process, and nothing loaded yet."""
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path))
    monkeypatch.setattr(jit, "_addresses", {})
    monkeypatch.delenv("LLAMBA_DEBUG", raising=False)
    return tmp_path


@pytest.mark.parametrize("kernel", ["gather:nothing", "nowhere:nothing", "gather:LANES"])
def test_a_failing_compiler_is_an_error_of_one_line(fresh: Path, kernel: str) -> None:
    with pytest.raises(KernelError) as caught:
        jit.load([f"runtime.kernels.cpu.{kernel}"])
    message = str(caught.value)
    assert f"{kernel} could not be compiled for {target().cpu}: " in message
    assert "Error: " in message and "\n" not in message
    assert [f.name for f in fresh.glob("kernels/*/*")] == [kernel_cache.ABOUT]


def test_debugging_shows_all_of_it(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMBA_DEBUG", "1")
    with pytest.raises(KernelError, match=r"Traceback \(most recent call last\):\n"):
        jit.load(["runtime.kernels.cpu.gather:nothing"])


@pytest.mark.kernels
def test_the_folder_we_are_in_is_not_imported_from(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fresh / "numba.py").write_text("raise RuntimeError('somebody else')")
    monkeypatch.chdir(fresh)
    assert jit.load(KERNELS[:1])


@pytest.mark.kernels
def test_what_progress_raises_reaches_the_caller(fresh: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        jit.load(KERNELS[:1], progress=lambda done, total: done and 1 / 0)  # type: ignore[arg-type]


@pytest.mark.skipif(not shutil.which("false"), reason="needs the command `false`")
def test_a_compiler_that_dies(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(KernelError, match="gather_lanes could not be compiled.*LLVM aborted"):
        jit.load(KERNELS[1:])


def test_a_compiler_that_cannot_be_run(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(fresh / "no python"))
    with pytest.raises(KernelError, match="compiler can't be run.*no python"):
        jit.load(KERNELS)
