"""A file's keys become numbers of each layer; values that can't be right are refused by name."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError
from llamba.models.architecture import Gating, Hyperparameters, Rope, Rotation
from llamba.models.architectures import ARCHITECTURES
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_types import TensorInfo
from llamba.models.hyperparameters import read_hyperparameters
from llamba.models.resolving import resolve_architecture

# What every architecture's file says.
USUAL: dict[str, Any] = {
    "block_count": 4,
    "context_length": 256,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.dimension_count": 16,
}
SCALING = "rope.scaling"


def tensor(name: str, *shape: int, values: Any = None) -> TensorInfo:
    raw = np.asarray(np.ones(shape) if values is None else values, np.float32)
    data = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    return TensorInfo(name, 0, raw.shape, data.size, data)


def read(name: str, keys: dict[str, Any] | None = None, *tensors: TensorInfo) -> Hyperparameters:
    """Numbers of a file with these keys, beside the usual ones; None: the file lacks the key."""
    values = {f"{name}.{key}": value for key, value in (USUAL | (keys or {})).items()}
    all_tensors = {t.name: t for t in (tensor("token_embd.weight", 300, 64), *tensors)}
    file = SimpleNamespace(
        path=Path("made-up.gguf"),
        metadata={key: value for key, value in values.items() if value is not None},
        tensors=all_tensors,
    )
    gguf = cast(GGUFFile, file)
    return read_hyperparameters(resolve_architecture(ARCHITECTURES[name], gguf), gguf)


def rotation_of(numbers: Hyperparameters, layer: int = 0) -> Rotation:
    rotation = numbers.layers[layer].rotation
    assert rotation is not None
    return rotation


PLAIN = 10000.0 ** (-np.arange(8) / 8)


def test_plain_numbers() -> None:
    n = read("llama")
    assert (n.dim, n.vocab_size, n.context_length, n.num_layers) == (64, 300, 256, 4)
    assert n.norm_eps == 1e-6 and read("gpt2").norm_eps == 1e-5
    first = n.layers[0]
    assert (first.num_heads, first.num_kv_heads, first.key_dim, first.value_dim) == (4, 2, 16, 16)
    assert (first.ffn_dim, first.window, first.experts, first.attention_scale) == (
        96,
        0,
        False,
        1 / 4,
    )
    assert [layer.cache for layer in n.layers] == [0, 1, 2, 3]
    assert n.experts is None and n.latent is None and n.num_labels == 0
    assert rotation_of(n).kind is Rope.NORM
    np.testing.assert_allclose(rotation_of(n).frequencies, PLAIN, rtol=1e-12)
    assert len(n.rotations) == 1 and rotation_of(n, 3) is rotation_of(n)


def test_numbers_that_differ_between_layers() -> None:
    keys = {
        "attention.head_count": np.array([4, 4, 8, 4]),
        "attention.head_count_kv": np.array(
            [2, 1, 4, 4, 9]
        ),  # more than layers: the rest is unused
        "feed_forward_length": np.array([96, 64, 32, 96]),
    }
    layers = read("llama", keys).layers
    assert [layer.num_heads for layer in layers] == [4, 4, 8, 4]
    assert [layer.num_kv_heads for layer in layers] == [2, 1, 4, 4]
    assert [layer.ffn_dim for layer in layers] == [96, 64, 32, 96]


def test_layers_for_speculation_are_not_run() -> None:
    assert read("glm4", {"nextn_predict_layers": 1}).num_layers == 3


def test_linear_scaling() -> None:
    linear = {f"{SCALING}.type": "linear", f"{SCALING}.factor": 8.0}
    for keys, factor in (
        (linear, 8.0),
        ({f"{SCALING}.factor": 2.0}, 2.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        (linear | {f"{SCALING}.type": "none"}, 1.0),
    ):
        np.testing.assert_allclose(rotation_of(read("llama", keys)).frequencies, PLAIN / factor)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    keys = {
        f"{SCALING}.type": "yarn",
        f"{SCALING}.factor": 4.0,
        f"{SCALING}.original_context_length": 64,
    }
    rotation = rotation_of(read("qwen3", keys | {"attention.key_length": 16}))
    # Pair p turns 64 / (2 pi 10000^(p/8)) times: 32 times none does, once pair 2 about.
    low, high = 0.0, math.ceil(16 * math.log(64 / (2 * math.pi)) / (2 * math.log(10000)))
    kept = 1 - np.clip((np.arange(8) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(rotation.frequencies, PLAIN * (kept + (1 - kept) / 4), rtol=1e-12)
    assert rotation.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    given = keys | {f"{SCALING}.attn_factor": 1.5, f"{SCALING}.yarn_log_multiplier": 1.0}
    assert rotation_of(read("mistral3", given)).magnitude == pytest.approx(1.5)
    sharper = keys | {f"{SCALING}.yarn_beta_fast": 1.0, f"{SCALING}.yarn_beta_slow": 0.01}
    assert rotation_of(read("mistral3", sharper)).frequencies[0] == 1.0


def test_rope_factors_of_llama_3() -> None:
    factors = np.arange(1, 9)
    rotation = rotation_of(read("llama", {}, tensor("rope_freqs.weight", values=factors)))
    np.testing.assert_allclose(rotation.frequencies, PLAIN / factors)
    for bad, message in ((np.ones(7), "shape"), (np.zeros(8), "positive"), ([np.nan] * 8, "fin")):
        with pytest.raises(InvalidModelFileError, match=rf"rope_freqs\.weight.*{message}"):
            read("llama", {}, tensor("rope_freqs.weight", values=bad))


def test_long_rope_depends_on_the_context() -> None:
    keys = {f"{SCALING}.original_context_length": 128, f"{SCALING}.attn_factor": 1.2}
    long, short = np.linspace(2, 9, 8), np.linspace(1, 2, 8)
    numbers = read(
        "phi3",
        keys,
        tensor("rope_factors_long.weight", values=long),
        tensor("rope_factors_short.weight", values=short),
    )
    for context, factors in ((128, short), (129, long)):
        resolved = numbers.for_context(context)
        rotation = rotation_of(resolved)
        np.testing.assert_allclose(rotation.frequencies, PLAIN / factors, rtol=1e-6)
        assert rotation.magnitude == 1.2 and len(resolved.rotations) == 1


def test_which_layers_turn() -> None:
    def turning(*arguments: Any) -> list[bool]:
        return [layer.rotation is not None for layer in read(*arguments).layers]

    assert turning("smollm3") == [True, True, True, False]
    assert turning("gpt2") == [False] * 4
    assert turning("granite", {"logit_scale": 8.0}) == [True] * 4
    off = {"logit_scale": 8.0, f"{SCALING}.finetuned": False}
    assert turning("granite", off) == [False] * 4 and turning("llama", off) == [True] * 4
    window = {"attention.sliding_window": 8}
    assert turning("exaone4", window) == [True, True, True, False]
    assert turning("exaone4") == [True] * 4
    pattern = {"attention.rope_pattern": np.array([0, 1, 1, 0])}
    assert turning("llama", pattern) == [False, True, True, False]


def test_windows() -> None:
    def windows(*arguments: Any) -> list[int]:
        return [layer.window for layer in read(*arguments).layers]

    keys = {"attention.sliding_window": 8}
    assert windows("gemma3", keys) == [8, 8, 8, 8]
    assert windows("gemma3") == [0] * 4
    assert windows("gemma2") == [4096, 0, 4096, 0]
    assert windows("modern-bert", keys) == [0, 8, 8, 0]
    pattern = "attention.sliding_window_pattern"
    assert windows("gemma3", keys | {pattern: 2}) == [8, 0, 8, 0]
    assert windows("gemma3", keys | {pattern: 1}) == [0] * 4
    assert windows("olmo2", keys | {pattern: 0}) == [8] * 4
    flags = np.array([True, False, True, True])
    assert windows("gemma3", keys | {pattern: flags}) == [8, 0, 8, 8]
    # llama.cpp ignores these architectures' windows.
    assert windows("phi3", keys) == windows("qwen2", keys) == [0] * 4


def test_sliding_layers_may_have_another_base_and_other_heads() -> None:
    keys = {"attention.sliding_window": 8, "rope.freq_base": 1e6, f"{SCALING}.factor": 8.0}
    numbers = read("gemma3", keys | {"block_count": 6})
    np.testing.assert_allclose(rotation_of(numbers, 0).frequencies, PLAIN)
    np.testing.assert_allclose(rotation_of(numbers, 5).frequencies, 1e6 ** (-np.arange(8) / 8) / 8)
    numbers = read(
        "gemma4",
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": np.array([True, False, True, False]),
            "attention.key_length": 32,
            "attention.value_length": 32,
            "attention.key_length_swa": 16,
            "attention.value_length_swa": 16,
            "rope.dimension_count": 32,
            "rope.dimension_count_swa": 16,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
        },
    )
    assert [layer.key_dim for layer in numbers.layers] == [16, 32, 16, 32]
    assert [rotation_of(numbers, i).dim for i in range(4)] == [16, 32, 16, 32]
    assert [layer.cache for layer in numbers.layers] == [0, 1, 0, 1]
    assert numbers.layers[0].attention_scale == 1.0 and numbers.per_layer_dim == 8
    assert numbers.final_softcap == 30.0


def test_scales() -> None:
    keys = {"logit_scale": 8.0, "residual_scale": 0.2, "embedding_scale": 12.0}
    numbers = read("granite", keys | {"attention.scale": 0.01})
    assert (numbers.residual_scale, numbers.embedding_scale, numbers.logit_scale) == (
        0.2,
        12,
        1 / 8,
    )
    assert numbers.layers[0].attention_scale == 0.01
    assert read("cohere2", keys | {"attention.sliding_window": 8}).logit_scale == 8.0
    assert read("gemma").embedding_scale == 8.0
    gemma2 = read("gemma2", {"attn_logit_softcapping": 20.0})
    assert (gemma2.attention_softcap, gemma2.final_softcap) == (20.0, 30.0)
    assert read("gemma3", {"block_count": 62}).layers[0].attention_scale == 1 / 4
    wide = {"block_count": 62, "attention.key_length": 32}
    assert read("gemma3", wide).layers[0].attention_scale == 1 / 4
    assert read("gemma3", wide | {"block_count": 4}).layers[0].attention_scale == 1 / math.sqrt(32)
    assert read("bloom").alibi_bias == 8.0 and read("llama").alibi_bias == 0.0
    hot = {"attention.temperature_scale": 0.1, f"{SCALING}.original_context_length": 32}
    assert (read("mistral3", hot).temperature, read("mistral3", hot).temperature_length) == (
        0.1,
        32,
    )


ROUTER = tensor("blk.1.ffn_gate_inp.weight", 8, 64)
DOWN = tensor("blk.1.ffn_down_exps.weight", 8, 64, 48)
EXPERTS = {"expert_count": 8, "expert_used_count": 2}


def test_experts() -> None:
    numbers = read("llama", EXPERTS, ROUTER, DOWN)
    experts = numbers.experts
    assert experts is not None and [layer.experts for layer in numbers.layers] == [0, 1, 0, 0]
    assert (experts.count, experts.used, experts.ffn_dim) == (8, 2, 48)
    assert experts.gating is Gating.SOFTMAX and experts.normalize and experts.scale == 1.0
    keys = EXPERTS | {
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
        "leading_dense_block_count": 1,
    }
    experts = read("dots1", keys, ROUTER).experts
    assert experts is not None
    assert (experts.gating, experts.normalize, experts.scale) == (Gating.SIGMOID, True, 2.5)
    assert (experts.groups, experts.groups_used, experts.shared_ffn_dim) == (4, 2, 64)
    gpt_oss = read("gpt-oss", EXPERTS | {"attention.sliding_window": 8}, ROUTER, DOWN).experts
    assert gpt_oss is not None and gpt_oss.gating is Gating.SELECTED and not gpt_oss.normalize


LATENT = {
    "attention.kv_lora_rank": 32,
    "attention.q_lora_rank": 24,
    "rope.dimension_count": 16,
    f"{SCALING}.type": "yarn",
    f"{SCALING}.factor": 4.0,
    f"{SCALING}.yarn_log_multiplier": 0.0707,
}


def test_latent_attention_in_both_forms() -> None:
    expanded = read(
        "deepseek2", LATENT | {"attention.key_length": 32, "attention.value_length": 16}
    )
    first, latent = expanded.layers[0], expanded.latent
    assert latent is not None and not latent.absorbed and latent.q_rank == 0
    assert (first.num_kv_heads, first.key_dim, first.value_dim) == (4, 32, 16)
    assert rotation_of(expanded).offset == 16 and rotation_of(expanded).magnitude == 1.0
    stretch = 1 + 0.1 * 0.707 * math.log(4)
    assert first.attention_scale == pytest.approx(stretch**2 / math.sqrt(32))
    absorbed = read(
        "deepseek2",
        LATENT | {"attention.key_length_mla": 32, "attention.value_length_mla": 16},
        tensor("blk.0.attn_k_b.weight", 4, 32, 16),
        tensor("blk.0.attn_q_a.weight", 24, 64),
    )
    first, latent = absorbed.layers[0], absorbed.latent
    assert latent is not None and latent.absorbed and latent.q_rank == 24
    assert (first.num_kv_heads, first.key_dim, first.value_dim) == (1, 48, 32)
    assert rotation_of(absorbed).offset == 32
    assert first.attention_scale == pytest.approx(stretch**2 / math.sqrt(32))


def test_heads_of_classifiers() -> None:
    head = tensor("cls.output.weight", 2, 64)
    labels = {"classifier.output_labels": ["yes", "no"]}
    assert (read("qwen3", labels, head).num_labels, read("qwen3", {}, head).head_pooling) == (
        2,
        "last",
    )
    assert read("bert", {}, head).head_pooling == "cls"
    assert read("modern-bert", {}, head).head_pooling == "mean"
    assert read("modern-bert", {"classifier.pooling_type": 2}, head).head_pooling == "cls"
    with pytest.raises(
        InvalidModelFileError, match=r"output_labels is \['yes'\], expected 2 labels"
    ):
        read("qwen3", {"classifier.output_labels": ["yes"]}, head)
