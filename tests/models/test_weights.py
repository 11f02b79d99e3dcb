"""Files are checked at the door: numbers, tensors, shapes, formats; errors name the culprit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError, ModelError, UnsupportedModelError
from llamba.models.architectures import ARCHITECTURES
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_types import TensorInfo
from llamba.models.weights import Weights, expected_tensors
from llamba.quant import FORMATS_BY_NAME

Tiny = Callable[..., Path]


def open_tiny(tiny_gguf: Tiny, **options: Any) -> Weights:
    return Weights.open(GGUFFile.open(tiny_gguf(**options)))


def f32_tensor(name: str, values: np.ndarray) -> TensorInfo:
    raw = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return TensorInfo(name, 0, values.shape, raw.size, raw)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tiny_models_open(name: str, tiny_gguf: Tiny) -> None:
    weights = open_tiny(tiny_gguf, architecture=name)
    numbers = weights.hyperparameters
    assert weights.architecture == ARCHITECTURES[name]
    assert (numbers.num_layers, numbers.dim, numbers.ffn_dim) == (2, 64, 96)
    assert (numbers.num_heads, numbers.num_kv_heads, numbers.head_dim) == (4, 2, 16)
    assert numbers.attention_scale == 0.25
    assert weights.f32("output_norm.weight").shape == (64,)
    assert weights.optional("nothing") is None
    with pytest.raises(InvalidModelFileError, match="tensor nothing is missing"):
        weights.tensor("nothing")


@pytest.mark.parametrize("name", FORMATS_BY_NAME)
def test_every_format_is_accepted(name: str, tiny_gguf: Tiny) -> None:
    weights = open_tiny(tiny_gguf, weights=name)
    assert weights.tensor("blk.0.attn_q.weight").type_name == name
    assert np.isfinite(weights.f32("blk.0.attn_q.weight")).all()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param("smollm2", (30, 576, 1536, 9, 3, 64, 49152), id="smollm2"),
        pytest.param("gemma3", (18, 640, 2048, 4, 1, 256, 262144), id="gemma3"),
        pytest.param("qwen-0.5b", (24, 896, 4864, 14, 2, 64, 151936), id="qwen-0.5b"),
        pytest.param("qwen-1.5b", (28, 1536, 8960, 12, 2, 128, 151936), id="qwen-1.5b"),
    ],
)
def test_real_models_open(
    model: str, expected: tuple[int, ...], models: Callable[[str], Path]
) -> None:
    n = Weights.open(GGUFFile.open(models(model))).hyperparameters
    got = (n.num_layers, n.dim, n.ffn_dim, n.num_heads, n.num_kv_heads, n.head_dim, n.vocab_size)
    assert got == expected


def test_output_is_the_embedding_when_the_file_has_no_other(tiny_gguf: Tiny) -> None:
    assert open_tiny(tiny_gguf, tied=True).output.name == "token_embd.weight"
    assert open_tiny(tiny_gguf, tied=False).output.name == "output.weight"


def test_gemma3_windows(tiny_gguf: Tiny) -> None:
    numbers = open_tiny(tiny_gguf, architecture="gemma3", num_layers=7).hyperparameters
    assert [numbers.layer_window(i) for i in range(7)] == [8, 8, 8, 8, 8, 0, 8]
    assert numbers.layer_rope(0) == (10000.0, 1.0)
    assert numbers.layer_rope(5) == (1e6, 1.0)
    assert numbers.embedding_scale == 8.0
    whole = open_tiny(
        tiny_gguf, architecture="gemma3", metadata={"gemma3.attention.sliding_window": None}
    ).hyperparameters
    assert whole.layer_window(0) == 0 and whole.layer_rope(0) == (1e6, 1.0)
    every_second = open_tiny(
        tiny_gguf, architecture="gemma3", metadata={"gemma3.attention.sliding_window_pattern": 2}
    ).hyperparameters
    assert [every_second.layer_window(i) for i in range(2)] == [8, 0]


def test_gemma3_of_62_layers_scales_by_width_over_heads(tiny_gguf: Tiny) -> None:
    numbers = open_tiny(
        tiny_gguf, architecture="gemma3", num_layers=62, num_heads=2, num_kv_heads=1
    ).hyperparameters
    assert numbers.attention_scale == pytest.approx(32**-0.5)


def test_rope_scaling(tiny_gguf: Tiny) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 8.0}
    assert open_tiny(tiny_gguf, metadata=linear).hyperparameters.rope_scale == 8.0
    off = linear | {"llama.rope.scaling.type": "none"}
    assert open_tiny(tiny_gguf, metadata=off).hyperparameters.rope_scale == 1.0
    old = {"llama.rope.scale_linear": 4.0}
    assert open_tiny(tiny_gguf, metadata=old).hyperparameters.rope_scale == 4.0
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.type is 'yarn'"):
        open_tiny(tiny_gguf, metadata=linear | {"llama.rope.scaling.type": "yarn"})


def test_rope_factors(tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf())
    factors = np.arange(1, 9, dtype=np.float32)
    gguf.tensors["rope_freqs.weight"] = f32_tensor("rope_freqs.weight", factors)
    read = Weights.open(gguf).hyperparameters.rope_factors
    assert read is not None and np.array_equal(read, factors)
    for bad, message in (
        (np.ones(7), "shape"),
        (np.zeros(8), "positive"),
        (np.full(8, np.nan), ""),
    ):
        gguf.tensors["rope_freqs.weight"] = f32_tensor("rope_freqs.weight", bad)
        with pytest.raises(InvalidModelFileError, match=rf"rope_freqs\.weight.*{message}"):
            Weights.open(gguf)


def test_llama_with_biases(tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf())
    for layer in range(2):
        for which, size in (("q", 64), ("k", 32), ("v", 32)):
            name = f"blk.{layer}.attn_{which}.bias"
            gguf.tensors[name] = f32_tensor(name, np.ones(size))
    assert Weights.open(gguf).architecture.qkv_bias
    del gguf.tensors["blk.1.attn_v.bias"]
    with pytest.raises(InvalidModelFileError, match=r"blk\.1\.attn_v\.bias is missing"):
        Weights.open(gguf)


def test_unknown_architecture_names_it_and_what_is_supported(tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf(architecture="bert"))
    with pytest.raises(UnsupportedModelError, match="'bert'.*llama, qwen2, gemma3"):
        Weights.open(gguf)


def test_vocabulary_only_file(tiny_gguf: Tiny) -> None:
    with pytest.raises(InvalidModelFileError, match="token_embd.weight is missing"):
        open_tiny(tiny_gguf, tensors=False)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_needed_tensor_is_missed(name: str, tiny_gguf: Tiny) -> None:
    weights = open_tiny(tiny_gguf, architecture=name)
    for tensor, _, needed in expected_tensors(weights.architecture, weights.hyperparameters):
        gguf = GGUFFile.open(weights.gguf.path)
        if needed:
            info = gguf.tensors.pop(tensor)
            with pytest.raises(InvalidModelFileError, match=f"{tensor} is missing"):
                Weights.open(gguf)
        elif tensor not in gguf.tensors:
            continue
        else:
            info = gguf.tensors[tensor]
        gguf.tensors[tensor] = f32_tensor(tensor, np.ones([size + 16 for size in info.shape]))
        with pytest.raises(InvalidModelFileError, match="shape|multiple"):
            Weights.open(gguf)


@pytest.mark.parametrize("name", ["blk.0.attn_output.bias", "blk.0.ffn_gate_inp.weight", "extra"])
def test_a_tensor_that_would_be_ignored_is_refused(name: str, tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf())
    gguf.tensors[name] = f32_tensor(name, np.ones(64))
    with pytest.raises(UnsupportedModelError, match=f"{name} is not part of"):
        Weights.open(gguf)


def test_a_format_that_is_not_run_is_named(tiny_gguf: Tiny) -> None:
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.weight \(NVFP4\)"):
        open_tiny(tiny_gguf, formats={"blk.0.attn_q.weight": "NVFP4"})


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("block_count", None, InvalidModelFileError),
        ("block_count", 0, InvalidModelFileError),
        ("block_count", 3, InvalidModelFileError),
        ("block_count", 2**31, InvalidModelFileError),
        ("block_count", "2", InvalidModelFileError),
        ("block_count", 2.0, InvalidModelFileError),
        ("embedding_length", None, InvalidModelFileError),
        ("embedding_length", 65, InvalidModelFileError),
        ("feed_forward_length", None, InvalidModelFileError),
        ("feed_forward_length", 97, InvalidModelFileError),
        ("feed_forward_length", [96, 96], None),
        ("feed_forward_length", [96, 64], UnsupportedModelError),
        ("context_length", None, InvalidModelFileError),
        ("attention.head_count", None, InvalidModelFileError),
        ("attention.head_count", 0, InvalidModelFileError),
        ("attention.head_count", True, InvalidModelFileError),
        ("attention.head_count_kv", 3, InvalidModelFileError),
        ("attention.head_count_kv", 1, InvalidModelFileError),
        ("attention.key_length", 24, UnsupportedModelError),
        ("attention.key_length", 512, UnsupportedModelError),
        ("attention.value_length", 32, UnsupportedModelError),
        ("attention.layer_norm_rms_epsilon", None, InvalidModelFileError),
        ("attention.layer_norm_rms_epsilon", float("nan"), InvalidModelFileError),
        ("attention.layer_norm_rms_epsilon", -1e-6, InvalidModelFileError),
        ("rope.freq_base", float("inf"), InvalidModelFileError),
        ("rope.freq_base", 0.0, InvalidModelFileError),
        ("rope.freq_base", None, None),
        ("rope.dimension_count", 18, InvalidModelFileError),
        ("rope.dimension_count", 7, InvalidModelFileError),
        ("rope.dimension_count", None, None),
        ("expert_count", 8, UnsupportedModelError),
        ("expert_count", 0, None),
        ("attention.causal", False, UnsupportedModelError),
    ],
)
def test_numbers_are_checked(
    key: str, value: object, error: type[ModelError] | None, tiny_gguf: Tiny
) -> None:
    metadata = {f"llama.{key}": value}
    if error is None:
        open_tiny(tiny_gguf, metadata=metadata)
        return
    with pytest.raises(error) as caught:
        open_tiny(tiny_gguf, metadata=metadata)
    message = str(caught.value)  # names the file, and the key or the tensor that disagrees
    assert ".gguf: " in message
    assert f"llama.{key}" in message or "tensor " in message
