"""Configurations that a family can't express are refused by the name of their key."""

import importlib
from pathlib import Path
from typing import Any

import gguf
import pytest

from llamba.errors import InvalidModelFileError, LlambaError, UnsupportedModelError
from llamba.models.convert.conversion import Conversion, prepare

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    checkpoints = importlib.import_module("convert_checkpoints")


def written(folder: Path, name: str, more: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A checkpoint with other keys (None takes one away) and tensors of further names."""
    made = checkpoints.CHECKPOINTS[name]()
    values = {key: value for key, value in (made.config | changes).items() if value is not None}
    made = checkpoints.Made(values, made.shapes | (more or {}), made.tokenizer, made.files)
    return checkpoints.write_made(folder / name, made, checkpoints.tensors_of(made))


_FULL, _SLIDING = "full_attention", "sliding_attention"


def rope(kind: str, **changes: Any) -> dict[str, Any]:
    """Gemma 4's, with changes of one kind of layers."""
    values = checkpoints.CHECKPOINTS["gemma4-moe"]().config["rope_parameters"]
    return values | {kind: values[kind] | changes}


def own(**more: Any) -> dict[str, Any]:
    """What the mixture's full layers have of their own, as transformers 5 says it."""
    return dict.fromkeys("13", {"head_dim": 64, "num_key_value_heads": 1, **more})


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("jina", {"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'"),
        ("jina", {"position_embedding_type": None}, "position_embedding_type is 'absolute'"),
        ("jina", {"feed_forward_type": "reglu"}, "feed_forward_type is 'reglu'"),
        ("jina-plain", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("minimax-m2", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ("minimax-m2", {"use_qk_norm": False}, "use_qk_norm is False"),
        ("minimax-m2", {"qk_norm_type": "per_head"}, "qk_norm_type is 'per_head'"),
        ("minimax-m2", {"attn_type_list": [1, 0]}, "attn_type_list is [1, 0]"),
        ("minimax-m2", {"shared_intermediate_size": 64}, "shared_intermediate_size is 64"),
        ("exaone-moe", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        (
            "exaone-moe",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}},
            "rope type is 'yarn'",
        ),
        (
            "exaone-moe",
            {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
            "mlp_layer_types is ['sparse', 'dense'",
        ),
        ("gemma4-moe", {"attention_bias": True}, "attention_bias is True"),
        ("gemma4-moe", {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ("gemma4-moe", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma4-moe", {"use_bidirectional_attention": "all"}, "bidirectional_attention is 'all'"),
        ("gemma4-moe", {"layer_types": ["full_attention"] * 3}, "layer_types is ['full"),
        ("gemma4-moe", {"layer_types": ["chunked_attention"] * 4}, "layer_types is ['chunked"),
        ("gemma4-moe", {"rope_parameters": rope(_FULL, rope_type="yarn")}, "full_attention is {"),
        ("gemma4-moe", {"rope_parameters": rope(_FULL, factor=8.0)}, "full_attention.factor is 8"),
        (
            "gemma4-moe",
            {"rope_parameters": rope(_SLIDING, rope_type="linear")},
            "sliding_attention",
        ),
        ("gemma4-moe", {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters.full_attention"),
        ("gemma4-moe", {"per_layer_config": {"1": {"head_dim": 64}}}, "per_layer_config is"),
        ("gemma4-moe", {"per_layer_config": own(sliding_window=4)}, "per_layer_config is"),
        ("gemma4-moe", {"per_layer_config": own() | {"0": {"head_dim": 64}}}, "per_layer_config"),
    ],
)
def test_refused(tmp_path: Path, name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        prepare(written(tmp_path, name, **changes))
    message = str(caught.value)
    assert said in message and "config.json" in message and "not converted" in message


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("jina", {"intermediate_size": 64}, "mlp."),
        ("minimax-m2", {"rotary_dim": 48}, "rope.dimension_count"),
        ("minimax-m2", {"rotary_dim": "16"}, "rotary_dim is '16'"),
        ("minimax-m2", {"head_dim": None}, "o_proj"),
        ("llama31", {"head_dim": 2**31 - 2}, "head_dim is 2147483646, expected at most 32768"),
        ("exaone-moe", {"moe_intermediate_size": 64}, "experts"),
        ("exaone-moe", {"first_k_dense_replace": 2}, "leading_dense_block_count"),
        ("exaone-moe", {"num_experts": 5}, "gate"),
        ("gemma4-moe", {"num_kv_shared_layers": 4}, "shared_kv_layers"),
        ("gemma4-moe", {"num_experts": 5}, "router.proj"),
        ("gemma4-moe", {"top_k_experts": 5}, "expert_used_count"),
        ("gemma4-moe", {"enable_moe_block": False}, "not part of architecture"),
        ("gemma4-moe", {"hidden_size_per_layer_input": 32}, "embed_tokens_per_layer"),
        ("gemma4-moe", {"global_head_dim": 96}, "layers.1.self_attn"),
        ("gemma4-moe", {"global_head_dim": 10**12}, "global_head_dim is 1000000000000"),
        ("gemma4-moe", {"attention_k_eq_v": False}, "layers.1.self_attn"),
        ("gemma4-moe", {"use_double_wide_mlp": True, "num_kv_shared_layers": 2}, "layers.2.mlp"),
        ("gemma4-moe", {"per_layer_config": [64]}, "config.json"),
        ("gemma4-moe", {"moe_intermediate_size": 64}, "experts"),
        ("gemma4-moe", {"layer_types": 4}, "config.json"),
    ],
)
def test_numbers_that_tensors_contradict(
    tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(LlambaError) as caught:
        prepare(written(tmp_path, name, **changes))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("jina", "classifier.weight"),
        ("minimax-m2", "model.layers.0.block_sparse_moe.shared_mlp.w1.weight"),
        ("exaone-moe", "model.layers.0.self_attn.rel_bias.weight"),
        ("gemma4-moe", "model.layers.0.self_attn.v_norm.weight"),
        ("gemma4-moe", "model.vision_tower.patch_embedder.input_proj.weight"),
    ],
)
def test_tensors_without_a_place(tmp_path: Path, name: str, tensor: str) -> None:
    folder = written(tmp_path, name, {tensor: (64, 64)})
    with pytest.raises(UnsupportedModelError, match="no place") as caught:
        prepare(folder)
    assert tensor in str(caught.value)


def same(left: Conversion, right: Conversion) -> bool:
    """Whether the tensors and the keys, but for the file's name, are alike."""
    values = [
        {k: v for k, v in made.values.items() if not k.startswith("general.")}
        for made in (left, right)
    ]
    return values[0] == values[1] and left.tensors == right.tensors


@pytest.mark.parametrize(
    ("name", "changes", "tensor"),
    [
        ("exaone-moe", {"num_nextn_predict_layers": 1}, "mtp.layers.0.mlp.gate_proj.weight"),
        ("minimax-m2", {"num_mtp_modules": 1}, "model.layers.2.eh_proj.weight"),
    ],
)
def test_layers_for_speculation_are_left_out(
    tmp_path: Path, name: str, changes: dict[str, Any], tensor: str
) -> None:
    plain = prepare(checkpoints.write(tmp_path / "plain", name))
    further = prepare(written(tmp_path, name, {tensor: (64, 64)}, **changes))
    assert same(plain, further)
    assert tensor in further.unused


def test_what_transformers_fills_in(tmp_path: Path) -> None:
    """Keys that its classes leave out of config.json."""
    left_out = dict.fromkeys(
        ["first_k_dense_replace", "routed_scaling_factor", "norm_topk_prob", "n_group",
         "topk_group", "scoring_func", "topk_method", "num_nextn_predict_layers"]
    )  # fmt: skip
    plain = prepare(checkpoints.write(tmp_path / "plain", "exaone-moe"))
    assert same(plain, prepare(written(tmp_path / "a", "exaone-moe", **left_out)))
    kinds = ["dense", "sparse", "sparse", "sparse"]
    named = prepare(written(tmp_path / "b", "exaone-moe", **left_out, mlp_layer_types=kinds))
    assert same(plain, named)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    by_part = written(
        tmp_path, "minimax-m2", rotary_dim=None, rope_theta=None, rope_parameters=rope
    )
    assert same(prepare(checkpoints.write(tmp_path / "c", "minimax-m2")), prepare(by_part))


def test_gemma4_of_transformers_5(tmp_path: Path) -> None:
    """Its configs keep heads by layer, and leave out what is usual."""
    plain = prepare(checkpoints.write(tmp_path / "plain", "gemma4-moe"))
    changes = dict.fromkeys(
        ["global_head_dim", "num_global_key_value_heads", "rope_parameters", "num_kv_shared_layers",
         "hidden_size_per_layer_input", "use_bidirectional_attention", "attention_bias"]
    )  # fmt: skip
    assert same(plain, prepare(written(tmp_path, "gemma4-moe", per_layer_config=own(), **changes)))


def test_gemma4_without_a_softcap(tmp_path: Path) -> None:
    """0 is written: runtimes take a missing key for 30."""
    made = prepare(written(tmp_path, "gemma4-moe", final_logit_softcapping=None))
    assert made.values["gemma4.final_logit_softcapping"] == ("f32", 0.0)


def test_tokens_that_are_never_generated(tmp_path: Path) -> None:
    """Of the class with one tower, as llama.cpp's converter has it."""
    folder = checkpoints.write(tmp_path, "gemma4-unified")
    key = "tokenizer.ggml.suppress_tokens"
    prepare(folder).write(path := tmp_path / "model.gguf")
    field = gguf.GGUFReader(path).fields[key]
    assert field.contents() == [258, 259] and field.types[-1].name == "INT32"
    settings = folder / "generation_config.json"
    settings.write_text('{"suppress_tokens": null}')
    assert key not in [pair.key for pair in prepare(folder).pairs]
    settings.write_text('{"suppress_tokens": ["a"]}')
    with pytest.raises(InvalidModelFileError, match="suppress_tokens"):
        prepare(folder)
    folder = checkpoints.write(tmp_path, "gemma4")
    settings.rename(folder / settings.name)
    assert key not in [pair.key for pair in prepare(folder).pairs]
