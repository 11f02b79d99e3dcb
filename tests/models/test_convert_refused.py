"""Configurations that a family can't express are refused by the name of their key."""

import importlib
import re
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


def written(
    folder: Path,
    name: str,
    more: dict[str, Any] | None = None,
    *,
    without: str = r"\Z.",
    **changes: Any,
) -> Path:
    """A checkpoint with other keys (None takes one away) and tensors of further names.

    without: a pattern of the tensors that it lacks; by default it fits none.
    """
    made = checkpoints.CHECKPOINTS[name]()
    values = {key: value for key, value in (made.config | changes).items() if value is not None}
    shapes = {n: s for n, s in (made.shapes | (more or {})).items() if not re.search(without, n)}
    made = checkpoints.Made(values, shapes, made.tokenizer, made.files)
    return checkpoints.write_made(folder / name, made, checkpoints.tensors_of(made))


_FULL, _SLIDING = "full_attention", "sliding_attention"
_PLAIN = {"rope_type": "default", "rope_theta": 1e6}
_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}


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
        ("exaone-moe", {"rope_parameters": _YARN}, "rope type is 'yarn'"),
        ("exaone-moe", {"rope_parameters": {_FULL: _PLAIN, _SLIDING: _YARN}}, "type is 'yarn'"),
        (
            "exaone-moe",
            {"rope_parameters": {_FULL: _PLAIN, _SLIDING: _PLAIN | {"rope_theta": 1e4}}},
            "rope_parameters is {",
        ),
        ("exaone-moe", {"topk_method": "greedy"}, "topk_method is 'greedy'"),
        ("exaone-moe", {"layer_types": ["linear_attention"] * 4}, "layer_types is ['linear"),
        ("exaone-moe", {"layer_types": [_SLIDING] * 3}, "layer_types is ['sliding"),
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
        ("minimax-m2", {"scoring_func": "x" * 10**6}, f"scoring_func is '{'x' * 199}, which"),
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
        ("gemma4-moe", {"per_layer_config": [64]}, "per_layer_config is [64], expected objects"),
        ("gemma4-moe", {"per_layer_config": {"x": {}}}, "per_layer_config is {'x': {}}, expected"),
        ("gemma4-moe", {"per_layer_config": {"1": 64}}, "per_layer_config is {'1': 64}, expected"),
        (
            "gemma4-moe",
            {"per_layer_config": own(head_dim=10**12)},
            "per_layer_config: head_dim is 1000000000000, expected 1 to 32768",
        ),
        ("gemma4-moe", {"moe_intermediate_size": 64}, "experts"),
        ("gemma4-moe", {"layer_types": 4}, "layer_types is 4, expected a list"),
        ("exaone-moe", {"layer_types": 4}, "layer_types is 4, expected a list"),
        (
            "exaone-moe",
            {
                "head_dim": None,
                "hidden_size": 1 << 20,
                "num_attention_heads": 1,
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0},
            },
            "hidden_size is 1048576, expected 1 to 32768 elements for each of 1 heads",
        ),
        (
            "llama31",
            {"head_dim": None, "num_attention_heads": 65},
            "hidden_size is 64, expected 1 to 32768 elements for each of 65 heads",
        ),
    ],
)
def test_numbers_that_tensors_contradict(
    tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(LlambaError) as caught:
        prepare(written(tmp_path, name, **changes))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "name", ["gemma4-moe", "exaone-moe", "exaone4", "olmo3", "smollm3", "granite-swa", "llama"]
)
def test_layers_that_no_model_has(tmp_path: Path, name: str) -> None:
    """No list of so many flags is made first."""
    with pytest.raises(InvalidModelFileError) as caught:
        prepare(written(tmp_path, name, num_hidden_layers=1 << 24, layer_types=None))
    assert "num_hidden_layers is 16777216, expected at most 1024" in str(caught.value)


_BLOCK, _ATTN = "model.layers.{}.", "model.layers.{}.self_attn."


@pytest.mark.parametrize(
    ("name", "without", "said"),
    [
        ("gemma4-moe", r"layers\.0\..*v_proj", _ATTN.format(0) + "v_proj.weight is missing"),
        ("gemma4-e", r"layers\.2\..*v_proj", _ATTN.format(2) + "v_proj.weight is missing"),
        (
            "gemma4-moe",
            r"layers\.2\.router\.per_expert",
            _BLOCK.format(2) + "router.per_expert_scale is missing",
        ),
        ("gemma4-moe", r"per_expert", _BLOCK.format(0) + "router.per_expert_scale is missing"),
        ("gemma4-moe", r"layers\.0\.router\.scale", "layers.0.router.scale is missing"),
        ("gemma4-moe", r"layers\.1\.layer_scalar", "layers.1.layer_scalar is missing"),
        (
            "minimax-m2",
            r"correction_bias",
            _BLOCK.format(0) + "block_sparse_moe.e_score_correction_bias is missing",
        ),
        ("minimax-m2", r"1\..*correction_bias", _BLOCK.format(1) + "block_sparse_moe.e_score_corr"),
        ("exaone-moe", r"2\..*correction_bias", "(blk.2.exp_probs_b.bias in GGUF)"),
        (
            "jina-code",
            r"layer\.0\.layer_norm_1\.weight",
            "layer.0.layer_norm_1.weight is missing, encoder.layer.0.layer_norm_1.bias is there",
        ),
    ],
)
def test_missing_tensors(tmp_path: Path, name: str, without: str, said: str) -> None:
    """Of kinds that the engine takes for optional."""
    folder = written(tmp_path, name, without=without)
    with pytest.raises(InvalidModelFileError) as caught:
        prepare(folder)
    assert said in str(caught.value)


def test_values_where_keys_are_values(tmp_path: Path) -> None:
    """What transformers ignores would be used, as if the layer had values of its own."""
    name = "model.layers.1.self_attn.v_proj.weight"
    shape = checkpoints.CHECKPOINTS["gemma4-moe"]().shapes[name.replace("v_proj", "k_proj")]
    with pytest.raises(InvalidModelFileError, match=f"{name} is in a layer that"):
        prepare(written(tmp_path, "gemma4-moe", {name: shape}))


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
    left_out: dict[str, Any] = dict.fromkeys(
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
    changes: dict[str, Any] = dict.fromkeys(
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
    classes = ["Gemma4UnifiedForConditionalGeneration", "Other"]  # the first one counts
    folder = written(tmp_path, "gemma4-unified", architectures=classes)
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
