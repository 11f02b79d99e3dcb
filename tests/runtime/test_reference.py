"""The reference forward pass against a scalar implementation of its own, and against llama.cpp."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.architecture import Activation, Layer, Placement, QKNorm, Rope
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_types import TensorInfo
from llamba.models.weights import Weights
from llamba.runtime.kernels.reference import Reference, State, log_softmax

Tiny = Callable[..., Path]


def loops(weights: Weights, ids: list[int]) -> NDArray[np.float64]:
    """All positions' logits, a loop a sum, pair and score; nothing shared with the oracle."""
    h, a, f = weights.hyperparameters, weights.architecture, weights.f32
    sandwich = a.placement is Placement.SANDWICH

    def matrix(name: str, x: list[float]) -> list[float]:
        y = [math.fsum(map(float.__mul__, x, row)) for row in f(f"{name}.weight").tolist()]
        if weights.optional(f"{name}.bias") is not None:
            y = [v + b for v, b in zip(y, f(f"{name}.bias").tolist(), strict=True)]
        return y

    def norm(x: list[float], name: str) -> list[float]:
        root = math.sqrt(math.fsum(v * v for v in x) / len(x) + h.norm_eps)
        return [v / root * w for v, w in zip(x, f(f"{name}.weight").tolist(), strict=True)]

    def turn(x: list[float], position: int, layer: Layer) -> list[float]:
        assert layer.rotation is not None
        out, half = list(x), layer.rotation.dim // 2
        for pair, frequency in enumerate(layer.rotation.frequencies.tolist()):
            angle = position * frequency
            near = layer.rotation.kind is Rope.NORM
            i, j = (2 * pair, 2 * pair + 1) if near else (pair, pair + half)
            turned = complex(x[i], x[j]) * complex(math.cos(angle), math.sin(angle))
            turned *= layer.rotation.magnitude
            out[i], out[j] = turned.real, turned.imag
        return out

    def heads(which: str, x: list[float], index: int, position: int) -> list[list[float]]:
        y, layer = matrix(f"blk.{index}.attn_{which}", x), h.layers[index]
        split = [y[i : i + layer.key_dim] for i in range(0, len(y), layer.key_dim)]
        if which == "v":
            return split
        if a.qk_norm is QKNorm.HEAD:
            split = [norm(head, f"blk.{index}.attn_{which}_norm") for head in split]
        return [turn(head, position, layer) for head in split]

    def activate(x: float) -> float:
        if a.activation is Activation.SILU:
            return x / (1 + math.exp(-x))
        return x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def cap(x: float, limit: float) -> float:
        return limit * math.tanh(x / limit) if limit else x

    cache: list[list[tuple[list, list]]] = [[] for _ in range(h.num_layers)]
    logits = []
    for position, token in enumerate(ids):
        x = [v * h.embedding_scale for v in f("token_embd.weight")[token].tolist()]
        for number, layer in enumerate(h.layers):
            name = f"blk.{number}."
            y = norm(x, name + "attn_norm")
            cache[number].append((heads("k", y, number, position), heads("v", y, number, position)))
            first = max(0, position - layer.window + 1) if layer.window else 0
            joined: list[float] = []
            for index, q in enumerate(heads("q", y, number, position)):
                shared = index * layer.num_kv_heads // layer.num_heads
                seen = cache[number][first : position + 1]
                dots = [math.fsum(map(float.__mul__, q, keys[shared])) for keys, _ in seen]
                e = [math.exp(cap(d * layer.attention_scale, h.attention_softcap)) for d in dots]
                for i in range(layer.value_dim):
                    pairs = zip(e, seen, strict=True)
                    joined.append(sum(p * values[shared][i] for p, (_, values) in pairs) / sum(e))
            y = matrix(name + "attn_output", joined)
            y = norm(y, name + "post_attention_norm") if sandwich else y
            x = [u + v * h.residual_scale for u, v in zip(x, y, strict=True)]
            y = norm(x, name + "ffn_norm")
            gate, up = matrix(name + "ffn_gate", y), matrix(name + "ffn_up", y)
            mixed = [activate(g) * u for g, u in zip(gate, up, strict=True)]
            y = matrix(name + "ffn_down", mixed)
            y = norm(y, name + "post_ffw_norm") if sandwich else y
            x = [u + v * h.residual_scale for u, v in zip(x, y, strict=True)]
        out = matrix(weights.output.name.removesuffix(".weight"), norm(x, "output_norm"))
        logits.append([cap(v * h.logit_scale, h.final_softcap) for v in out])
    return np.array(logits)


def tiny_weights(
    tiny_gguf: Tiny,
    numbers: dict[str, Any] | None = None,
    tensors: dict[str, NDArray] | None = None,
    **options: Any,
) -> Weights:
    """A tiny model. numbers: replaced hyperparameters. tensors: what its file has beside."""
    gguf = GGUFFile.open(tiny_gguf(**options))
    for name, values in (tensors or {}).items():
        raw = values.astype(np.float32).reshape(-1).view(np.uint8)
        gguf.tensors[name] = TensorInfo(name, 0, values.shape, raw.size, raw)
    weights = Weights.open(gguf)
    return replace(weights, hyperparameters=replace(weights.hyperparameters, **(numbers or {})))


def biases(**sizes: int) -> dict[str, NDArray]:
    """Random biases of both layers."""
    rng = np.random.default_rng(2)
    return {
        f"blk.{layer}.{name}.bias": rng.random(size)
        for layer in (0, 1)
        for name, size in sizes.items()
    }


FEATURES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama-q4_k": {"architecture": "llama", "weights": "Q4_K"},
    "qwen2": {"architecture": "qwen2"},
    "gemma3": {"architecture": "gemma3", "num_layers": 7},
    "one-head": {"architecture": "llama", "num_heads": 1, "num_kv_heads": 1},
    "no-grouping": {"architecture": "qwen2", "num_heads": 4, "num_kv_heads": 4},
    "linear-scaling": {
        "architecture": "llama", "metadata": {"llama.rope.scaling.factor": 4.0},
    },
    "full-layers-scaled": {
        "architecture": "gemma3", "num_layers": 6, "metadata": {"gemma3.rope.scaling.factor": 8.0},
    },
    "yarn": {
        "architecture": "qwen2",
        "metadata": {
            "qwen2.rope.scaling.type": "yarn",
            "qwen2.rope.scaling.factor": 4.0,
            "qwen2.rope.scaling.original_context_length": 64,
        },
    },
    "partial-rope": {"architecture": "llama", "metadata": {"llama.rope.dimension_count": 8}},
    "partial-neox": {"architecture": "qwen2", "metadata": {"qwen2.rope.dimension_count": 8}},
    "rope-factors": {
        "architecture": "llama",
        "tensors": {"rope_freqs.weight": np.array([1, 1, 1, 1.5, 2, 4, 8, 8])},
    },
    "biases": {
        "architecture": "llama",
        "tensors": biases(attn_q=64, attn_k=32, attn_v=32, attn_output=64, ffn_down=64),
    },
    "soft-caps": {
        "architecture": "qwen2", "numbers": {"attention_softcap": 0.1, "final_softcap": 0.3},
    },
    "scales": {
        "architecture": "llama",
        "numbers": {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 0.25},
    },
}  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES)
def test_equals_the_scalar_implementation(feature: str, tiny_gguf: Tiny) -> None:
    weights = tiny_weights(tiny_gguf, **FEATURES[feature])
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 280, 12)]  # past the window of 8
    expected = loops(weights, ids)
    assert expected.std() > 0.01
    np.testing.assert_allclose(Reference(weights).run(ids), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_steps_equal_the_whole_sequence(name: str, tiny_gguf: Tiny) -> None:
    reference = Reference(tiny_weights(tiny_gguf, architecture=name), keep=True)
    ids = np.random.default_rng(3).integers(0, 280, 40)
    whole, state = reference.run(ids), State()
    parts = [reference.run(part, state) for part in np.split(ids, [1, 2, 9, 33])]
    assert state.length == 40
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(reference.run(ids, num_logits=3), whole[-3:], rtol=1e-9, atol=1e-12)


def test_float32_and_float16_kv_stay_close(tiny_gguf: Tiny) -> None:
    weights, ids = tiny_weights(tiny_gguf, architecture="gemma3"), list(range(30))
    exact = Reference(weights).run(ids)
    single = Reference(weights, dtype=np.float32).run(ids)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, atol=2e-5)
    rounded = Reference(weights, kv_float16=True).run(ids)
    assert 0 < np.abs(rounded - exact).max() < 5e-3


def test_trace_names_the_stages(tiny_gguf: Tiny) -> None:
    seen: dict[str, tuple[int, ...]] = {}
    weights = tiny_weights(tiny_gguf, architecture="qwen2")
    Reference(weights, trace=lambda name, x: seen.update({name: x.shape})).run([1, 2, 3])
    assert seen["embedding"] == seen["blk.1.out"] == (3, 64)
    assert seen["blk.0.q"] == seen["blk.0.attention"] == (3, 4, 16)


def test_unknown_token_is_refused(tiny_gguf: Tiny) -> None:
    with pytest.raises(IndexError):
        Reference(tiny_weights(tiny_gguf)).run([100_000])


# llama.cpp's `f32` variants: all weights dequantized, float32 activations, KV in float16.
GOLDEN = {
    "smollm2": "smollm2-135m",
    "gemma3": "gemma-3-270m",
    "qwen-0.5b": "qwen2.5-coder-0.5b",
    "qwen-1.5b": "qwen2.5-coder-1.5b",
}


def golden_cases(shared: Path, model: str) -> dict[str, Any]:
    golden = json.loads((shared / "open" / f"variants_{GOLDEN[model]}.json").read_text())
    cases = {case["name"]: case for case in golden["cases"]}
    if model == "qwen-1.5b":
        del cases["one_word"]  # ill-conditioned, the goldens' README says
    return cases


def compare(reference: Reference, case: dict[str, Any], num_steps: int) -> None:
    """The first position's top 20, then llama.cpp's own greedy path, fed back."""
    golden = case["variants"]["f32"]
    steps = golden["steps"][:num_steps]
    ids = case["prompt_ids"] + [step[0] for step in steps[:-1]]
    logprobs = log_softmax(reference.run(ids, num_logits=len(steps)))
    for token, expected in golden["top20"]:
        assert logprobs[0, token] == pytest.approx(expected, abs=0.01), (case["name"], token)
    for row, (token, expected, _, runner_up) in zip(logprobs, steps, strict=True):
        assert row[token] == pytest.approx(expected, abs=0.02)
        if expected - runner_up >= 0.02:
            assert row.argmax() == token


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("smollm2", ["short", "one_word", "chat", "code", "chinese", "digits"]),
        ("gemma3", ["short", "code"]),
        ("qwen-0.5b", ["short"]),
    ],
)
def test_equals_llama_cpp(
    model: str, names: list[str], shared: Path, models: Callable[[str], Path]
) -> None:
    weights = Weights.open(GGUFFile.open(models(model)))
    reference = Reference(weights, dtype=np.float32, kv_float16=True, keep=len(names) > 2)
    cases = golden_cases(shared, model)
    for name in names:
        compare(reference, cases[name], num_steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("model", GOLDEN)
def test_equals_llama_cpp_everywhere(
    model: str, shared: Path, models: Callable[[str], Path]
) -> None:
    weights = Weights.open(GGUFFile.open(models(model)))
    reference = Reference(weights, dtype=np.float32, kv_float16=True)
    for case in golden_cases(shared, model).values():
        compare(reference, case, num_steps=48)
