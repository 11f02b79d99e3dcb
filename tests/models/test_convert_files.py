"""Converted files equal those of llama.cpp's converter, for every family: keys, tensors, bytes."""

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from llamba.errors import UnsupportedModelError
from llamba.models.convert import conversion
from llamba.models.convert.conversion import prepare
from llamba.models.convert.families import BY_CLASS, FAMILIES

TESTS = Path(__file__).resolve().parent.parent
EXPECTED = json.loads((TESTS / "models" / "convert_expected.json").read_text(encoding="utf-8"))

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    checkpoints = importlib.import_module("convert_checkpoints")

# What llama.cpp's converter can't do at that commit: it never writes StableLM's norms of each head,
# takes Falcon 7B for a model with as many heads of keys as of queries, and leaves out what a BERT
# with a head reads, its pooler. What we make of these is compared with transformers' results.
NOT_THERE = {"stablelm12b", "falcon7b", "bert-rank"}
# Keys in which ours are other ones, on purpose.
BETTER: dict[str, set[str]] = {
    # It forgets this one.
    "gptneox": {"general.file_type"},
    "mpt": {"general.file_type"},
    # It doesn't read transformers' own keys, see families_older.py.
    "glm": {"chatglm.context_length", "chatglm.attention.layer_norm_rms_epsilon"},
}


def described(path: Path) -> dict[str, Any]:
    """As convert_expected.py does."""
    reader = gguf.GGUFReader(path)
    keys = {
        key: ["/".join(kind.name for kind in field.types), field.contents()]
        for key, field in reader.fields.items()
        if not key.startswith(("GGUF.", "tokenizer."))
    }
    tensors = {
        t.name: [
            [int(n) for n in reversed(t.shape)],
            t.tensor_type.name,
            hashlib.sha256(t.data.tobytes()).hexdigest()[:12],
        ]
        for t in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


@pytest.mark.parametrize("outtype", ["f32", "f16"])
@pytest.mark.parametrize("name", EXPECTED)
def test_equals_llama_cpp(tmp_path: Path, name: str, outtype: str) -> None:
    folder = checkpoints.write(tmp_path, name)
    prepare(folder, outtype=outtype).write(path := tmp_path / "model.gguf")
    got, expected = described(path), EXPECTED[name]
    keys = dict(expected["keys"])
    if outtype == "f16" and keys.get("general.file_type", [0, 0])[1] == 0:
        keys["general.file_type"] = ["UINT32", 1]
    for key in BETTER.get(name, ()):
        assert got["keys"].pop(key) != expected["keys"].get(key)
        keys.pop(key, None)
    assert got["keys"] == keys
    which = slice(1, 3) if outtype == "f32" else slice(3, 5)
    tensors = {name: [of[0], *of[which]] for name, of in expected["tensors"].items()}
    assert got["tensors"] == tensors


def test_every_checkpoint_is_compared() -> None:
    assert set(EXPECTED) | NOT_THERE == set(checkpoints.CHECKPOINTS)


def test_every_family_has_a_checkpoint() -> None:
    made = [
        BY_CLASS[make().config["architectures"][0]] for make in checkpoints.CHECKPOINTS.values()
    ]
    missing = [family.classes for family in FAMILIES if family not in made]
    assert not missing


def test_classes_are_named_once() -> None:
    assert len(BY_CLASS) == sum(len(family.classes) for family in FAMILIES)


@pytest.mark.parametrize(("dtype", "form"), [("BF16", "BF16"), ("F16", "F16"), ("F64", "F16")])
def test_auto_is_the_checkpoints_16_bit_type(tmp_path: Path, dtype: str, form: str) -> None:
    """And numbers that are in that type already come out bit by bit."""
    folder = checkpoints.write(tmp_path, "llama", dtype=dtype, shards=3)
    made = prepare(folder)
    made.write(path := tmp_path / "model.gguf")
    assert made.outtype == form
    reader = gguf.GGUFReader(path)
    (file_type,) = reader.fields["general.file_type"].parts[-1]
    assert file_type == {"BF16": 32, "F16": 1}[form]
    data = {t.name: t for t in reader.tensors}["output.weight"]
    assert data.tensor_type.name == form
    raw = checkpoints.numbers("lm_head.weight", (checkpoints.VOCAB, checkpoints.DIM))
    if dtype != "F64":
        assert data.data.tobytes() == checkpoints.stored(raw, dtype).tobytes()


def test_q8_0_equals_gguf_py(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "llama")
    prepare(folder, outtype="q8_0").write(path := tmp_path / "model.gguf")
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    raw = checkpoints.numbers("model.layers.1.mlp.down_proj.weight", (64, 96))
    expected = gguf.quantize(raw, gguf.GGMLQuantizationType.Q8_0)
    assert tensors["blk.1.ffn_down.weight"].data.tobytes() == expected.tobytes()
    assert tensors["blk.1.ffn_norm.weight"].tensor_type.name == "F32"


def with_dense_layers(folder: Path, activation: str = "torch.nn.modules.linear.Identity") -> Path:
    """EmbeddingGemma as it is published: two more layers on top."""
    modules = json.loads((folder / "modules.json").read_text())
    for number, (rows, columns) in ((2, (128, 64)), (3, (64, 128))):
        path = f"{number}_Dense"
        modules.append({"idx": number, "path": path, "type": "sentence_transformers.models.Dense"})
        sizes = {"in_features": columns, "out_features": rows, "bias": False}
        settings = sizes | {"activation_function": activation}
        checkpoints.write_json(folder / path / "config.json", settings)
        weight = checkpoints.numbers(path, (rows, columns))
        checkpoints.write_safetensors(
            folder / path / "model.safetensors", {"linear.weight": weight}
        )
    checkpoints.write_json(folder / "modules.json", modules)
    return folder


def test_dense_layers_of_an_embedding_model(tmp_path: Path) -> None:
    """As convert_hf_to_gguf --sentence-transformers-dense-modules has them."""
    folder = with_dense_layers(checkpoints.write(tmp_path, "embedding-gemma"))
    prepare(folder, outtype="f32").write(path := tmp_path / "model.gguf")
    got = described(path)
    keys = {key: value[1] for key, value in got["keys"].items() if "dense" in key}
    assert keys == {
        "gemma-embedding.dense_2_feat_in": 64,
        "gemma-embedding.dense_2_feat_out": 128,
        "gemma-embedding.dense_3_feat_in": 128,
        "gemma-embedding.dense_3_feat_out": 64,
    }
    reader = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    for number, shape in ((2, (128, 64)), (3, (64, 128))):
        expected = checkpoints.numbers(f"{number}_Dense", shape)
        assert reader[f"dense_{number}.weight"].tobytes() == expected.tobytes()


def test_dense_layer_with_an_activation(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "embedding-gemma")
    with_dense_layers(folder, "torch.nn.modules.activation.Tanh")
    with pytest.raises(UnsupportedModelError, match="Tanh"):
        prepare(folder)


def test_file_is_the_same_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards, the order of tensors in them, and how much is converted at a time don't matter."""
    folder = checkpoints.write(tmp_path, "mixtral")
    first = prepare(folder, outtype="bf16").write(tmp_path / "a.gguf")
    monkeypatch.setattr(conversion, "_CHUNK", 1000)
    folder = checkpoints.write(tmp_path / "shards", "mixtral", shards=4)
    assert prepare(folder, outtype="bf16").write(tmp_path / "b.gguf") == first
    digest = hashlib.sha256((tmp_path / "a.gguf").read_bytes()).hexdigest()
    assert digest == first
