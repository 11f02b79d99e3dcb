"""Memory bandwidth as `llamba doctor` measures it, and a model beside it."""

import ctypes
import json
import threading
from collections.abc import Callable
from pathlib import Path

import click.testing
import numpy as np
import pytest

from llamba.cli.main import cli
from llamba.errors import ResourceError
from llamba.quant import jit
from llamba.runtime import bandwidth

KERNEL = "runtime.kernels.cpu.bandwidth:read"


@pytest.mark.kernels
def test_the_kernel_reads_every_word() -> None:
    number = ctypes.c_int64
    read = ctypes.CFUNCTYPE(number, number, number)(jit.load([KERNEL])[KERNEL])
    words = np.random.default_rng(0).integers(-1000, 1000, 64 * 5, dtype=np.int32)
    for count in (0, 64, 64 * 5):
        assert read(words.ctypes.data, 4 * count) == words[:count].sum()


@pytest.mark.kernels
def test_the_system_gives_too_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have started end as well: nothing hangs."""
    for name in ("_MOST", "_LEAST"):
        monkeypatch.setattr(bandwidth, name, 1 << 16)
    reader, start, started = bandwidth.MemoryReader(), threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(ResourceError, match="does not give 3 threads"):
        reader.bytes_per_second(3)
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.kernels
def test_doctor_measures(tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST", "_LEAST"):
        monkeypatch.setattr(bandwidth, name, 1 << 22)
    monkeypatch.setattr(bandwidth, "_MEASURE_S", 0.05)
    sizes = {"dim": 256, "ffn_dim": 512, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}
    path = tiny_gguf(weights="Q4_K", **sizes)
    result = click.testing.CliRunner().invoke(cli, ["doctor", str(path), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert 0 < found["bandwidth"]["one_thread"] <= found["bandwidth"]["all_threads"]
    model = found["model"]
    assert model["limit"] in ("memory", "arithmetic", "threads waiting", "disk")
    assert model["decode_ts"] > 0 and model["ceiling_ts"] > 0
    assert found["advice"][0].startswith(f"this model is limited by {model['limit']}")
