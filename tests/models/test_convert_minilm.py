"""A real checkpoint: of all-MiniLM-L6-v2 the same file comes out as the tests make of it."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba import LLM
from llamba.errors import LlambaError
from llamba.models.convert.conversion import prepare
from llamba.models.gguf import GGUFFile
from llamba.models.tokenizer import Tokenizer

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    minilm, files_of = map(importlib.import_module, ("minilm", "checkpoint_files"))

CONFIG = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": minilm.DIM,
    "intermediate_size": 1536, "num_hidden_layers": minilm.LAYERS,
    "num_attention_heads": minilm.HEADS, "max_position_embeddings": minilm.CONTEXT,
    "layer_norm_eps": minilm.EPS, "hidden_act": "gelu", "type_vocab_size": 2, "vocab_size": 30522,
    "pad_token_id": 0,
}  # fmt: skip
# llama.cpp's converter names the model by its folder, and BERT's first token only as the beginning.
OTHER = ("general.name", "tokenizer.ggml.pre", "tokenizer.ggml.cls_token_id")
MODULES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as it is on Hugging Face: its own weights and vocabulary."""
    try:
        data = minilm.find()
    except (LlambaError, OSError) as error:
        pytest.skip(f"all-MiniLM-L6-v2 can't be had: {error}")
    folder = tmp_path_factory.mktemp("minilm") / "all-MiniLM-L6-v2"
    (folder / "1_Pooling").mkdir(parents=True)
    _, vocabulary = minilm.read(data)
    size = len("\n".join(vocabulary).encode()) + 1
    assert data[-size:].decode().splitlines() == vocabulary
    (folder / "model.safetensors").write_bytes(data[:-size])
    files_of.write_wordpiece(folder, vocabulary)
    for name, value in (
        ("config.json", CONFIG), ("modules.json", MODULES),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
    ):  # fmt: skip
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> tuple[Path, Path]:
    """(ours, the one that the other tests use)."""
    ours = folder.parent / "ours.gguf"
    prepare(folder, outtype="f32").write(ours)
    theirs = minilm.write_gguf(folder.parent / "theirs.gguf", *minilm.read(minilm.find()), "F32")
    return ours, theirs


def test_tensors_are_equal(files: tuple[Path, Path]) -> None:
    with GGUFFile.open(files[0]) as ours, GGUFFile.open(files[1]) as theirs:
        assert set(ours.tensors) == set(theirs.tensors)
        for name, tensor in theirs.tensors.items():
            assert ours.tensors[name].shape == tensor.shape
            assert np.array_equal(ours.tensors[name].data, tensor.data), name


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_keys_are_equal(files: tuple[Path, Path]) -> None:
    """But for what the tests' file leaves out."""
    with GGUFFile.open(files[0]) as ours, GGUFFile.open(files[1]) as theirs:
        for key in theirs.metadata:
            if key not in OTHER:
                assert plain(ours.metadata[key]) == plain(theirs.metadata[key]), key
        further = set(ours.metadata) - set(theirs.metadata)
        assert {key for key in further if key.startswith("bert.")} == set()
        assert ours.metadata["general.name"] == "All MiniLM L6 v2"
        assert ours.metadata["general.size_label"] == "23M"
        text = "Straße, naïve CAFÉ — 日本語; unaffable ##x"
        tokens = [Tokenizer.from_gguf(gguf).encode(text) for gguf in (ours, theirs)]
        assert tokens[0] == tokens[1]


@pytest.mark.kernels
def test_it_embeds(files: tuple[Path, Path]) -> None:
    vectors = []
    for path in files:
        with LLM(path, activations="float32") as llm:
            (result,) = llm.embed(["A cat is sleeping on the sofa."])
            vectors.append(np.asarray(result.embedding))
    assert np.array_equal(*vectors)
