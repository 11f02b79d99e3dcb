"""PTX on disk: what its key follows, folders for machines without a compiler, the compiler."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llamba.cli.kernels import command
from llamba.errors import DeviceError, KernelError
from llamba.quant import kernel_cache
from llamba.runtime.cuda import ptx_cache
from llamba.runtime.cuda.kernel_modules import entry_of

KERNELS = ["norm:norm", "regroup:regroup_bytes"]


# ---- the key -----------------------------------------------------------------------------------
def test_the_key_follows_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = kernel_cache.gpu_sources()
    assert len(files) > 20
    for file in files:
        copy = tmp_path / file.relative_to(kernel_cache._PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    monkeypatch.setattr(kernel_cache, "_PACKAGE", tmp_path)
    seen = {kernel_cache.gpu_key(90), kernel_cache.gpu_key(80)}
    assert len(seen) == 2 and all(kernel_cache.is_key(key) for key in seen)
    for file in kernel_cache.gpu_sources():
        before = file.read_bytes()
        file.write_bytes(before + b"# an edit\n")
        seen.add(kernel_cache.gpu_key(90))
        file.write_bytes(before)
    assert len(seen) == 2 + len(files)


# What kernels' modules may import that isn't part of the key: none of it reaches the PTX.
WITHOUT_EFFECT = {"quant/__init__.py", "quant/format.py", "quant/kernel_cache.py"}


def imported(file: Path) -> Iterator[Path]:
    """The package's own modules that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = file.parents[node.level - 1] / (node.module or "").replace(".", "/")
            if base.with_suffix(".py").is_file():
                yield base.with_suffix(".py")
                continue
            below = [base / f"{alias.name}.py" for alias in node.names]
            yield from (
                (f for f in below if f.is_file())
                if any(f.is_file() for f in below)
                else [base / "__init__.py"]
            )


def test_what_kernels_import_is_part_of_the_key() -> None:
    files = {file.resolve() for file in kernel_cache.gpu_sources()}
    missing = {
        target.relative_to(kernel_cache._PACKAGE).as_posix()
        for file in files
        if file.parent.name in ("cuda", "launches") or file.name == "vector.py"
        for target in imported(file)
        if target.resolve() not in files
    }
    assert missing == WITHOUT_EFFECT


def test_versions_count_in_the_users_cache_only(monkeypatch: pytest.MonkeyPatch) -> None:
    key = kernel_cache.gpu_key(90)
    first = kernel_cache.versioned(key)
    monkeypatch.setattr(kernel_cache, "version", lambda package: "99")
    assert kernel_cache.versioned(key) != first and kernel_cache.is_key(first)
    assert kernel_cache.gpu_key(90) == key
    assert {key, kernel_cache.versioned(key)} < ptx_cache.keys()


# ---- folders -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with KERNELS for compute capability 9.0; for copying."""
    pytest.importorskip("numba", reason="numba is not installed")
    root = tmp_path_factory.mktemp("built")
    told: list[tuple[int, int]] = []
    folder, number = ptx_cache.build(KERNELS, 90, root=root, progress=lambda *at: told.append(at))
    assert number == 2 and folder == root / kernel_cache.gpu_key(90)
    assert told[0] == (0, 2) and told[-1] == (2, 2)
    assert ptx_cache.build(KERNELS, 90, root=root) == (folder, 0)
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, that LLAMBA_KERNEL_PATH names; the cache is empty."""
    copy = Path(shutil.copytree(built, tmp_path / "root"))
    monkeypatch.setenv("LLAMBA_KERNEL_PATH", str(copy))
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path / "cache"))
    return copy


SCRIPT = """
import json, sys
from llamba.runtime.cuda import ptx_cache
found = ptx_cache.load(sys.argv[1:], 90)
print(json.dumps([len(ptx) for ptx in found.values()]))
"""


def load_without_numba(blocked: Path, *kernels: str) -> subprocess.CompletedProcess[str]:
    """SCRIPT where Numba isn't installed and no cache can be made."""
    blocked.mkdir(exist_ok=True)
    (blocked / "file").touch()
    script = (
        f"from llamba.quant import kernel_cache as k; k.version = lambda name: 'none'\n{SCRIPT}"
    )
    environment = dict(os.environ, LLAMBA_CACHE=str(blocked / "file" / "cache"))
    command = [sys.executable, "-W", "error", "-c", script, *kernels]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.kernels
def test_a_machine_without_a_compiler_takes_what_was_prepared(root: Path, tmp_path: Path) -> None:
    done = load_without_numba(tmp_path / "blocked", *KERNELS)
    assert done.stderr == "" and min(json.loads(done.stdout)) > 1000
    about = json.loads((root / kernel_cache.gpu_key(90) / kernel_cache.ABOUT).read_text())
    assert about["target"] == "cuda-sm90" and about["numba"] == kernel_cache.version("numba")
    done = load_without_numba(tmp_path / "blocked", *KERNELS, "norm:norm_add")
    wanted = f"KernelError: GPU kernels (norm:norm_add, 1 in all) are in no cache, and Numba, which compiles them, isn't installed: pip install numba, or put what `llamba kernels build --target cuda-sm90 -o FOLDER` made elsewhere into {root}"  # noqa: E501
    assert wanted in done.stderr


@pytest.mark.kernels
def test_load(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    found = ptx_cache.load(KERNELS, 90, progress=lambda *at: told.append(at))
    assert told == [] and list(found) == KERNELS
    assert not kernel_cache.cache_root().exists()
    symbol = kernel_cache.symbol("runtime.kernels.cuda.norm:norm")
    entry = entry_of(found["norm:norm"])
    assert entry.symbol == symbol and entry.programmatic
    assert set(entry.kinds) == {"q", "f"} and entry.block % 32 == 0
    file = root / kernel_cache.gpu_key(90) / f"{symbol}.ptx"
    file.write_bytes(file.read_bytes()[:-5])  # cut short
    again = ptx_cache.load(KERNELS, 90, progress=lambda *at: told.append(at))
    assert again == found and told == [(0, 1), (1, 1)]
    own = kernel_cache.cache_root() / kernel_cache.versioned(kernel_cache.gpu_key(90))
    assert [f.name for f in own.glob("*.ptx")] == [file.name]
    told.clear()
    assert ptx_cache.load(KERNELS, 90, progress=lambda *at: told.append(at)) == found
    assert told == []


@pytest.mark.kernels
def test_older_gpus_get_no_early_starts(root: Path) -> None:
    found = ptx_cache.load(["norm:norm_add"], 80)["norm:norm_add"]
    assert ".target sm_80" in found and "griddepcontrol" not in found
    assert not entry_of(found).programmatic


@pytest.mark.skipif(os.name != "posix", reason="owners and permissions of POSIX")
@pytest.mark.kernels
def test_what_others_may_write_to_is_not_used(root: Path) -> None:
    folder = root / kernel_cache.gpu_key(90)
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to"):
        found = ptx_cache.load(KERNELS[1:], 90)
    assert list(found) == KERNELS[1:]
    assert kernel_cache.cache_root().is_dir()  # compiled instead


@pytest.mark.kernels
def test_what_cannot_be_compiled(root: Path) -> None:
    with pytest.raises(KernelError, match="norm:absent could not be compiled for sm_90: Attribute"):
        ptx_cache.load(["norm:absent"], 90)


def test_a_gpu_below_the_floor() -> None:
    with pytest.raises(DeviceError, match="7.5 is too low: 8.0"):
        ptx_cache.architecture_for(75, 13000)


# ---- the command -------------------------------------------------------------------------------
@pytest.mark.kernels
def test_build_and_list(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx_cache, "every", lambda: KERNELS)
    run = CliRunner()
    done = run.invoke(command, ["build", "--target", "cuda-sm90", "-o", str(root)])
    assert done.exit_code == 0
    assert f"2 kernels for cuda-sm90 are in {root}" in done.output and "0 of them" in done.output
    rows = json.loads(run.invoke(command, ["list", "--json"]).stdout)
    (row,) = [row for row in rows if row["folder"].startswith(str(root))]
    assert row["target"] == "cuda-sm90" and row["kernels"] == 2 and row["use"] == "yes"
    assert "cuda-sm90" in run.invoke(command, ["list"]).output


def test_targets_that_are_none() -> None:
    run = CliRunner()
    done = run.invoke(command, ["build", "--target", "cuda-sm75"])
    assert done.exit_code == 2 and "is none of cuda-sm80, cuda-sm90" in done.output
    done = run.invoke(command, ["build", "--target", "none"])
    assert "cuda-sm80, cuda-sm90" in done.output


@pytest.mark.kernels
def test_every_names_kernels_that_exist() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    from llamba.quant.cuda.compiler import find_kernel
    from llamba.quant.cuda.simt import Kernel

    names = ptx_cache.every()
    assert len(names) == len(set(names)) and {"norm:norm", "regroup:regroup_bytes"} < set(names)
    for name in names:
        assert isinstance(find_kernel(f"runtime.kernels.cuda.{name}"), Kernel), name
    symbols = {kernel_cache.symbol(name) for name in names}
    assert len(symbols) == len(names)
