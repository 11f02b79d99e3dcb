"""Checkpoints that are damaged, incomplete or unknown: one clear line, and nothing is written."""

import importlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.errors import (
    InvalidModelFileError,
    InvalidParameterError,
    LlambaError,
    ModelNotFoundError,
    OutputError,
    UnsupportedModelError,
)
from llamba.models.convert.conversion import parse_override, prepare
from llamba.models.convert.families import BY_CLASS
from llamba.models.convert.safetensors_file import read_header
from llamba.models.gguf import GGUFFile

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    checkpoints = importlib.import_module("convert_checkpoints")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path, "llama")


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The weights' file with other tensors."""
    made = checkpoints.CHECKPOINTS["llama"]()
    tensors = checkpoints.tensors_of(made)
    change(tensors)
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)


def fails(folder: Path, kind: type[LlambaError], *texts: str, **options: Any) -> None:
    """Preparing or writing raises; the file isn't there, nor anything beside it."""
    out = folder.parent / "out"
    out.mkdir()
    with pytest.raises(kind) as caught:
        prepare(folder, **options).write(out / "model.gguf")
    message = str(caught.value)
    assert "\n" not in message
    for text in texts:
        assert text in message
    assert list(out.iterdir()) == []


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="not found"):
        prepare(tmp_path / "absent")


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    fails(folder, ModelNotFoundError, "config.json is missing")


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", "[" * 100_000])
def test_config_is_not_json(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    fails(folder, InvalidModelFileError, "config.json")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MambaForCausalLM", f"; docs/MODELS.md lists the {len(BY_CLASS)} classes"),
        ("Qwen9ForCausalLM", "(near: Qwen"),
        ("LlamaModel9", "(near: LlamaForCausalLM"),
    ],
)
def test_unknown_class(folder: Path, name: str, said: str) -> None:
    change_config(folder, architectures=[name])
    fails(folder, UnsupportedModelError, f"{name} is not converted", said)


def test_no_class(folder: Path) -> None:
    change_config(folder, architectures=None)
    fails(folder, InvalidModelFileError, "architectures")


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", None), ("num_attention_heads", "4"), ("hidden_size", -1),
     ("num_key_value_heads", 0), ("vocab_size", 1e10), ("rms_norm_eps", "small"),
     ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0}), ("rope_theta", [1])],
)  # fmt: skip
def test_numbers_that_can_not_be(folder: Path, key: str, value: Any) -> None:
    change_config(folder, **{key: value})
    fails(folder, LlambaError, str(folder))


def test_only_a_pickle(folder: Path) -> None:
    """It is named, and never opened: reading a pickle runs whatever code is in it."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    fails(folder, UnsupportedModelError, "pytorch_model.bin", "save_pretrained")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    fails(folder, ModelNotFoundError, "model.safetensors")


def test_shard_is_missing(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "llama", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    fails(folder, ModelNotFoundError, "model-00002-of-00003.safetensors")


def test_shard_is_missing_without_an_index(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "llama", shards=3)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00003-of-00003.safetensors").unlink()
    fails(folder, ModelNotFoundError, "model-00003-of-00003.safetensors")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda where: where.pop("model.norm.weight"), "not in model.safetensors.index.json"),
        (lambda where: where.update(more="model-00001-of-00002.safetensors"), "'more'"),
        (lambda where: where.update(more="../outside.safetensors"), "outside"),
        (lambda where: where.update(more=7), "weight_map"),
    ],
)
def test_index_disagrees(tmp_path: Path, change: Callable[[dict], Any], text: str) -> None:
    folder = checkpoints.write(tmp_path, "llama", shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))
    fails(folder, InvalidModelFileError, text)


@pytest.mark.parametrize("size", [0, 7, 8, 100, 3000, -1])
def test_truncated(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    fails(folder, InvalidModelFileError, str(path))


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


NORM = "model.norm.weight"
Entries = dict[str, Any]


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h[NORM].update(shape=[65]),
        lambda h: h[NORM].update(shape=[1 << 62, 4]),
        lambda h: h[NORM].update(shape=[-64]),
        lambda h: h[NORM].update(shape="64"),
        lambda h: h[NORM].update(shape=[True] * 64),
        lambda h: h[NORM].update(data_offsets=[0, 256]),
        lambda h: h[NORM].update(data_offsets=[1 << 60, (1 << 60) + 256]),
        lambda h: h[NORM].update(data_offsets=[256, 0]),
        lambda h: h[NORM].update(dtype="F16"),
        lambda h: h[NORM].pop("dtype"),
        lambda h: h.pop(NORM),
        lambda h: h.update(more=h[NORM]),
        lambda h: h.update(more=[1]),
    ],
)
def test_header_does_not_fit_its_file(folder: Path, change: Callable[[Entries], Any]) -> None:
    """Offsets, shapes and dtypes are checked before anything is read by them."""
    path = folder / "model.safetensors"
    header, data = header_of(path)
    change(header)
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    fails(folder, InvalidModelFileError, str(path))


def test_unknown_dtype(folder: Path) -> None:
    path = folder / "model.safetensors"
    header, data = header_of(path)
    header[NORM]["dtype"] = "F4"
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    fails(folder, UnsupportedModelError, NORM, "F4")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"\xff" * 20, b"[" * 100_000, b'{"a": {}, "a": {}}', b'{"a": 1}'],
)
def test_header_is_not_sound(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    with pytest.raises(InvalidModelFileError):
        read_header(path)


def test_header_of_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(InvalidModelFileError, match="cut off"):
        read_header(path)


def test_pointer_of_git_lfs(folder: Path) -> None:
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"
    (folder / "model.safetensors").write_bytes(text)
    fails(folder, InvalidModelFileError, "Git LFS")


def test_wrong_shape(folder: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((96, 32), np.float32)

    rewrite(folder, change)
    fails(
        folder, InvalidModelFileError, "model.layers.1.mlp.up_proj.weight", "(96, 32)", "(96, 64)"
    )


def test_rows_that_heads_do_not_divide(folder: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.self_attn.q_proj.weight"] = np.zeros((63, 64), np.float32)

    rewrite(folder, change)
    fails(folder, InvalidModelFileError, "model.layers.1.self_attn.q_proj.weight", "(63, 64)")


def test_tensor_is_missing(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    fails(folder, InvalidModelFileError, "model.layers.1.mlp.up_proj.weight is missing")


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.extra.weight", "model.layers.5.mlp.up_proj.weight"]
)
def test_tensor_without_a_place(folder: Path, name: str) -> None:
    rewrite(folder, lambda tensors: tensors.update({name: np.zeros((96, 64), np.float32)}))
    fails(folder, UnsupportedModelError)


def test_tensors_that_are_not_needed(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: np.zeros(8, np.float32)}))
    assert prepare(folder).unused == [name]


def test_output_that_is_the_embeddings(folder: Path) -> None:
    """Some trainers save them twice; transformers reads them once."""
    change_config(folder, tie_word_embeddings=True)
    assert "output.weight" in [entry.name for entry in prepare(folder).planned]  # another one

    def change(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    rewrite(folder, change)
    made = prepare(folder)
    assert "output.weight" not in [entry.name for entry in made.planned]
    assert made.unused == ["lm_head.weight"]


def test_expert_is_missing(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "mixtral")
    made = checkpoints.CHECKPOINTS["mixtral"]()
    tensors = checkpoints.tensors_of(made)
    tensors.pop("model.layers.0.block_sparse_moe.experts.2.w1.weight")
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)
    fails(folder, InvalidModelFileError, "expert 2 is missing")


@pytest.mark.parametrize(
    ("expert", "kind", "said"),
    [
        ("999999999", InvalidModelFileError, "expert 4 is missing"),
        ("9" * 5000, UnsupportedModelError, "has no place"),
    ],
    ids=["999999999", "5000 digits"],
)
def test_experts_of_large_numbers(
    expert: str, kind: type[LlambaError], said: str, tmp_path: Path
) -> None:
    folder = checkpoints.write(tmp_path, "mixtral")
    tensors = checkpoints.tensors_of(checkpoints.CHECKPOINTS["mixtral"]())
    name = "model.layers.0.block_sparse_moe.experts.2.w1.weight"
    tensors[name.replace(".2.", f".{expert}.")] = tensors[name]
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)
    fails(folder, kind, said)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_number_is_not_finite(folder: Path, value: float) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][95, 3] = value

    rewrite(folder, change)
    fails(folder, InvalidModelFileError, "model.layers.1.mlp.up_proj.weight", "not finite")


def test_number_too_large_for_float16(folder: Path) -> None:
    """It is never written as infinity."""

    def change(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"][7, 3] = 1e5

    rewrite(folder, change)
    prepare(folder, outtype="bf16").write(folder / "bf16.gguf")
    fails(folder, InvalidModelFileError, "lm_head.weight", "--outtype bf16", outtype="f16")


@pytest.mark.parametrize(
    ("outtype", "value", "better"), [("q8_0", 1e7, "bf16"), ("q8_0", 3.4e38, "f32"),
    ("bf16", 3.4e38, "f32")],
)  # fmt: skip
def test_number_too_large_for_other_formats(
    folder: Path, outtype: str, value: float, better: str
) -> None:
    """A block's scale is a float16; the largest float32 round up in bfloat16."""

    def change(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"][7, 3] = value

    rewrite(folder, change)
    prepare(folder, outtype=better).write(folder / "better.gguf")
    fails(folder, InvalidModelFileError, "lm_head.weight", f"--outtype {better}", outtype=outtype)


def test_integers(folder: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = np.zeros((320, 64), np.int64)

    rewrite(folder, change)
    fails(folder, UnsupportedModelError, "lm_head.weight", "I64")


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes"])
def test_quantized_checkpoints(folder: Path, method: str) -> None:
    change_config(folder, quantization_config={"quant_method": method, "bits": 4})
    fails(folder, UnsupportedModelError, method)


def test_layers_that_do_not_turn(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "smollm3")
    change_config(folder, no_rope_layers=[1, 0, 1, 0, 1])
    fails(folder, UnsupportedModelError, "no_rope_layers")


def test_no_vocabulary(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    fails(folder, LlambaError)


def test_file_is_there_already(folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        prepare(folder).write(path)
    assert path.read_text() == "mine"
    prepare(folder).write(path, overwrite=True)
    with GGUFFile.open(path) as gguf:
        assert gguf.metadata["general.architecture"] == "llama"


def test_unknown_outtype(folder: Path) -> None:
    with pytest.raises(InvalidParameterError, match="q3"):
        prepare(folder, outtype="q3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("general.author=me", ("general.author", ("str", "me"))),
        ("general.url=https://a.b/c=d", ("general.url", ("str", "https://a.b/c=d"))),
        ("llama.context_length=int:64", ("llama.context_length", ("u32", 64))),
        ("llama.rope.freq_base=float:1e6", ("llama.rope.freq_base", ("f32", 1e6))),
        (
            "tokenizer.ggml.add_bos_token=bool:true",
            ("tokenizer.ggml.add_bos_token", ("bool", True)),
        ),
    ],
)
def test_overrides(text: str, expected: Any) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["author", "=a", "a b=c", "a=int:x", "a=bool:maybe"])
def test_bad_overrides(text: str) -> None:
    with pytest.raises(InvalidParameterError):
        parse_override(text)


def test_overrides_are_checked_as_the_rest(folder: Path) -> None:
    fails(folder, LlambaError, overrides={"llama.attention.head_count": ("u32", 3)})
