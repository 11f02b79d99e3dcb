"""Whole files whose sizes the kernels don't run, or whose parts don't go together: refused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llamba import LLM
from llamba.errors import InvalidModelFileError, ModelError, UnsupportedModelError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.forward import build_program

Shapes = Mapping[str, tuple[int, ...]]
GATE = ("ffn_gate", "ffn_up")

# (model, other shapes by a layer's tensor or whole name, other metadata, what is said)
SIZES: list[tuple[str, Shapes, dict[str, Any], str]] = [
    (
        "deepseek2",
        {"attn_q_a": (40, 96), "attn_q_a_norm": (40,), "attn_q_b": (144, 40)},
        {"attention.q_lora_rank": 40},
        "this model has: rank of q 40$",
    ),
    (
        "deepseek2",
        {"attn_q_b": (120, 32), "attn_k_b": (3, 64, 24)},
        {"attention.key_length_mla": 40},
        ": unrotated part 24$",
    ),
    (
        "deepseek2",
        {"attn_v_b": (3, 20, 64), "attn_output": (96, 60)},
        {"attention.value_length_mla": 20},
        ": values 60$",
    ),
    (
        "deepseek2-split",
        {"attn_kv_a_mqa": (56, 96), "attn_kv_a_norm": (40,), "attn_kv_b": (192, 40)},
        {"attention.kv_lora_rank": 40},
        ": rank of k and v 40$",
    ),
    (
        "deepseek2-split",
        {"attn_kv_a_mqa": (78, 96), "attn_kv_b": (198, 64)},
        {"rope.dimension_count": 14},
        "multiples of 16 up to 576, this model has: unrotated part 34$",
    ),
    (
        "gemma4",
        {
            "per_layer_token_embd.weight": (101, 120),
            "per_layer_model_proj.weight": (120, 96),
            "per_layer_proj_norm.weight": (24,),
            "inp_gate": (24, 96),
            "proj": (96, 24),
        },
        {"embedding_length_per_layer_input": 24},
        ": embedding of a layer 24$",
    ),
    (
        "gemma4-moe",
        dict.fromkeys(GATE, (40, 96)) | {"ffn_down": (96, 40)},
        {"feed_forward_length": 40},
        ": feed-forward 40$",
    ),
]


def write(
    tiny_models: ModuleType, folder: Path, name: str, shapes: Shapes, metadata: dict[str, Any]
) -> Path:
    """A tiny model with other shapes and metadata."""
    tiny = tiny_models.MODELS[name]

    def shape_of(tensor: str, usual: tuple[int, ...]) -> tuple[int, ...]:
        parts = tensor.split(".")
        own = parts[2] if parts[0] == "blk" and parts[3] == "weight" else ""
        return shapes.get(tensor, shapes.get(own, usual))

    tensors = {t: shape_of(t, s) for t, s in tiny.tensors.items()}
    tensors |= {t: s for t, s in shapes.items() if t.startswith("dense_")}
    changed = replace(tiny, tensors=tensors, metadata=dict(tiny.metadata) | metadata)
    return changed.write(folder / f"{name}.gguf")


@pytest.mark.parametrize(("name", "shapes", "metadata", "said"), SIZES)
def test_sizes_that_kernels_do_not_run(
    tiny_models: ModuleType,
    tmp_path: Path,
    name: str,
    shapes: Shapes,
    metadata: dict[str, Any],
    said: str,
) -> None:
    path = write(tiny_models, tmp_path, name, shapes, metadata)
    with GGUFFile.open(path) as gguf, pytest.raises(UnsupportedModelError, match=said):
        build_program(Weights.open(gguf), num_pages=4, num_threads=1)


@pytest.mark.parametrize(
    ("name", "shapes", "metadata", "said"),
    [
        (
            "gemma4",  # layers 3 and 4 use others' keys
            {},
            {"attention.head_count_kv": [2, 2, 1, 6, 6]},
            "head_count_kv is 6, expected 2 in layer 3, which uses the keys of layer 1",
        ),
        (
            "gemma-embedding",
            {"dense_2.weight": (64, 96), "dense_3.weight": (96, 32)},
            {},
            "dense_3",
        ),
        ("llama", {}, {"nextn_predict_layers": [1, 2]}, "nextn_predict_layers is"),
        ("modern-bert", {}, {"attention.sliding_window": 1}, "sliding_window is 1"),
        ("deepseek2", {}, {"attention.shared_kv_layers": 1}, "shared_kv_layers is 1"),
    ],
)
def test_parts_that_do_not_go_together(
    tiny_models: ModuleType,
    tmp_path: Path,
    name: str,
    shapes: Shapes,
    metadata: dict[str, Any],
    said: str,
) -> None:
    path = write(tiny_models, tmp_path, name, shapes, metadata)
    with GGUFFile.open(path) as gguf, pytest.raises(ModelError, match=said):
        Weights.open(gguf)


def test_arrays_in_place_of_single_values(tiny_models: ModuleType, tmp_path: Path) -> None:
    """They can't be compared as words and numbers are."""
    more = {"nextn_predict_layers": [1, 1], "general.type": [1, 2]}
    path = write(tiny_models, tmp_path, "llama", {}, more)
    with GGUFFile.open(path) as gguf:
        layers = tiny_models.MODELS["llama"].metadata["block_count"] - 1
        assert Weights.open(gguf).hyperparameters.num_layers == layers


@pytest.mark.parametrize("rows", [50, 150])
def test_a_vocabulary_of_another_size_than_the_embedding(
    tiny_models: ModuleType, tmp_path: Path, rows: int
) -> None:
    shapes: Shapes = {"token_embd.weight": (rows, 96), "output.weight": (rows, 96)}
    path = write(tiny_models, tmp_path, "llama", shapes, {})
    with pytest.raises(InvalidModelFileError, match=f"101 tokens, but token_embd.weight {rows}"):
        LLM(path, num_threads=1)
