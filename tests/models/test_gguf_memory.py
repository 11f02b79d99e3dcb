"""Weights that are read into private memory, or locked where they are."""

import errno
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError
from llamba.models import gguf_memory
from llamba.models.gguf import GGUFFile, TensorInfo


def test_tensors_are_the_same_in_private_memory(
    tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_memory, "_PIECE", 1 << 16)  # many pieces, the last one short
    path = tiny_gguf(weights="Q4_K")
    told: list[tuple[int, int]] = []
    last: list[TensorInfo] = []
    with GGUFFile.open(path) as mapped, GGUFFile.open(path) as gguf:
        gguf.read(lambda done, total: told.append((done, total)))
        assert mapped.tensors.keys() == gguf.tensors.keys()
        for name, tensor in mapped.tensors.items():
            mine = gguf.tensors[name]
            last = [mine]
            assert (mine.shape, mine.type_id) == (tensor.shape, tensor.type_id)
            assert np.array_equal(mine.data, tensor.data) and not mine.data.flags.writeable
            assert mine.data.ctypes.data % 32 == tensor.data.ctypes.data % 32
        assert gguf.metadata["general.architecture"] == mapped.metadata["general.architecture"]
    assert told[-1][0] == told[-1][1] and len(told) > 2
    mine = last[0]
    data = mine.data.copy()
    assert np.array_equal(mine.data, data)  # it lives as long as its views


def test_a_file_that_became_shorter(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(tiny_gguf(weights="Q4_K").read_bytes())
    gguf = GGUFFile.open(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidModelFileError, match="short.gguf.*it ends at byte"):
        gguf.read()


def test_locking(tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    answer = 0

    def call(name: str, address: int, num_bytes: int) -> int:
        calls.append((name, num_bytes))
        return answer if len(calls) > 1 and name == "mlock" else 0

    monkeypatch.setattr(gguf_memory, "_call", call)
    monkeypatch.setattr(gguf_memory, "_raise_limit", lambda wanted: 8 << 20)
    monkeypatch.setattr(gguf_memory, "_LOCK_PIECE", 1 << 16)
    with GGUFFile.open(tiny_gguf(weights="Q4_K")) as gguf:
        assert gguf.lock() == ""
        assert sum(n for _, n in calls) == gguf.num_bytes - len(gguf.headers()[0])
        for answer, text in (  # noqa: B007 - `call` reads it
            (errno.ENOMEM, r"8192 kB may be locked, .*ulimit -l \d+.*LimitMEMLOCK=\d+K"),
            (errno.ENOSYS, "no mlock"),
        ):
            calls.clear()
            why = gguf.lock()
            assert re.search(text, why)
            assert calls[-1][0] == "munlock"  # nothing stays locked


def test_the_system_s_own_mlock() -> None:
    """Its errors are numbers: no memory is at address 0."""
    assert gguf_memory._call("mlock", 0, 1 << 12) in (errno.ENOMEM, errno.EPERM, errno.EINVAL)
    assert gguf_memory._call("no_such_function", 0, 0) == errno.ENOSYS
