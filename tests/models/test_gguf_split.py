"""Shards: those of llama-gguf-split byte for byte, and back; all of them or none."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamba.errors import InvalidParameterError, ModelNotFoundError, OutputError
from llamba.models import gguf_split, shard_set
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import array_pair, pair
from llamba.models.gguf_split import Limits, merge_file, plan_shards, split_file
from llamba.models.gguf_writer import GGUFWriter, NewTensor

# SHA-256 of the shards that llama-gguf-split (llama.cpp 0c1e570) makes of `model`, with
# --split-max-tensors 2; --split-max-size 1M; and --split-max-size 1M --no-tensor-first-split.
EXPECTED = {
    Limits(max_tensors=2): [
        "a1f1bdd5d49f39e504188d89bbc9062cb13636b6e80cf62515ffce427cd9a149",
        "ba423e394335621f5c30077bc7c582d7f33e32593f5520e680918efbc7f79f79",
        "21cb48b989d2a4bf6dae33cb842ddd326f572b5dcb767da8e75a2b6b889304ef",
    ],
    Limits(max_bytes=1_000_000): [
        "d21cf5b811587ac12eb23842e12173f2a5b30b666d217ed0791941ed98c27b43",
        "0d42debfd06304652382730ac47f94f60df8f740db324ed7cd827ace007bee95",
        "21cb48b989d2a4bf6dae33cb842ddd326f572b5dcb767da8e75a2b6b889304ef",
    ],
    Limits(max_bytes=1_000_000, bare_first=True): [
        "a7bb51e3827e1f8c5d8977b83c65a724e0170ef9ded88c71e694a1f82ebffaca",
        "5610c61f09099b20b428a0f53a7e9d63c964a1509333afef488283799f224160",
        "98f5278480f18411274df0c4bb64802403b0b568b135b959529c5032e59c14c3",
        "0950a7fc36000359705f2dbde63331d2f9867a762fa30195e925b4b91c92af10",
    ],
}  # fmt: skip


def write_model(path: Path) -> Path:
    """Five tensors of 0.3 to 0.9 MB and a small one, of counted bytes."""
    pairs = [
        pair("general.architecture", "str", "llama"),
        array_pair("tokenizer.ggml.tokens", "str", ["a", "b", "ä"]),
        pair("llama.block_count", "u32", 5),
    ]
    rows = [300, 500, 7, 900, 400, 300]
    tensors = [NewTensor(f"blk.{n}.attn_q.weight", 1, (r, 500)) for n, r in enumerate(rows)]
    tensors[2] = NewTensor("odd.weight", 1, (7, 501))
    with GGUFWriter(path, pairs, tensors) as writer:
        for number, tensor in enumerate(tensors):
            counted = np.arange(number, number + tensor.num_bytes // 2, dtype=np.uint32) % 30_000
            writer.write(counted.astype(np.uint16))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf")


def split(model: Path, prefix: Path, limits: Limits, **options: Any) -> list[Path]:
    with GGUFFile.open(model) as file:
        return [made.path for made in split_file(file, prefix, limits, **options)]


def merge(model: Path, out: Path, **options: Any) -> str:
    with GGUFFile.open(model) as file:
        return merge_file(file, out, **options).sha256


@pytest.mark.parametrize("limits", EXPECTED)
def test_shards_are_those_of_llama_gguf_split(limits: Limits, model: Path, tmp_path: Path) -> None:
    paths = split(model, tmp_path / "s", limits)
    count = len(EXPECTED[limits])
    assert [p.name for p in paths] == [
        f"s-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)
    ]
    assert [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths] == EXPECTED[limits]
    out = tmp_path / "merged.gguf"
    digest = merge(paths[-1], out)  # any shard will do
    assert out.read_bytes() == model.read_bytes()
    assert digest == hashlib.sha256(model.read_bytes()).hexdigest()


def test_shards_of_gguf_py_are_merged(tiny: Any, tmp_path: Path) -> None:
    whole = tiny.write_tiny(tmp_path / "whole.gguf")
    first = tiny.write_tiny(tmp_path / "parts.gguf", split_max_tensors=5)
    merge(first, tmp_path / "merged.gguf")
    merged, before = (gguf.GGUFReader(p) for p in (tmp_path / "merged.gguf", whole))
    assert [t.name for t in merged.tensors] == [t.name for t in before.tensors]
    for a, b in zip(merged.tensors, before.tensors, strict=True):
        np.testing.assert_array_equal(a.data, b.data)
    assert set(merged.fields) == set(before.fields)


def test_a_tensor_above_the_limit_is_alone(model: Path) -> None:
    with GGUFFile.open(model) as file:
        shards = plan_shards(list(file.tensors.values()), Limits(max_bytes=350_000))
    assert [len(shard) for shard in shards] == [1, 1, 1, 1, 1, 1]


def test_another_alignment_comes_back(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    pairs = [pair("general.architecture", "str", "x"), pair("general.alignment", "u32", 128)]
    tensors = [NewTensor(name, 0, (5,)) for name in "abc"]
    with GGUFWriter(model, pairs, tensors, alignment=128) as writer:
        for number in range(3):
            writer.write(np.full(5, number, np.float32))
    first, *_ = split(model, tmp_path / "s", Limits(max_tensors=2))
    with GGUFFile.open(first) as shards:
        assert [t.data.view(np.float32)[0] for t in shards.tensors.values()] == [0, 1, 2]
    merge(first, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == model.read_bytes()


def test_merged_from_a_file_of_one_shard(model: Path, tmp_path: Path) -> None:
    [only] = split(model, tmp_path / "s", Limits(max_tensors=10))
    assert only.name == "s-00001-of-00001.gguf"
    merge(only, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == model.read_bytes()


def test_what_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = split(model, tmp_path / "s", Limits(max_tensors=2))
    with pytest.raises(InvalidParameterError, match="is one of 3 shards.*llamba merge"):
        split(paths[0], tmp_path / "t", Limits())
    with pytest.raises(InvalidParameterError, match="is not split"):
        merge(model, tmp_path / "out.gguf")
    with pytest.raises(InvalidParameterError, match="is read, and can't be written"):
        merge(paths[0], paths[1], overwrite=True)
    with pytest.raises(OutputError, match="s-00001-of-00003.gguf: exists already"):
        split(model, tmp_path / "s", Limits(max_tensors=2))
    monkeypatch.setattr(gguf_split, "MAX_SHARDS", 5)
    with pytest.raises(InvalidParameterError, match="6 shards are too many"):
        split(model, tmp_path / "u", Limits(max_tensors=1))
    paths[2].unlink()
    with pytest.raises(ModelNotFoundError, match="s-00003-of-00003.gguf is missing"):
        merge(paths[0], tmp_path / "out.gguf")


@pytest.mark.parametrize("no", range(3))
def test_all_shards_or_none(
    no: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard can't get its name: those that have theirs go again."""
    publish = GGUFWriter.publish

    def fails(self: GGUFWriter) -> None:
        if f"-0000{no + 1}-" in self.path.name:
            raise OutputError("no")
        publish(self)

    monkeypatch.setattr(GGUFWriter, "publish", fails)
    with pytest.raises(OutputError, match="^no$"):
        split(model, tmp_path / "s", Limits(max_tensors=2))
    assert {path.name for path in tmp_path.iterdir()} == {"m.gguf"}


def test_a_set_that_came_in_the_meantime_stays(model: Path, tmp_path: Path) -> None:
    """Two split to the same names at once, neither with --force."""
    paths: list[Path] = []

    def other(event: str, done: int, total: int) -> None:
        if done == total:
            paths.extend(split(model, tmp_path / "s", Limits(max_tensors=2)))

    with GGUFFile.open(model) as file, pytest.raises(OutputError, match="exists already"):
        split_file(file, tmp_path / "s", Limits(max_tensors=2), progress=other)
    merge(paths[0], tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == model.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {p.name for p in paths} | {
        "m.gguf", "out.gguf",
    }  # fmt: skip


@pytest.mark.parametrize("prefix", ["", ".", "/"])
def test_a_prefix_without_a_name(prefix: str, model: Path) -> None:
    with pytest.raises(InvalidParameterError, match="give the beginning of the shards' names"):
        split(model, Path(prefix), Limits())


@pytest.mark.parametrize("no", range(3))
def test_an_older_set_stays_whole(
    no: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard can't get its name: the files that had the names have them again."""
    folder = tmp_path / "out"
    folder.mkdir()
    paths = split(model, folder / "s", Limits(max_tensors=2))
    with paths[1].open("ab") as file:
        file.write(b"older")
    before = {path: path.read_bytes() for path in paths}
    publish = GGUFWriter.publish

    def fails(self: GGUFWriter) -> None:
        if f"-0000{no + 1}-" in self.path.name:
            raise OutputError("no")
        publish(self)

    monkeypatch.setattr(GGUFWriter, "publish", fails)
    with pytest.raises(OutputError, match="^no$"):
        split(model, folder / "s", Limits(max_tensors=2), overwrite=True)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("no", range(3))
@pytest.mark.parametrize("older", [False, True])
def test_interrupted_when_a_shard_has_its_name(
    no: int, older: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the new ones stays, and an older set is whole again."""
    if older:
        split(model, tmp_path / "s", Limits(max_tensors=2))
    before = {path.name for path in tmp_path.iterdir()}
    publish = GGUFWriter.publish

    def interrupted(self: GGUFWriter) -> None:
        publish(self)
        if f"-0000{no + 1}-" in self.path.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(GGUFWriter, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        split(model, tmp_path / "s", Limits(max_tensors=2), overwrite=older)
    assert {path.name for path in tmp_path.iterdir()} == before
    if older:
        GGUFFile.open(tmp_path / "s-00001-of-00003.gguf").close()


STOPS = """
import os, signal, sys
from pathlib import Path
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_split import Limits, split_file
from llamba.models.gguf_writer import GGUFWriter

publish, left = GGUFWriter.publish, int(sys.argv[3])

def stops(self):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    publish(self)

GGUFWriter.publish = stops
with GGUFFile.open(sys.argv[1]) as file:
    split_file(file, Path(sys.argv[2]), Limits(max_tensors=2), overwrite=True)
"""


@pytest.mark.parametrize("num_published", [0, 1, 2])
@pytest.mark.parametrize("older", [False, True])
def test_killed_while_shards_get_their_names(
    num_published: int, older: bool, model: Path, tmp_path: Path
) -> None:
    """What is left of a set does not load, be it beside shards of an older one or not."""
    folder = tmp_path / "out"
    folder.mkdir()
    if older:
        split(model, folder / "s", Limits(max_tensors=2))
    run = subprocess.run(
        [sys.executable, "-c", STOPS, str(model), str(folder / "s"), str(num_published)]
    )
    assert run.returncode == -signal.SIGKILL
    first = folder / "s-00001-of-00003.gguf"
    assert not first.exists()
    for path in (first, folder / "s-00002-of-00003.gguf"):
        with pytest.raises(ModelNotFoundError):
            GGUFFile.open(path)
    split(model, folder / "s", Limits(max_tensors=2), overwrite=True)
    assert len(os.listdir(folder)) == 3  # the temporary files went, too
    merge(first, tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == model.read_bytes()


def test_room_for_all_shards_is_looked_for_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def refuses(path: Path, *args: Any, **options: Any) -> GGUFWriter:
        opened.append(path.name)
        if len(opened) == 3:
            raise OutputError(f"{path}: needs more")
        return GGUFWriter(path, *args, **options)

    monkeypatch.setattr(shard_set, "GGUFWriter", refuses)
    with pytest.raises(OutputError, match="needs more"):
        split(model, tmp_path / "s", Limits(max_tensors=2))
    assert {path.name for path in tmp_path.iterdir()} == {"m.gguf"}
