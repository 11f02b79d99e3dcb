"""Checkpoints that another program cuts off or takes away while they are converted."""

import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError
from llamba.models import importance_file, tensor_reader
from llamba.models.convert import conversion, plan
from llamba.models.convert.conversion import Conversion, prepare
from llamba.models.convert.peft import PeftAdapter
from llamba.models.convert.safetensors_file import StoredTensor
from llamba.models.importance import Importance, Sums
from llamba.models.importance_writer import write

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    adapters, checkpoints = map(importlib.import_module, ("peft_adapters", "convert_checkpoints"))

Change = Callable[[Path], None]


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


CHANGES = {
    r"model\.safetensors: the file changed while it was read: it ends within tensor": cut_off,
    r"model\.safetensors: the file can't be read: No such file": Path.unlink,
}


def write_while(made: Conversion, out: Path, change: Callable[[], None]) -> None:
    """Write the file; after its first piece the change is made."""

    def update(event: str, done: int, total: int, more: str = "") -> None:
        if not changed:
            changed.append(done)
            change()

    changed: list[int] = []
    made.write(out, progress=update)


# Rows are moved, matrices are turned around, 4-bit floats stay as they are, parts are cut out.
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-oss-mxfp4", "phi3"])
@pytest.mark.parametrize(("text", "change"), CHANGES.items(), ids=["shorter", "gone"])
def test_checkpoint(tmp_path: Path, name: str, text: str, change: Change) -> None:
    folder, target = checkpoints.write(tmp_path, name), tmp_path / "out"
    target.mkdir()
    made = prepare(folder)
    with pytest.raises(InvalidModelFileError, match=text):
        write_while(made, target / "m.gguf", lambda: change(folder / "model.safetensors"))
    assert not list(target.iterdir())


def test_within_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_CHUNK", 64)
    folder = checkpoints.write(tmp_path, "qwen2")
    path, made = folder / "model.safetensors", prepare(folder)
    stored = made.planned[0].parts[-1].stored
    with pytest.raises(InvalidModelFileError, match=f"ends within tensor {stored.name}"):
        write_while(made, tmp_path / "m.gguf", lambda: os.truncate(path, stored.start + 1000))
    assert not list(tmp_path.glob("*m.gguf*"))


def test_adapter(tmp_path: Path) -> None:
    base, folder = adapters.build("qwen2", tmp_path)
    made = prepare(base, adapters=[(PeftAdapter.open(folder), 1.0)])
    with pytest.raises(InvalidModelFileError, match=r"adapter_model\.safetensors: the file chang"):
        write_while(
            made, tmp_path / "m.gguf", lambda: cut_off(folder / "adapter_model.safetensors")
        )
    assert not list(tmp_path.glob("*m.gguf*"))


def test_while_tied_matrices_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoints.CHECKPOINTS["llama"]()
    made.config["tie_word_embeddings"] = True
    tensors = checkpoints.tensors_of(made)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    folder = checkpoints.write_made(tmp_path / "tied", made, tensors)
    assert all(entry.name != "output.weight" for entry in prepare(folder).planned)
    tensors["lm_head.weight"][-1, -1] += 1
    folder = checkpoints.write_made(tmp_path / "nearly", made, tensors)
    monkeypatch.setattr(plan, "_COMPARED", 100)
    assert any(entry.name == "output.weight" for entry in prepare(folder).planned)
    tied = plan._tied

    def cutting(planned: Any) -> bool:
        cut_off(folder / "model.safetensors")
        return tied(planned)

    monkeypatch.setattr(plan, "_tied", cutting)
    with pytest.raises(InvalidModelFileError, match=r"model\.safetensors: the file changed"):
        prepare(folder)


@pytest.mark.parametrize("has_preadv", [True, False])
def test_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_preadv: bool) -> None:
    """The system may give less than was asked for, and on Windows there is no preadv."""
    folder = checkpoints.write(tmp_path, "llama")
    expected = prepare(folder).write(tmp_path / "a.gguf")
    monkeypatch.setattr(tensor_reader, "_MOST_BYTES", 1001)
    if not has_preadv:
        monkeypatch.delattr(os, "preadv", raising=False)
    assert prepare(folder).write(tmp_path / "b.gguf") == expected


def test_importance_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Sums(np.ones((1, 256), np.float32), np.array([5]))
    write(Importance({"blk.0.attn_q.weight": sums}), path := tmp_path / "m.gguf")
    entry = importance_file._entry

    def cutting(*args: Any) -> Sums:
        cut_off(path)
        return entry(*args)

    monkeypatch.setattr(importance_file, "_entry", cutting)
    with pytest.raises(InvalidModelFileError, match=r"m\.gguf: the file changed while it was read"):
        Importance.open(path)


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((), [(1, 1)]), ((5,), [(1, 5)]), ((2, 3, 4), [(2, 4), (2, 4), (2, 4)])]
    + [((0,), []), ((4, 0), []), ((0, 4), [])],
)
def test_rows(tmp_path: Path, shape: tuple[int, ...], parts: list[tuple[int, int]]) -> None:
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"ten bytes!" + values.tobytes())
    stored = StoredTensor("x", "F32", shape, path, 10, values.nbytes)
    found = list(stored.rows(8))
    assert [rows.shape for rows in found] == parts
    assert [x for rows in found for x in rows.ravel().tolist()] == values.ravel().tolist()
    assert np.array_equal(stored.raw(), values)
