"""`llamba kernels`: what it compiles, shows and deletes, and how it stops."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamba.cli import kernels as kernels_command
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.quant import jit, kernel_cache
from llamba.quant.target import Target, named, target
from llamba.runtime import kernel_names
from llamba.runtime.config import EngineConfig
from llamba.runtime.footprint import layouts_of

GATHER = {f"runtime.kernels.cpu.gather:gather_{layout}" for layout in ("rows", "lanes")}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, no folders of the system, and two kernels that are usual."""
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "system_roots", lambda: [])
    monkeypatch.setattr(kernel_names, "usual", lambda: GATHER)
    monkeypatch.setenv("LLAMBA_TARGET", "host")
    yield tmp_path / "cache" / "kernels"
    target.cache_clear()


@pytest.mark.kernels
def test_build_list_clear(invoke, cache: Path, tmp_path: Path, monkeypatch) -> None:
    result = invoke("kernels", "build")
    assert f"2 kernels for {target().cpu}" in result.stderr and "2 of them new" in result.stderr
    assert "0 of them new" in invoke("kernels", "build").stderr
    (folder,) = cache.iterdir()
    (old := cache / ("0" * 24)).mkdir()
    (cache / "ours").mkdir()  # LLAMBA_CACHE may be any folder, with other things in it
    (old / "x.o").write_bytes(bytes(1000))
    listed = json.loads(invoke("kernels", "list", "--json").stdout)
    rows = {Path(row["folder"]): row for row in listed}
    assert rows[folder]["use"] == "yes" and rows[folder]["kernels"] == 2
    assert rows[old] == {
        "folder": str(old), "own": True, "use": "no", "kernels": 1, "bytes": 1000,
    }  # fmt: skip
    assert str(folder) in invoke("kernels", "list").stdout
    assert "1.0 kB freed" in invoke("kernels", "clear").stderr
    assert (cache / "ours").is_dir() and not old.exists()
    (cache / "ours").rmdir()
    assert list(cache.iterdir()) == [folder]
    # A folder for all users is shown, and nothing is deleted in it.
    monkeypatch.setattr(kernel_cache, "system_roots", lambda: [tmp_path / "system"])
    assert "0 of them" not in invoke("kernels", "build", "-o", str(tmp_path / "system")).stderr
    invoke("kernels", "clear", "--all")
    assert not list(cache.iterdir()) and len(list(tmp_path.glob("system/*/*.o"))) == 2
    (tmp_path / "system" / folder.name).chmod(0o777)
    (row,) = json.loads(invoke("kernels", "list", "--json").stdout)
    assert row["use"].startswith("no: others may write to") and not row["own"]


@pytest.mark.parametrize("arguments", [(), ("--target", "avx2")])
def test_the_target_that_is_built_for(
    invoke, cache: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """What models are run with: LLAMBA_TARGET, unless told otherwise."""
    monkeypatch.setenv("LLAMBA_TARGET", "avx2" if not arguments else "x86-64")
    target.cache_clear()
    built: list[Target] = []

    def build(kernels: list[str], *, wanted: Target, **_: object) -> tuple[Path, int]:
        built.append(wanted)
        return cache, 0

    monkeypatch.setattr(jit, "build", build)
    assert invoke("kernels", "build", *arguments).exit_code == 0
    assert built == [named("avx2")]


def test_what_a_folder_says_of_itself_is_not_obeyed(
    invoke, cache: Path, tmp_path: Path, monkeypatch
) -> None:
    """A foreign about.json must not name what `clear` deletes."""
    system, precious = tmp_path / "system" / ("1" * 24), tmp_path / "precious"
    system.mkdir(parents=True)
    precious.mkdir()
    monkeypatch.setattr(kernel_cache, "system_roots", lambda: [tmp_path / "system"])
    about = {"own": True, "folder": str(precious), "use": "no", "cpu": ["x"], "isa": "avx2"}
    (system / "about.json").write_text(json.dumps(about))
    result = invoke("kernels", "list", "--json")
    (row,) = [row for row in json.loads(result.stdout) if row["folder"] == str(system)]
    assert not row["own"] and row["isa"] == "avx2" and "cpu" not in row
    assert invoke("kernels", "clear", "--all").exit_code == 0 and precious.is_dir()


def test_wrong_arguments(invoke, cache: Path) -> None:
    for arguments, told in [
        (("--target", "z80"), "'z80' is none of host, "),
        (("--all", "smollm2"), "--all and MODEL: give one of them"),
    ]:
        result = invoke("kernels", "build", *arguments)
        assert result.exit_code == 2 and told in result.stderr
    assert "no kernels in" in invoke("kernels", "list").stderr


@pytest.mark.kernels
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_keeps_what_is_compiled(tmp_path: Path) -> None:
    """One line that says how far it came, no traceback, exit code 130, nothing half written."""
    code = """
from llamba.quant.kernel_workers import Worker
from llamba.runtime import kernel_names
every = sorted(kernel_names.every())
kernel_names.usual = lambda: {k for k in every if "gather" in k or "few16" in k}
plain, compiled = Worker.compile, []

def compile(worker, kernel):
    if compiled:
        worker.process.wait()  # they don't come to an end before the signal
    plain(worker, kernel)
    compiled.append(kernel)

Worker.compile = compile
from llamba.cli.main import main
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "kernels", "build", "-o", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 200
    while not list(tmp_path.glob("*/*.o")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to the compilers, too
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130 and "Traceback" not in errors
    assert errors.startswith("compiling kernels for this CPU, once (")
    assert "kept" in errors
    (folder,) = tmp_path.iterdir()
    names = [f.name for f in folder.iterdir()]
    assert any(name.endswith(".o") for name in names)
    assert not any(name.endswith(".tmp") for name in names)


@pytest.mark.model("smollm2")
def test_a_models_kernels_are_all_that_it_asks_for(model_path: Path) -> None:
    with GGUFFile.open(model_path) as gguf:
        weights = Weights.open(gguf)
        names = kernel_names.of_model(weights)
        usual = kernel_names.usual()
        assert names <= kernel_names.every() and usual < kernel_names.every()
        for sequences in (1, 16):
            config = EngineConfig(context_length=512, num_threads=1, max_sequences=sequences)
            assert set(layouts_of(weights, config)[0].kernels) <= names & usual


def test_the_command_is_documented() -> None:
    text = kernels_command.command.help or ""
    assert "LLAMBA_KERNEL_PATH" in text and "/usr/share/llamba/kernels" in text
