"""Kernels that were compiled ahead: folders for all users, and who may have filled them."""

import json
import os
import resource
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from llamba.errors import KernelError
from llamba.quant import jit, kernel_cache, kernel_workers
from llamba.quant.target import named, target

KERNELS = [f"runtime.kernels.cpu.gather:gather_{layout}" for layout in ("rows", "lanes")]
posix = pytest.mark.skipif(os.name != "posix", reason="owners and permissions of POSIX")

# What a process without Numba and without a place for a cache makes of a folder.
SCRIPT = """
import json, sys, warnings
from llamba.quant import jit
told, caught = [], []
warnings.simplefilter("always")
def show(message, *_):
    caught.append(str(message))
    print(message, file=sys.stderr)
warnings.showwarning = show
found = jit.load(sys.argv[1:], progress=lambda *at: told.append(at))
print(json.dumps([all(found.values()), told, caught]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that `build` has filled; for copying."""
    root = tmp_path_factory.mktemp("built")
    folder, num_compiled = jit.build(KERNELS, wanted=target(), root=root)
    assert num_compiled == 2 and folder.parent == root
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(built, tmp_path / "root"))


@pytest.fixture
def folder(root: Path) -> Path:
    """The one directory in it."""
    (found,) = root.iterdir()
    return found


def load(path: str, blocked: Path) -> tuple[list[Any], str]:
    """What SCRIPT says, or its errors. Nothing can be where the cache lies; Numba raises."""
    blocked.mkdir(exist_ok=True)
    (blocked / "numba.py").write_text("raise ImportError('no Numba here')")
    environment = dict(
        os.environ,
        LLAMBA_KERNEL_PATH=path,
        LLAMBA_CACHE=str(blocked / "numba.py" / "cache"),
        PYTHONPATH=os.pathsep.join([str(blocked), os.environ.get("PYTHONPATH", "")]),
    )
    command = [sys.executable, "-c", SCRIPT, *KERNELS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout or "[]"), done.stderr


@pytest.mark.kernels
def test_without_numba_and_without_a_cache(root: Path, folder: Path, tmp_path: Path) -> None:
    before = sorted((f.name, f.stat().st_mtime_ns) for f in folder.iterdir())
    path = os.pathsep.join([str(tmp_path), str(root)])  # the first has none
    assert load(path, tmp_path / "blocked")[0] == [True, [], []]
    assert sorted((f.name, f.stat().st_mtime_ns) for f in folder.iterdir()) == before
    about = json.loads((folder / kernel_cache.ABOUT).read_text())
    assert about["cpu"] == target().cpu and about["isa"] == target().isa
    described = kernel_cache.describe(folder)
    assert described["kernels"] == 2 and described["bytes"] > 2000


@pytest.mark.kernels
def test_others_may_read_and_only_the_owner_write(folder: Path) -> None:
    assert folder.stat().st_mode & 0o022 == 0
    assert {f.stat().st_mode & 0o777 for f in folder.iterdir()} == {0o644}


@pytest.mark.kernels
@pytest.mark.parametrize("how", ["damaged", "absent", "another key"])
def test_what_is_not_right_is_not_used(folder: Path, tmp_path: Path, how: str) -> None:
    file = folder / f"{kernel_cache.symbol(KERNELS[0])}.o"
    if how == "damaged":
        file.write_bytes(file.read_bytes()[:-1] + b"\0")
    elif how == "absent":
        file.unlink()
    else:
        folder.rename(folder.with_name("0" * 24))
    answer, errors = load(str(folder.parent), tmp_path / "blocked")
    assert answer == [] and "no Numba here" in errors


@posix
@pytest.mark.kernels
@pytest.mark.parametrize("what", ["folder", "file", "parent"])
def test_where_others_may_write_nothing_is_run(
    root: Path, folder: Path, tmp_path: Path, what: str
) -> None:
    changed = {
        "folder": folder,
        "file": folder / f"{kernel_cache.symbol(KERNELS[0])}.o",
        "parent": root,
    }[what]
    changed.chmod(0o777 if what != "file" else 0o666)
    answer, errors = load(str(root), tmp_path / "blocked")
    assert answer == [] and "no Numba here" in errors
    if what != "file":
        assert f"are not used: others may write to {changed} (chmod go-w)" in errors
    if what == "parent":
        root.chmod(0o1777)  # as /tmp: nobody can replace what is another's
        assert load(str(root), tmp_path / "blocked")[0] == [True, [], []]


@posix
def test_another_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen by somebody who is neither its owner nor root."""
    real = os.stat
    stranger = os.stat_result([*real(tmp_path)[:4], 12345, *real(tmp_path)[5:]])
    monkeypatch.setattr(os, "stat", lambda path: stranger if path == tmp_path else real(path))
    assert kernel_cache.distrust(tmp_path) == f"{tmp_path} belongs to another user (number 12345)"
    assert "No such file" in str(kernel_cache.distrust(tmp_path / "absent"))


@posix
def test_a_link_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(place)
    assert kernel_cache.distrust(tmp_path / "link") is None
    place.chmod(0o775)
    assert str(place) in str(kernel_cache.distrust(tmp_path / "link"))


@posix
def test_a_link_is_not_followed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may change it could lead it elsewhere when its end has been looked at."""
    place = tmp_path / "place" / kernel_cache.cache_key(target())
    place.mkdir(mode=0o755, parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "place")
    monkeypatch.setattr(kernel_cache, "distrust", lambda path: None)
    monkeypatch.setattr(kernel_cache, "system_roots", lambda: [tmp_path / "link"])
    assert kernel_cache.system_directories(target()) == [place.resolve()]


@posix
def test_a_path_that_cannot_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts for none, as one that is not there."""

    def refuse(path: object, **_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(kernel_cache, "system_roots", lambda: [tmp_path])
    monkeypatch.setattr(os, "stat", refuse)
    assert kernel_cache.system_directories(target()) == []


def test_a_wrong_path_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMBA_KERNEL_PATH", str(tmp_path / "nowhere"))
    with pytest.warns(UserWarning, match="LLAMBA_KERNEL_PATH: .*nowhere is not a folder"):
        assert kernel_cache.system_directories(target()) == []
    monkeypatch.setenv("LLAMBA_KERNEL_PATH", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel_cache.system_directories(target()) == []


def test_the_usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMBA_KERNEL_PATH", os.pathsep.join(["/a", "", "/b"]))
    assert [str(root) for root in kernel_cache.system_roots()] == [
        "/a", "/b", "/usr/share/llamba/kernels", "/usr/local/share/llamba/kernels",
        os.path.join(sys.prefix, "share/llamba/kernels"),
    ]  # fmt: skip


@pytest.mark.kernels
def test_building_again_compiles_what_is_damaged(root: Path, folder: Path) -> None:
    file = folder / f"{kernel_cache.symbol(KERNELS[1])}.o"
    good = file.read_bytes()
    file.write_bytes(b"")
    told: list[tuple[int, int]] = []
    again = jit.build(KERNELS, wanted=target(), root=root, progress=lambda *at: told.append(at))
    assert again == (folder, 1) and told == [(0, 1), (1, 1)] and file.read_bytes() == good
    assert jit.build(KERNELS, wanted=target(), root=root) == (folder, 0)


@pytest.mark.kernels
def test_for_another_cpu(tmp_path: Path) -> None:
    wanted = named("avx2" if target().isa != "avx2" else "avxvnni")
    folder, _ = jit.build(KERNELS[:1], wanted=wanted, root=tmp_path)
    assert folder.name == kernel_cache.cache_key(wanted) != kernel_cache.cache_key(target())
    assert kernel_cache.describe(folder)["cpu"] == wanted.cpu


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelError, match="can't be written to .*file"):
        jit.build(KERNELS, wanted=target(), root=tmp_path / "file" / "kernels")


@posix
def test_no_space_left(tmp_path: Path) -> None:
    """The file system takes no more than 400 bytes of a file: an error, and nothing half done."""
    code = (
        "import sys; from pathlib import Path; from llamba.quant import jit, target as t; "
        "jit.build(sys.argv[2:], wanted=t.target(), root=Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), KERNELS[0]],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "KernelError: the kernel" in done.stderr
    assert [f.name for f in tmp_path.glob("*/*")] == [kernel_cache.ABOUT]


def test_compilers_as_far_as_memory_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a board with 1 GB, four of them would be killed."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    meminfo = tmp_path / "meminfo"
    for kilobytes, expected in ((8_000_000, 4), (600_000, 2), (100_000, 1)):
        meminfo.write_text(f"MemTotal: 9999999 kB\nMemAvailable:   {kilobytes} kB\n")
        assert kernel_workers._num_workers(meminfo) == expected
    assert kernel_workers._num_workers(tmp_path / "none") == 4
