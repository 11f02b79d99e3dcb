"""Files are checked at the door: numbers, tensors, shapes, formats; errors name the culprit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError, ModelError, UnsupportedModelError
from llamba.models.architecture import (
    Activation,
    Architecture,
    Hyperparameters,
    Placement,
    QKNorm,
)
from llamba.models.architectures import ARCHITECTURES
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_types import TensorInfo
from llamba.models.resolving import resolve_architecture
from llamba.models.weights import Weights, expected_tensors
from llamba.quant import FORMATS_BY_NAME

Tiny = Callable[..., Path]
TINY = ("llama", "qwen2", "gemma3")  # what tests/tiny.py writes


def open_tiny(tiny_gguf: Tiny, **options: Any) -> Weights:
    return Weights.open(GGUFFile.open(tiny_gguf(**options)))


def of(weights: Weights) -> tuple[Architecture, Hyperparameters]:
    return weights.architecture, weights.hyperparameters


def f32_tensor(name: str, values: np.ndarray) -> TensorInfo:
    raw = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return TensorInfo(name, 0, values.shape, raw.size, raw)


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_open(name: str, tiny_gguf: Tiny) -> None:
    weights = open_tiny(tiny_gguf, architecture=name)
    numbers, first = weights.hyperparameters, weights.hyperparameters.layers[0]
    assert weights.architecture == ARCHITECTURES[name]
    assert (numbers.num_layers, numbers.dim, first.ffn_dim) == (2, 64, 96)
    assert (first.num_heads, first.num_kv_heads, first.key_dim) == (4, 2, 16)
    assert weights.f32("output_norm.weight").shape == (64,)
    assert weights.optional("nothing") is None
    with pytest.raises(InvalidModelFileError, match="tensor nothing is missing"):
        weights.tensor("nothing")


def test_tensors_by_the_runtimes_names(tiny_gguf: Tiny) -> None:
    weights = open_tiny(tiny_gguf)
    assert weights.name(1, "ffn_norm") == "blk.1.ffn_norm.weight"
    assert weights.layer_tensor(1, "attn_q").name == "blk.1.attn_q.weight"
    assert weights.layer_optional(1, "attn_q", "bias") is None
    with pytest.raises(InvalidModelFileError, match=r"tensor blk\.0\.attn_qkv\.bias is missing"):
        weights.layer_tensor(0, "attn_qkv", "bias")
    named = replace(weights, architecture=ARCHITECTURES["gpt-oss"])
    assert named.name(0, "ffn_norm") == "blk.0.post_attention_norm.weight"


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
    first = n.layers[0]
    heads = (first.num_heads, first.num_kv_heads, first.key_dim)
    got = (n.num_layers, n.dim, first.ffn_dim, *heads, n.vocab_size)
    assert got == expected


def test_output_is_the_embedding_when_the_file_has_no_other(tiny_gguf: Tiny) -> None:
    assert open_tiny(tiny_gguf, tied=True).output.name == "token_embd.weight"
    assert open_tiny(tiny_gguf, tied=False).output.name == "output.weight"


def test_biases_are_found_by_their_presence(tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf())
    for name, size in (("attn_q", 64), ("attn_output", 64), ("ffn_up", 96), ("attn_norm", 64)):
        gguf.tensors[f"blk.0.{name}.bias"] = f32_tensor(f"blk.0.{name}.bias", np.ones(size))
    assert Weights.open(gguf).layer_optional(0, "ffn_up", "bias") is not None
    gguf.tensors["blk.0.ffn_up.bias"] = f32_tensor("blk.0.ffn_up.bias", np.ones(64))
    with pytest.raises(InvalidModelFileError, match=r"ffn_up\.bias has shape \(64,\), expected"):
        Weights.open(gguf)


def test_fused_attention_is_taken_in_place_of_its_parts(tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf())
    fused = np.concatenate(
        [
            np.ones((len(gguf.tensors[f"blk.0.attn_{part}.weight"].data) // 256, 64))
            for part in "qkv"
        ]
    )
    for part in "qkv":
        del gguf.tensors[f"blk.0.attn_{part}.weight"]
    with pytest.raises(InvalidModelFileError, match=r"blk\.0\.attn_q\.weight is missing"):
        Weights.open(gguf)
    gguf.tensors["blk.0.attn_qkv.weight"] = f32_tensor("blk.0.attn_qkv.weight", fused)
    assert Weights.open(gguf).layer_tensor(0, "attn_qkv").shape == (128, 64)
    gguf.tensors["blk.0.attn_qkv.weight"] = f32_tensor("blk.0.attn_qkv.weight", fused[1:])
    with pytest.raises(InvalidModelFileError, match="expected \\(128, 64\\)"):
        Weights.open(gguf)


def test_what_a_declaration_leaves_open_is_settled_by_the_tensors() -> None:
    def resolved(name: str, *tensors: str, **keys: Any) -> Architecture:
        file = SimpleNamespace(
            path=Path("made-up.gguf"),
            metadata={f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()},
            tensors={f"blk.0.{tensor}.weight": None for tensor in tensors},
        )
        return resolve_architecture(ARCHITECTURES[name], cast(GGUFFile, file))

    small, large = (
        resolved("stablelm", "attn_norm", "ffn_norm"),
        resolved("stablelm", "attn_q_norm"),
    )
    assert (small.placement, small.qk_norm) == (Placement.PRE, QKNorm.NONE)
    assert (large.placement, large.qk_norm) == (Placement.PARALLEL, QKNorm.HEADS)
    assert resolved("gptneox", use_parallel_residual=False).placement is Placement.PRE
    assert resolved("gptneox", use_parallel_residual=True).placement is Placement.PARALLEL
    assert resolved("modern-bert", hidden_activation="silu").activation is Activation.SILU
    assert not resolved("qwen2", attention__causal=False).causal
    assert not resolved("bert").token_types
    assert resolved("falcon", "attn_norm_2").tensor_names["ffn_norm"] == "attn_norm"
    # What the first layer has, the others need.
    assert small.optional == large.optional == ()
    assert resolved("gemma4", "attn_v").optional == ("attn_v", "layer_output_scale")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mamba2", "a recurrent model"),
        ("rwkv7", "a recurrent model"),
        ("qwen3next", "a hybrid of attention and recurrent layers"),
        ("qwen35moe", "a hybrid"),
        ("granitehybrid", "a hybrid"),
        ("nemotron_h", "a hybrid"),
        ("lfm2", "a hybrid"),
        ("kimi-linear", "a hybrid"),
        ("t5", "an encoder-decoder model"),
        ("clip", "a vision or audio encoder"),
        ("dream", "a diffusion model"),
        ("brand-new", "'brand-new' is not run"),
    ],
)
def test_an_architecture_that_is_not_run_is_named_with_its_kind(
    name: str, kind: str, tiny_gguf: Tiny
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        open_tiny(tiny_gguf, architecture=name)
    message = str(caught.value)
    assert repr(name) in message and kind in message and "\n" not in message
    assert all(supported in message for supported in ("llama", "qwen3moe", "gpt-oss", "bert"))


def test_a_file_without_an_architecture_is_not_a_model() -> None:
    file = SimpleNamespace(path=Path("made-up.gguf"), metadata={}, tensors={})
    with pytest.raises(InvalidModelFileError, match="general.architecture is missing"):
        Weights.open(cast(GGUFFile, file))


def test_declarations_are_short() -> None:
    folder = Path(__file__).parent.parent.parent / "models" / "architectures"
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    long = {path.name for path in files if len(path.read_text().splitlines()) > 40}
    assert len(files) == len(ARCHITECTURES) and not long


def test_vocabulary_only_file(tiny_gguf: Tiny) -> None:
    with pytest.raises(InvalidModelFileError, match="token_embd.weight is missing"):
        open_tiny(tiny_gguf, tensors=False)


@pytest.mark.parametrize("name", TINY)
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


@pytest.mark.parametrize(
    "name", ["blk.0.attn_gate.weight", "blk.0.ffn_up_exps.weight", "blk.2.attn_q.weight", "extra"]
)
def test_a_tensor_that_would_be_ignored_is_refused(name: str, tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf())
    gguf.tensors[name] = f32_tensor(name, np.ones(64))
    with pytest.raises(UnsupportedModelError, match=f"{name} is not part of"):
        Weights.open(gguf)


@pytest.mark.parametrize(
    "name", ["blk.0.attn_rot_embd.weight", "v.blk.0.attn_q.weight", "mm.0.weight", "mtp.fc.weight"]
)
def test_what_text_does_not_need_is_ignored(name: str, tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf())
    gguf.tensors[name] = f32_tensor(name, np.ones(64))
    assert name not in {planned for planned, _, _ in expected_tensors(*of(Weights.open(gguf)))}


def test_both_forms_of_latent_attention_in_one_file() -> None:
    keys = {"attention.key_length": 32, "attention.value_length": 16, "attention.kv_lora_rank": 16}
    keys |= {"block_count": 1, "embedding_length": 64, "feed_forward_length": 32}
    keys |= {"attention.head_count": 2, "context_length": 64, "rope.dimension_count": 16}
    newer = {"attention.key_length_mla": 32, "attention.value_length_mla": 16}
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (64,), "attn_q": (64, 64), "attn_kv_a_mqa": (32, 64), "attn_kv_a_norm": (16,),
        "attn_kv_b": (64, 16), "attn_k_b": (2, 16, 16), "attn_v_b": (2, 16, 16),
        "attn_output": (64, 32), "ffn_norm": (64,), "ffn_gate": (32, 64), "ffn_up": (32, 64),
        "ffn_down": (64, 32),
    }  # fmt: skip
    tensors = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    tensors |= {"token_embd.weight": (9, 64), "output_norm.weight": (64,)}
    for more, unused in (({}, "attn_k_b"), (newer, "attn_kv_b")):
        values = keys | {"attention.layer_norm_rms_epsilon": 1e-6} | more
        file = SimpleNamespace(
            path=Path("made-up.gguf"),
            metadata={f"deepseek2.{key}": value for key, value in values.items()}
            | {"general.architecture": "deepseek2"},
            tensors={name: f32_tensor(name, np.ones(shape)) for name, shape in tensors.items()},
        )
        weights = Weights.open(cast(GGUFFile, file))
        latent = weights.hyperparameters.latent
        assert latent is not None and latent.absorbed == bool(more)
        planned = {name for name, _, _ in expected_tensors(*of(weights))}
        assert f"blk.0.{unused}.weight" not in planned


def test_layers_that_only_speculation_uses_are_ignored(tiny_gguf: Tiny) -> None:
    gguf = GGUFFile.open(tiny_gguf(num_layers=3, metadata={"llama.nextn_predict_layers": 1}))
    gguf.tensors["blk.2.nextn.enorm.weight"] = f32_tensor("blk.2.nextn.enorm.weight", np.ones(64))
    assert Weights.open(gguf).hyperparameters.num_layers == 2
    gguf.tensors["blk.3.attn_q.weight"] = f32_tensor("blk.3.attn_q.weight", np.ones(64))
    with pytest.raises(UnsupportedModelError, match=r"blk\.3\.attn_q\.weight is not part of"):
        Weights.open(gguf)


def test_a_format_that_is_not_run_is_named(tiny_gguf: Tiny) -> None:
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.weight \(IQ4_NL\)"):
        open_tiny(tiny_gguf, formats={"blk.0.attn_q.weight": "IQ4_NL"})


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
        ("feed_forward_length", [96, 64], InvalidModelFileError),
        ("context_length", None, InvalidModelFileError),
        ("attention.head_count", None, InvalidModelFileError),
        ("attention.head_count", 0, InvalidModelFileError),
        ("attention.head_count", True, InvalidModelFileError),
        ("attention.head_count_kv", 3, InvalidModelFileError),
        ("attention.head_count_kv", 1, InvalidModelFileError),
        ("attention.key_length", 24, UnsupportedModelError),
        ("attention.key_length", 2048, UnsupportedModelError),
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
        ("expert_count", 8, InvalidModelFileError),
        ("expert_count", 0, None),
        ("attention.causal", "no", InvalidModelFileError),
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
