"""Gemma 4: dense models, the E models with an embedding a layer, the mixture of experts.

Layers that see everything have heads of their own size and number; their rotation turns only a part
of a head, which a file says by factors so large that the rest stands still.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import MAX_HEAD_DIM, Config
from .families_decoders import AFTER, ATTENTION, ENDS, FFN, HEAD_NORMS, LAYER
from .family import Family, Key, Piece, Source, Target
from .keys import SIZES, USUAL, check_layer_types, sliding_flags

_TENSORS: dict[str, Target] = (
    ENDS
    | ATTENTION
    | HEAD_NORMS
    | FFN
    | AFTER
    | {
        "model.embed_tokens_per_layer": "per_layer_token_embd",
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
        f"{LAYER}pre_feedforward_layernorm": "blk.{}.ffn_norm",
        f"{LAYER}layer_scalar": Piece("blk.{}.layer_output_scale.weight"),
        f"{LAYER}per_layer_input_gate": "blk.{}.inp_gate",
        f"{LAYER}per_layer_projection": "blk.{}.proj",
        f"{LAYER}post_per_layer_input_norm": "blk.{}.post_norm",
        # The mixture's, beside its dense block.
        f"{LAYER}router.proj": "blk.{}.ffn_gate_inp",
        f"{LAYER}router.scale": Piece("blk.{}.ffn_gate_inp.scale"),
        f"{LAYER}router.per_expert_scale": Piece("blk.{}.ffn_down_exps.scale"),
        f"{LAYER}experts.gate_up_proj": "blk.{}.ffn_gate_up_exps",
        f"{LAYER}experts.down_proj": "blk.{}.ffn_down_exps",
        f"{LAYER}pre_feedforward_layernorm_2": "blk.{}.pre_ffw_norm_2",
        f"{LAYER}post_feedforward_layernorm_1": "blk.{}.post_ffw_norm_1",
        f"{LAYER}post_feedforward_layernorm_2": "blk.{}.post_ffw_norm_2",
    }
)
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPE = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    _FULL: {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
    },
}


def _slides(config: Config) -> list[bool]:
    """Which layers have a window; as in transformers, the last one never has."""
    flags = sliding_flags(config) or [(i + 1) % 6 != 0 for i in range(config.layers)]
    return [*flags[:-1], False]


def _of_full(config: Config) -> Mapping[str, Any]:
    """head_dim, and num_key_value_heads if it is another one, of the layers that see everything."""
    given = config.get("per_layer_config")
    if given is None:  # the published configs
        own = {"head_dim": config.get("global_head_dim", 512)}
        if config.get("attention_k_eq_v") and "num_global_key_value_heads" in config:
            own["num_key_value_heads"] = config["num_global_key_value_heads"]
        return own
    entries = given.items() if isinstance(given, Mapping) else [("", given)]
    if not all(layer.isdecimal() and isinstance(values, Mapping) for layer, values in entries):
        raise config.invalid("per_layer_config", given, "objects by the numbers of their layers")
    layers = {int(layer): dict(values) for layer, values in entries}
    full = [layer for layer, slides in enumerate(_slides(config)) if not slides]
    own = layers.get(full[0], {})
    alike = set(layers) == set(full) and all(values == own for values in layers.values())
    if not alike or "head_dim" not in own or set(own) - {"head_dim", "num_key_value_heads"}:
        raise config.unsupported(
            "per_layer_config", given, "one head_dim and num_key_value_heads of all full layers"
        )
    return own


def _full_head(config: Config) -> int:
    """Elements of a head of the layers that see everything."""
    dim = _of_full(config)["head_dim"]
    if type(dim) is not int or not 0 < dim <= MAX_HEAD_DIM:
        by_layer = config.get("per_layer_config") is not None
        key = "per_layer_config: head_dim" if by_layer else "global_head_dim"
        raise config.invalid(key, dim, f"1 to {MAX_HEAD_DIM}")
    return dim


def _kv_heads(config: Config) -> list[int] | int:
    own = _of_full(config).get("num_key_value_heads")
    if own is None:
        return config.kv_heads
    return [config.kv_heads if slides else own for slides in _slides(config)]


def _ffn_width(config: Config) -> list[int] | int:
    """Twice as much, if so said, in layers that use the keys of earlier ones."""
    width = config.count("intermediate_size")
    if not config.get("use_double_wide_mlp"):
        return width
    own = config.layers - config["num_kv_shared_layers"]
    return [width if layer < own else 2 * width for layer in range(config.layers)]


def _of_experts(key: str) -> Source:
    """A source that counts in the mixture only."""
    return lambda config: config.get(key) if config.get("enable_moe_block") else None


def _factors(config: Config) -> dict[str, NDArray[np.float32]]:
    """`rope_freqs.weight`, half a head's: 1 for what turns, 1e30 for what stands still."""
    width = _full_head(config)
    turned = int(width * config.rope[_FULL].get("partial_rotary_factor", 1.0) / 2)
    values = np.array([1, 1e30], np.float32)
    return {"rope_freqs.weight": np.repeat(values, [turned, width // 2 - turned])}


def _form(config: Config) -> None:
    """The form that is run."""
    expected = {
        "attention_bias": False, "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
    }  # fmt: skip
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise config.unsupported(key, config.get(key), repr(value))
    if (kind := config.get("use_bidirectional_attention")) not in (None, "vision"):
        raise config.unsupported("use_bidirectional_attention", kind, "null and 'vision'")
    check_layer_types(config)
    for name, usual in ((_FULL, "proportional"), (_SLIDING, "default")):
        rope = config.rope.get(name)
        if not isinstance(rope, Mapping) or rope.get("rope_type", "default") != usual:
            raise config.unsupported(f"rope_parameters.{name}", rope, f"the rope_type {usual!r}")
        if rope.get("factor", 1.0) != 1.0:
            raise config.unsupported(f"rope_parameters.{name}.factor", rope["factor"], "1.0")


def _layer_tensors(config: Config, layer: int) -> dict[str, bool]:
    """Without values the engine takes the keys, without a scale 1."""
    tensors = {"layer_output_scale.weight": True}
    if layer < config.layers - config["num_kv_shared_layers"]:  # later ones read no own values
        keys_are_values = config.get("attention_k_eq_v") and not _slides(config)[layer]
        tensors["attn_v.weight"] = not keys_are_values
    if config.get("enable_moe_block"):
        tensors["ffn_down_exps.scale"] = True
    return tensors


_KEYS = (
    *SIZES,
    Key("feed_forward_length", "u32", _ffn_width),
    Key("attention.head_count_kv", "u32", _kv_heads),
    *(key for key in USUAL if key.name.startswith("rope.")),
    Key("attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
    # Without the key, runtimes take it for 30.
    Key("final_logit_softcapping", "f32", lambda c: c.get("final_logit_softcapping", 0.0)),
    Key("attention.sliding_window", "u32", "sliding_window"),
    Key("attention.sliding_window_pattern", "bool", _slides),
    Key("attention.shared_kv_layers", "u32", "num_kv_shared_layers"),
    Key(
        "embedding_length_per_layer_input",
        "u32",
        lambda c: c.get("hidden_size_per_layer_input", 0),
    ),
    Key("attention.key_length", "u32", _full_head),
    Key("attention.value_length", "u32", _full_head),
    Key("attention.key_length_swa", "u32", "head_dim"),
    Key("attention.value_length_swa", "u32", "head_dim"),
    Key("rope.dimension_count", "u32", _full_head),
    Key("rope.dimension_count_swa", "u32", "head_dim"),
    Key("expert_count", "u32", _of_experts("num_experts")),
    Key("expert_used_count", "u32", _of_experts("top_k_experts")),
    Key("expert_feed_forward_length", "u32", _of_experts("moe_intermediate_size")),
)
_DEFAULTS = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": _ROPE,
    "tie_word_embeddings": True,
}

GEMMA4 = Family(
    architecture="gemma4",
    classes=("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"),
    tensors=_TENSORS,
    keys=_KEYS,
    defaults=_DEFAULTS | {"max_position_embeddings": 131072, "sliding_window": 512},
    made=_factors,
    check=_form,
    layer_tensors=_layer_tensors,
)

GEMMA4_UNIFIED = replace(
    GEMMA4,
    classes=("Gemma4UnifiedForConditionalGeneration",),
    defaults=_DEFAULTS | {"max_position_embeddings": 262144, "sliding_window": 1024},
)

FAMILIES = (
    GEMMA4,
    GEMMA4_UNIFIED,
)
