"""The writer of GGUF files: read back by gguf-py and by our reader; nothing half under a name."""

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamba.errors import OutputError
from llamba.models import output_file
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import Pair, array_pair, pair, pairs_of, replaced
from llamba.models.gguf_writer import GGUFWriter, NewTensor

F32, F16 = 0, 1


def some_pairs() -> list[Pair]:
    return [
        pair("general.architecture", "str", "llama"),
        pair("a.u8", "u8", 255),
        pair("a.i8", "i8", -128),
        pair("a.u16", "u16", 65535),
        pair("a.i32", "i32", -(2**31)),
        pair("a.u64", "u64", 2**63 + 1),
        pair("a.i64", "i64", -(2**63)),
        pair("a.f32", "f32", 1e-5),
        pair("a.f64", "f64", 1e-300),
        pair("a.bool", "bool", True),
        array_pair("b.texts", "str", ["a", "", "ä\0b", b"\xff"]),
        array_pair("b.scores", "f32", np.array([0.5, -1.0], np.float32)),
        array_pair("b.none", "i32", []),
        array_pair("b.flags", "bool", [True, False]),
    ]


def test_read_back_by_gguf_py_and_by_us(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    a = np.arange(7, dtype=np.float32)
    b = np.arange(30, dtype=np.float16).reshape(2, 3, 5)
    tensors = [NewTensor("a", F32, a.shape), NewTensor("b", F16, b.shape)]
    with GGUFWriter(path, some_pairs(), tensors) as writer:
        writer.write(a.tobytes())
        writer.write(b[0])
        writer.write(b[1:])
    assert writer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert writer.num_bytes == path.stat().st_size
    reader = gguf.GGUFReader(path)
    values = {p.key: reader.fields[p.key].contents() for p in some_pairs() if p.key != "b.texts"}
    assert values["a.i64"] == -(2**63) and values["a.u64"] == 2**63 + 1
    assert values["a.f32"] == pytest.approx(1e-5) and values["b.scores"] == [0.5, -1.0]
    assert [t.name for t in reader.tensors] == ["a", "b"]
    np.testing.assert_array_equal(reader.tensors[1].data, b)
    with GGUFFile.open(path) as ours:
        assert ours.metadata["b.texts"] == [b"a", b"", "ä\0b".encode(), b"\xff"]
        assert pairs_of(ours.raw_pairs()) == some_pairs()
        np.testing.assert_array_equal(ours.tensors["a"].data.view(np.float32), a)


def test_pairs_are_replaced_in_their_places() -> None:
    new = [pair("a.u8", "u8", 1), pair("c", "str", "x")]
    keys = [p.key for p in replaced(some_pairs(), new)]
    assert keys == [*(p.key for p in some_pairs()), "c"]
    assert replaced(some_pairs(), new)[1] == new[0]


@pytest.mark.parametrize(
    "kind, value",
    [("u8", 256), ("u8", -1), ("i8", 128), ("u32", 2**32), ("i32", 1.5), ("f32", 1e39)],
)
def test_a_value_out_of_its_range(kind: str, value: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"k: {value} is not a {kind}")):
        pair("k", kind, value)


def test_tensors_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="blocks of 32"):
        GGUFWriter(tmp_path / "m", [], [NewTensor("t", 8, (2, 33))])
    with pytest.raises(ValueError, match="t is there twice"):
        GGUFWriter(tmp_path / "m", [], [NewTensor("t", F32, (1,))] * 2)
    with pytest.raises(ValueError, match="1 bytes too many"):
        with GGUFWriter(tmp_path / "m", [], [NewTensor("t", F32, (1,))]) as writer:
            writer.write(bytes(5))
    with pytest.raises(RuntimeError, match="t: 4 bytes were not written"):
        with GGUFWriter(tmp_path / "m", [], [NewTensor("t", F32, (2,))]) as writer:
            writer.write(bytes(4))
    assert not list(tmp_path.iterdir())


def test_names_that_cannot_be_written(tmp_path: Path) -> None:
    taken = tmp_path / "taken.gguf"
    taken.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists already"):
        GGUFWriter(taken, [], [])
    with pytest.raises(OutputError, match="is a folder"):
        GGUFWriter(tmp_path, [], [])
    with pytest.raises(OutputError, match="there is no folder"):
        GGUFWriter(tmp_path / "no" / "m.gguf", [], [])
    with pytest.raises(OutputError, match="needs 4,0.* bytes, .* are free"):
        GGUFWriter(tmp_path / "m.gguf", [], [NewTensor("t", F32, (10**12, 1000))])
    assert taken.read_bytes() == b"mine" and os.listdir(tmp_path) == ["taken.gguf"]


def test_a_file_that_came_in_the_meantime_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(OutputError, match="exists already"):
        with GGUFWriter(path, [], []):
            path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs" and os.listdir(tmp_path) == ["m.gguf"]


def test_overwriting_keeps_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        with GGUFWriter(path, [], [], overwrite=True):
            raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    with GGUFWriter(path, [], [], overwrite=True):
        assert path.read_bytes() == b"old"
    assert path.read_bytes().startswith(b"GGUF") and os.listdir(tmp_path) == ["m.gguf"]


def test_rights_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    with GGUFWriter(tmp_path / "m.gguf", [], []):
        pass
    assert (tmp_path / "m.gguf").stat().st_mode == (tmp_path / "any").stat().st_mode


@pytest.mark.parametrize("fails", [False, True])
def test_closed_before_it_is_renamed_on_windows(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    monkeypatch.setattr(output_file, "fcntl", None)
    writer = GGUFWriter(path, [], [], overwrite=True)
    descriptor = writer._file._fd
    replace = os.replace

    def on_windows(old: Path, new: Path) -> None:
        with pytest.raises(OSError):
            os.fstat(descriptor)
        if fails:
            raise PermissionError(13, "in use")
        replace(old, new)

    monkeypatch.setattr(os, "replace", on_windows)
    if fails:
        with pytest.raises(OutputError, match="in use"), writer:
            pass
        assert path.read_bytes() == b"old"
    else:
        with writer:
            pass
        assert path.read_bytes().startswith(b"GGUF")
    assert os.listdir(tmp_path) == ["m.gguf"]


WRITES = """
import resource, sys, time
from llamba.models.gguf_writer import GGUFWriter, NewTensor
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
with GGUFWriter(sys.argv[1], [], [NewTensor("t", 0, (1 << 20,))]) as writer:
    writer.write(bytes(1 << 20))
    print("half", flush=True)
    time.sleep(60)
"""


def test_killed_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    command = [sys.executable, "-c", WRITES, str(path), "kill"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        with GGUFWriter(path, [], []):  # another writer leaves the first one's file alone
            assert len(list(tmp_path.glob(".m.gguf.*.tmp"))) == 2
        path.unlink()
        process.send_signal(signal.SIGKILL)
    assert not path.exists() and len(list(tmp_path.glob(".m.gguf.*.tmp"))) == 1
    with GGUFWriter(path, [], []):
        assert len(list(tmp_path.glob(".m.gguf.*.tmp"))) == 1  # its own
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    command = [sys.executable, "-c", WRITES, str(path), "limit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert "OutputError" in done.stderr and "can't be written: File too large" in done.stderr
    assert not list(tmp_path.iterdir())
