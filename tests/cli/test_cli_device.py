"""GPUs in the terminal: `--device`, `--gpu-layers`, what `doctor` and `bench` say."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llamba.cli import doctor_gpu
from llamba.cli.bench_output import Csv, Markdown
from llamba.cli.doctor import _shown
from llamba.cli.doctor_advice import advice
from llamba.cli.main import cli
from llamba.errors import DeviceError
from llamba.runtime.cuda.driver import DeviceInfo
from llamba.runtime.gpus import Gpus

INFO = DeviceInfo(
    index=0,
    name="NVIDIA Test",
    architecture=86,
    num_multiprocessors=28,
    total_bytes=12_000_000_000,
    bus_id="0000:01:00.0",
    uuid="GPU-0",
    driver_version=12040,
)
NO_CUBLAS = "cuBLAS isn't installed (libcublas.so.12): pip install 'llamba[cuda]'"


class FakeGpus(Gpus):
    """One GPU, or none."""

    found: list[DeviceInfo] = [INFO]
    why = ""

    def has_driver(self) -> bool:
        return bool(self.found)

    def usable(self) -> tuple[list[DeviceInfo], str]:
        return self.found, self.why

    def check_libraries(self, gpu: DeviceInfo) -> None:
        """They are there."""

    def free_bytes(self, gpu: DeviceInfo) -> int:
        return 10_000_000_000


class NoGpus(FakeGpus):
    found: list[DeviceInfo] = []
    why = "no NVIDIA driver is installed: there is no libcuda.so.1"


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where cuBLAS is found; empty: nowhere."""
    places = ["/opt/cublas/libcublas.so.12"]

    def open_library(driver_version: int) -> tuple[None, str]:
        assert driver_version == INFO.driver_version
        if not places:
            raise DeviceError(NO_CUBLAS)
        return None, places[0]

    monkeypatch.setattr("llamba.runtime.cuda.blas.open_library", open_library)
    return places


def test_doctor_shows_gpus(
    cublas: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path))
    found = doctor_gpu.examine_gpus(FakeGpus())
    assert found["gpus"] == {
        "cuda:0": "NVIDIA Test (compute capability 8.6, 28 multiprocessors, 10.0 GB of 12.0 GB "
        "free)"
    }
    about = found["cuda"]
    assert about["driver"] == "for CUDA 12.4" and about["cuBLAS"] == cublas[0]
    folder = about["kernels"].removeprefix("none compiled yet in ").partition(":")[0]
    assert folder.startswith(str(tmp_path))
    Path(folder).mkdir(parents=True)
    (Path(folder) / "norm.ptx").touch()
    about = doctor_gpu.examine_gpus(FakeGpus())["cuda"]
    assert about["kernels"] == f"1 compiled in {folder}"
    assert _shown(about).startswith("driver for CUDA 12.4, cuBLAS /opt")
    assert not advice(found)
    cublas.clear()
    found = doctor_gpu.examine_gpus(FakeGpus())
    assert found["cuda"]["cuBLAS"] == f"none: {NO_CUBLAS}"
    assert list(advice(found)) == [f"the GPU is not used: {NO_CUBLAS}"]


def test_doctor_says_why_there_is_none() -> None:
    assert doctor_gpu.examine_gpus(NoGpus()) == {"gpus": f"none: {NoGpus.why}"}


def test_doctor_shows_where_a_model_would_run(
    tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tiny_gguf(weights="Q4_0", num_layers=3))
    for kind, where in ((FakeGpus, "3 of 3 layers on cuda:0, weights"), (NoGpus, "the CPU")):
        monkeypatch.setattr("llamba.runtime.gpus.Gpus", kind)
        monkeypatch.setattr(doctor_gpu, "_cublas", lambda gpu: "here")
        result = CliRunner().invoke(cli, ["doctor", path, "--no-measure", "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["model"]["runs_on"].startswith(where)
    shown = CliRunner().invoke(cli, ["doctor", path, "--no-measure"]).stdout
    assert f"gpus         none: {NoGpus.why}\n" in shown
    assert "runs on      the CPU\n" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "gpu"], "'gpu' must be auto, cpu, cuda, or one GPU by its number"),
        (["--device", "cuda:x"], "'cuda:x' must be auto, cpu, cuda"),
        (["-ngl", "most"], "'most' must be auto, all, or a number of layers"),
        (["--gpu-layers", "9" * 5000], "9' must be auto, all, or a number of layers"),
        (["--gpu-layers", "\u0661"], "' must be auto, all, or a number of layers"),
        (["--gpu-layers", "-1"], "'-1' must be auto, all, or a number of layers"),
    ],
)
@pytest.mark.parametrize("command", ["run", "chat", "serve", "bench", "embed", "rerank"])
def test_every_command_checks_its_device(command: str, options: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, [command, *options])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_missing_gpu_is_one_line(
    tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("llamba.runtime.load.Gpus", NoGpus)
    monkeypatch.setattr("llamba.runtime.gpus.Gpus", NoGpus)
    arguments = [command, "-m", str(tiny_gguf()), "--device", "cuda"]
    result = CliRunner().invoke(cli, [*arguments, *(["hi"] if command == "run" else [])])
    assert result.exit_code == 7 and not result.stdout
    assert result.stderr == f"error: --device cuda: {NoGpus.why}; --device cpu runs without one\n"


ROW: dict[str, Any] = {
    "backends": "CPU",
    "device": "cpu",
    "n_gpu_layers": 0,
    "model_type": "llama",
    "model_size": 1 << 30,
    "model_n_params": 10**9,
    "n_threads": 2,
    "avg_ts": 100.0,
    "stddev_ts": 1.0,
}


def test_rows_of_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = {**ROW, "backends": "CUDA", "device": "cuda:0", "n_gpu_layers": 16}
    for row, columns in ((ROW, []), (gpu, ["backend", "ngl"])):
        table = Markdown()
        table.write(row, "tg128")
        head, _, line = (
            [cell.strip() for cell in text.strip("|").split("|")]
            for text in capsys.readouterr().out.splitlines()
        )
        assert head == ["model", "size", "params", *columns, "threads", "test", "t/s"]
        assert line[3:-3] == (["CUDA", "16"] if columns else [])
    writer = Csv()
    writer.write(gpu, "tg128")
    [found] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert found["device"] == "cuda:0" and found["n_gpu_layers"] == "16"
