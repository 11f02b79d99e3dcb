"""Quantizing that is stopped, by whatever: no half file, no harm to the source, a plain message."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError, OutputError
from llamba.models import output_file
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import pair
from llamba.models.gguf_writer import GGUFWriter, NewTensor
from llamba.models.quantize_plan import Options
from llamba.models.requantize import quantize_file
from llamba.quant.recipes import find_recipe

# Writes the model of the first argument to the second, as shards if it has some; it says when
# bytes have been written and then sleeps.
STALLS = """
import sys, time
from pathlib import Path
from llamba.models.gguf import GGUFFile
from llamba.models.quantize_plan import Options
from llamba.models.requantize import quantize_file
from llamba.quant.recipes import find_recipe

def update(event, done, total):
    if done > total // 2:
        print("half", flush=True)
        time.sleep(60)

with GGUFFile.open(sys.argv[1]) as file:
    options = Options(find_recipe("F32"), keep_split=True)
    quantize_file(file, Path(sys.argv[2]), options, num_threads=2, progress=update)
"""

# Quantizes the model of the first argument and prints its peak of memory in kB.
MEASURES = r"""
import re, sys
from pathlib import Path
from llamba.models.gguf import GGUFFile
from llamba.models.quantize_plan import Options
from llamba.models.requantize import quantize_file
from llamba.quant.recipes import find_recipe

with GGUFFile.open(sys.argv[1]) as file:
    options = Options(find_recipe("Q8_0"))
    quantize_file(file, Path(sys.argv[2]), options, num_threads=2)
# Not getrusage's figure, which begins with that of the process that started this one.
print(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def write_model(path: Path, rows: int, count: int = 4) -> Path:
    """`count` matrices of F32, `rows` x 256."""
    values = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    new = [NewTensor(f"blk.{n}.attn_q.weight", 0, (rows, 256)) for n in range(count)]
    with GGUFWriter(path, [pair("general.architecture", "str", "llama")], new) as writer:
        for _ in range(count * rows // 8):
            writer.write(values)
    return path


def quantize(source: Path, out: Path, recipe: str = "Q8_0") -> None:
    with GGUFFile.open(source) as file:
        quantize_file(file, out, Options(find_recipe(recipe)), num_threads=2)


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle(kind: signal.Signals, tmp_path: Path) -> None:
    source, out = write_model(tmp_path / "m.gguf", 64), tmp_path / "o.gguf"
    before = source.read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", STALLS, str(source), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout is not None and run.stdout.readline() == "half\n"
        run.send_signal(kind)
    assert not out.exists()
    assert source.read_bytes() == before
    left = files_of(tmp_path) - {"m.gguf"}
    assert len(left) == (1 if kind == signal.SIGKILL else 0)  # a temporary one, after kill -9
    quantize(source, out, "F32")
    assert files_of(tmp_path) == {"m.gguf", "o.gguf"}  # which the next run has removed
    assert out.stat().st_size > 4 * 64 * 256 * 4


def test_a_source_that_becomes_shorter(tmp_path: Path, plain_kernels: list[Any]) -> None:
    source, out = write_model(tmp_path / "m.gguf", 64), tmp_path / "o.gguf"
    with GGUFFile.open(source) as file:
        os.truncate(source, 64 * 256 * 4)
        with pytest.raises(InvalidModelFileError, match="m.gguf: the file changed.*attn_q.weight"):
            quantize_file(file, out, Options(find_recipe("Q8_0")), num_threads=2)
    assert files_of(tmp_path) == {"m.gguf"}


def test_a_truncated_source(tmp_path: Path) -> None:
    """P11: sizes are compared before anything is read."""
    source, out = write_model(tmp_path / "m.gguf", 64), tmp_path / "o.gguf"
    os.truncate(source, source.stat().st_size * 9 // 10)
    with pytest.raises(InvalidModelFileError, match="blk.3.attn_q.weight.*needs 65,536 bytes"):
        quantize(source, out)
    assert files_of(tmp_path) == {"m.gguf"}


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_kernels: list[Any]) -> None:
    source, out = write_model(tmp_path / "m.gguf", 64), tmp_path / "o.gguf"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OutputError, match="o.gguf: needs .* bytes, 1,000 are free"):
        quantize(source, out)
    assert not plain_kernels  # nothing was begun
    assert files_of(tmp_path) == {"m.gguf"}


def test_the_disk_is_full_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_kernels: list[Any]
) -> None:
    """Where room can't be reserved, and others fill the disk."""
    source, out = write_model(tmp_path / "m.gguf", 64), tmp_path / "o.gguf"
    monkeypatch.setattr(output_file.OutputFile, "_reserve", lambda self, num_bytes: None)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, old[1]))
        with pytest.raises(OutputError, match="o.gguf: can't be written: File too large"):
            quantize(source, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert plain_kernels
    assert files_of(tmp_path) == {"m.gguf"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", 8)
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(OutputError, match="no right to write"):
        quantize(source, tmp_path / "locked" / "o.gguf")


def test_an_error_ends_all_threads(tmp_path: Path, plain_kernels: list[Any]) -> None:
    source, out = write_model(tmp_path / "m.gguf", 64), tmp_path / "o.gguf"
    with GGUFFile.open(source) as file, pytest.raises(RuntimeError, match="stop"):

        def update(event: str, done: int, total: int) -> None:
            if done:
                raise RuntimeError("stop")

        quantize_file(file, out, Options(find_recipe("Q8_0")), num_threads=2, progress=update)
    import threading

    assert not [t for t in threading.enumerate() if t.name.startswith("tensors")]
    assert files_of(tmp_path) == {"m.gguf"}


@pytest.mark.slow
@pytest.mark.kernels
def test_memory_is_a_matter_of_pieces(tmp_path: Path) -> None:
    """The bar is three times the largest tensor in float32, 1.5 GB here; it is far from that."""
    rows = 1 << 19
    source = write_model(tmp_path / "m.gguf", rows, count=1)  # 512 MB
    run = subprocess.run(
        [sys.executable, "-c", MEASURES, str(source), str(tmp_path / "o.gguf")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) * 1024 < rows * 256 * 4 / 3
