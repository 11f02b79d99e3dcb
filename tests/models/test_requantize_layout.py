"""What a quantized file says and how it is laid out: layers left out, keys, shards."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamba.errors import (
    InvalidModelFileError,
    InvalidParameterError,
)
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import array_pair, pair
from llamba.models.gguf_writer import GGUFWriter, NewTensor
from llamba.models.quantize_metadata import parse_override

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(Path(__file__).parent))
    rig = importlib.import_module("quantize_rig")
quantize, write_model, normal = rig.quantize, rig.write_model, rig.normal


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return rig.two_layers(tmp_path)


def test_layers_left_out(model: Path, tmp_path: Path, plain_kernels: list[Any]) -> None:
    quantize(model, tmp_path / "o.gguf", "Q8_0", prune=[0])
    with GGUFFile.open(tmp_path / "o.gguf") as made, GGUFFile.open(model) as source:
        assert list(made.tensors) == [
            "output.weight", "token_embd.weight", "blk.0.ffn_down.weight",
        ]  # fmt: skip
        assert made.metadata["llama.block_count"] == 1
        values = source.tensors["blk.1.ffn_down.weight"].data.view(np.float16)
        raw = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
        assert made.tensors["blk.0.ffn_down.weight"].data.tobytes() == raw.tobytes()
    for prune, message in (([2], "has the layers 0 to 1"), ([0, 1], "no layer would be left")):
        with pytest.raises(InvalidParameterError, match=message):
            quantize(model, tmp_path / "p.gguf", "Q8_0", prune=prune)


def test_numbers_of_layers_that_are_left_out(tmp_path: Path, plain_kernels: list[Any]) -> None:
    source, out = tmp_path / "m.gguf", tmp_path / "o.gguf"
    pairs = [
        pair("general.architecture", "str", "x"),
        array_pair("x.attention.head_count_kv", "u32", [1, 2, 3]),
        array_pair("x.attention.recurrent_layers", "bool", [True, False, True]),
        array_pair("x.swiglu_clamp_exp", "f64", [0.5, 1.5, 2.5]),
        array_pair("x.expert_used_count", "str", ["a", b"\xff", "c"]),
        array_pair("xielu.beta", "f32", [1, 2, 3]),
        array_pair("x.feed_forward_length", "i32", [1, 2, 3, 4]),
        array_pair("x.rope.dimension_sections", "i32", [1, 2, 3]),
        array_pair("other.three", "i32", [1, 2, 3]),
        pair("x.block_count", "u32", 3),
    ]
    with GGUFWriter(source, pairs, [NewTensor("blk.2.attn_q.weight", 0, (3, 32))]) as writer:
        writer.write(normal(3, 32, kind=np.float32))
    quantize(source, out, "Q8_0", prune=[1])
    with GGUFFile.open(out) as made:
        assert list(made.tensors) == ["blk.1.attn_q.weight"]
        assert made.metadata["x.block_count"] == 2
        assert made.metadata["x.attention.head_count_kv"].tolist() == [1, 3]
        assert made.metadata["x.attention.head_count_kv"].dtype == np.uint32
        assert made.metadata["x.attention.recurrent_layers"].tolist() == [True, True]
        assert made.metadata["x.swiglu_clamp_exp"].tolist() == [0.5, 2.5]
        assert made.metadata["x.expert_used_count"] == [b"a", b"\xff", b"c"]
        assert made.metadata["xielu.beta"].tolist() == [1, 3]
        assert len(made.metadata["x.feed_forward_length"]) == 4
        for key in ("x.rope.dimension_sections", "other.three"):
            assert made.metadata[key].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "count, name, said",
    [(4_000_000_000, "blk.1.attn_q.weight", "of 2$"),
     (4_000_000_000, "blk.4000000000.attn_q.weight", "of 0$"),
     (1 << 40, "blk.1.attn_q.weight", "of 2$"), (5, "blk.3.attn_q.weight", "of 4$")],
)  # fmt: skip
def test_more_layers_than_tensors_are_of(count: int, name: str, said: str, tmp_path: Path) -> None:
    kind = "u64" if count >> 32 else "u32"
    pairs = [pair("general.architecture", "str", "x"), pair("x.block_count", kind, count)]
    with GGUFWriter(tmp_path / "m.gguf", pairs, [NewTensor(name, 0, (1, 32))]) as writer:
        writer.write(bytes(128))
    with pytest.raises(InvalidModelFileError, match=f"{count:,} layers, its tensors are {said}"):
        quantize(tmp_path / "m.gguf", tmp_path / "o.gguf", "Q8_0", prune=[1])


def test_overrides(model: Path, tmp_path: Path, plain_kernels: list[Any]) -> None:
    texts = "llama.block_count=int:7", "general.name=str:a=b:c", "x=float:1.5", "y=bool:false"
    overrides = [parse_override(text) for text in texts]
    quantize(model, tmp_path / "o.gguf", "Q8_0", overrides=overrides)
    with GGUFFile.open(tmp_path / "o.gguf") as made:
        got = [made.metadata[text.partition("=")[0]] for text in texts]
        assert got == [7, "a=b:c", 1.5, False]
        assert list(made.metadata)[-4:] == [text.partition("=")[0] for text in texts]


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=1", "a=int", "=int:1", "a=int:x", "a=int:-1", "a=int:4294967296", "a=float:x",
     "a=bool:1", "a=u32:1", "a=float:1e39", "split.count=int:1", "general.alignment=int:64"],
)  # fmt: skip
def test_overrides_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError, match=re.escape(f"--override-kv {text!r}")):
        parse_override(text)


def test_shards_are_kept(
    tiny_gguf: Callable[..., Path], tmp_path: Path, plain_kernels: list[Any]
) -> None:
    source = tiny_gguf(weights="F16", split_max_tensors=9)
    report = quantize(source, tmp_path / "o.gguf", "Q8_0", keep_split=True)
    assert [file.path.name for file in report.files] == [
        f"o-0000{n}-of-00003.gguf" for n in (1, 2, 3)
    ]
    joined = quantize(source, tmp_path / "o.gguf", "Q8_0")
    with GGUFFile.open(report.files[1].path) as kept, GGUFFile.open(source) as old:
        assert list(kept.tensors) == list(old.tensors)
        assert kept.metadata["split.count"] == 3
        with GGUFFile.open(joined.files[0].path) as whole:
            assert "split.count" not in whole.metadata
            for name, tensor in whole.tensors.items():
                assert tensor.data.tobytes() == kept.tensors[name].data.tobytes()


def test_the_alignment_of_the_source_is_kept(tmp_path: Path, plain_kernels: list[Any]) -> None:
    source, out = tmp_path / "m.gguf", tmp_path / "o.gguf"
    pairs = [pair("general.architecture", "str", "llama"), pair("general.alignment", "u32", 128)]
    names = ["output.weight", "token_embd.weight"]
    with GGUFWriter(
        source, pairs, [NewTensor(n, 1, (3, 32)) for n in names], alignment=128
    ) as writer:
        for _ in names:
            writer.write(normal(3, 32))
    quantize(source, out, "Q8_0")
    with GGUFFile.open(out) as made:
        assert [made.place_of(t)[1] % 128 for t in made.tensors.values()] == [0, 0]
        assert all(t.num_bytes == 3 * 34 for t in made.tensors.values())


def test_a_file_without_tensors(tmp_path: Path) -> None:
    quantize(write_model(tmp_path / "m.gguf", {}), tmp_path / "o.gguf", "Q4_K_M")
    with GGUFFile.open(tmp_path / "o.gguf") as made:
        assert made.metadata["general.file_type"] == 15 and not made.tensors
