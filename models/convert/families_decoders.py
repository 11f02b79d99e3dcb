"""Llama and what was built in its image: dense decoders of today."""

import math

from .config import Config
from .family import (
    Family,
    Key,
    Piece,
    Target,
    key_rows,
    query_rows,
)
from .keys import (
    LLAMA_KEYS,
    SIZES,
    USUAL,
    head_dim,
    llama3_factors,
    longrope_factors,
    shared_width,
)

LAYER = "model.layers.{}."
ENDS: dict[str, Target] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
ATTENTION: dict[str, Target] = {
    f"{LAYER}input_layernorm": "blk.{}.attn_norm",
    f"{LAYER}self_attn.q_proj": "blk.{}.attn_q",
    f"{LAYER}self_attn.k_proj": "blk.{}.attn_k",
    f"{LAYER}self_attn.v_proj": "blk.{}.attn_v",
    f"{LAYER}self_attn.o_proj": "blk.{}.attn_output",
}
HEAD_NORMS: dict[str, Target] = {
    f"{LAYER}self_attn.q_norm": "blk.{}.attn_q_norm",
    f"{LAYER}self_attn.k_norm": "blk.{}.attn_k_norm",
}
FFN_NORM: dict[str, Target] = {f"{LAYER}post_attention_layernorm": "blk.{}.ffn_norm"}
FFN: dict[str, Target] = {
    f"{LAYER}mlp.gate_proj": "blk.{}.ffn_gate",
    f"{LAYER}mlp.up_proj": "blk.{}.ffn_up",
    f"{LAYER}mlp.down_proj": "blk.{}.ffn_down",
}
# Rotated pairs as neighbours: "norm" rope.
NEIGHBOURS: dict[str, Target] = {
    f"{LAYER}self_attn.q_proj": Piece("blk.{}.attn_q", query_rows),
    f"{LAYER}self_attn.k_proj": Piece("blk.{}.attn_k", key_rows),
}
DECODER = ENDS | ATTENTION | FFN_NORM | FFN
LLAMA_TENSORS = DECODER | NEIGHBOURS
AFTER: dict[str, Target] = {  # norms behind the blocks
    f"{LAYER}post_attention_layernorm": "blk.{}.post_attention_norm",
    f"{LAYER}post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}

# The experts of Mixtral and its kin: w1 gates, w3 goes up.
MIXTRAL: dict[str, Target] = {
    f"{LAYER}block_sparse_moe.gate": "blk.{}.ffn_gate_inp",
    f"{LAYER}block_sparse_moe.experts.{{e}}.w1": "blk.{}.ffn_gate_exps",
    f"{LAYER}block_sparse_moe.experts.{{e}}.w2": "blk.{}.ffn_down_exps",
    f"{LAYER}block_sparse_moe.experts.{{e}}.w3": "blk.{}.ffn_up_exps",
}


def _llama_head(config: Config) -> int | None:
    """transformers fills it in for Llama and Mistral, not for Mixtral."""
    return None if "num_local_experts" in config else head_dim(config)


LLAMA = Family(
    architecture="llama",
    classes=("LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel", "MistralForCausalLM",
             "MixtralForCausalLM", "IQuestCoderForCausalLM"),
    tensors=LLAMA_TENSORS | MIXTRAL,
    keys=LLAMA_KEYS,
    defaults={"head_dim": _llama_head},
    made=llama3_factors,
)  # fmt: skip

INTERNLM3 = Family(
    architecture="llama",
    classes=("InternLM3ForCausalLM",),
    tensors=LLAMA_TENSORS,
    keys=LLAMA_KEYS,
)

ARCEE = Family(
    architecture="arcee",
    classes=("ArceeForCausalLM",),
    tensors=LLAMA_TENSORS,
    keys=LLAMA_KEYS,
    defaults={"head_dim": head_dim},
    made=llama3_factors,
    pooled=True,
)


def _fourth_unturned(config: Config) -> None:
    """The engine's layers that don't rotate are every fourth one, whatever the file says."""
    turned = config.get("no_rope_layers")
    every = config.get("no_rope_layer_interval", 4)
    usual = [int((i + 1) % 4 != 0) for i in range(config.layers)]
    if every != 4 or (turned is not None and list(map(int, turned)) != usual):
        raise config.unsupported("no_rope_layers", turned or every, "every fourth layer")


SMOLLM3 = Family(
    architecture="smollm3",
    classes=("SmolLM3ForCausalLM",),
    tensors=LLAMA_TENSORS,
    keys=LLAMA_KEYS,
    made=llama3_factors,
    check=_fourth_unturned,
)


def _bias_free(config: Config) -> None:
    if config.rope.get("rope_type") not in (None, "default", "yarn"):
        raise config.unsupported("rope type", config.rope["rope_type"], "yarn")


MISTRAL3 = Family(
    architecture="mistral3",
    classes=("Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"),
    tensors=LLAMA_TENSORS,
    keys=(
        *LLAMA_KEYS,
        Key("rope.scaling.yarn_log_multiplier", "f32", lambda c: c.rope.get("mscale_all_dim")),
        Key("attention.temperature_scale", "f32", lambda c: c.rope.get("llama_4_scaling_beta")),
    ),
    defaults={"head_dim": head_dim},
    check=_bias_free,
)

QWEN2 = Family(
    architecture="qwen2",
    classes=("Qwen2ForCausalLM", "Qwen2Model", "KORMoForCausalLM"),
    tensors=DECODER,
    keys=USUAL,
    pooled=True,
)

QWEN3 = Family(
    architecture="qwen3",
    classes=("Qwen3ForCausalLM", "Qwen3Model"),
    tensors=DECODER | HEAD_NORMS,
    keys=USUAL,
    defaults={"head_dim": 128},
    pooled=True,
)

GRANITE_KEYS = (
    *(key for key in LLAMA_KEYS if key.source != "head_dim"),
    Key("rope.dimension_count", "u32", shared_width),
    Key("attention.scale", "f32", lambda c: c.get("attention_multiplier") or None),
    Key("embedding_scale", "f32", lambda c: c.get("embedding_multiplier") or None),
    Key("residual_scale", "f32", lambda c: c.get("residual_multiplier") or None),
    Key("logit_scale", "f32", lambda c: c.get("logits_scaling") or None),
)  # fmt: skip
GRANITE_DEFAULTS = {
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}

GRANITE = Family(
    architecture="granite",
    classes=("GraniteForCausalLM",),
    tensors=LLAMA_TENSORS,
    keys=GRANITE_KEYS,
    defaults=GRANITE_DEFAULTS,
    made=llama3_factors,
)


def _phi3_dim(config: Config) -> int:
    part = config.rope.get("partial_rotary_factor", 1.0)
    return int(part * config.width) // config.heads


def _phi3_context(config: Config) -> int:
    return config.rope.get("original_max_position_embeddings", config.count(*_PHI3_CONTEXT))


_PHI3_CONTEXT = ("n_positions", "max_position_embeddings")


def _phi3_magnitude(config: Config) -> float | None:
    """What LongRoPE (or, by its factors, YaRN) multiplies rotated q and k by."""
    if not config.rope.get("long_factor"):
        return None
    original = _phi3_context(config)
    scale = config.count(*_PHI3_CONTEXT) / original
    kind = str(config.rope.get("rope_type", "")).lower()
    if kind in ("su", "longrope"):
        return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    if kind == "yarn":
        return 0.1 * math.log(scale) + 1.0 if scale > 1 else 1.0
    raise config.unsupported("rope type", kind, "longrope, su and yarn")


PHI3_KEYS = (
    *SIZES,
    Key("context_length", "u32", _PHI3_CONTEXT),
    Key("feed_forward_length", "u32", "intermediate_size"),
    Key("attention.head_count_kv", "u32", lambda config: config.kv_heads),
    Key("attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
    Key("attention.sliding_window", "u32", lambda config: config.get("sliding_window", 0)),
    Key("rope.scaling.original_context_length", "u32", _phi3_context),
    Key("rope.scaling.attn_factor", "f32", _phi3_magnitude),
    Key("rope.dimension_count", "u32", _phi3_dim),
    Key("rope.freq_base", "f32", lambda config: config.rope.get("rope_theta", 10000.0)),
)

PHI3 = Family(
    architecture="phi3",
    classes=("Phi3ForCausalLM",),
    tensors=ENDS
    | ATTENTION
    | FFN_NORM
    | {
        f"{LAYER}self_attn.qkv_proj": "blk.{}.attn_qkv",
        f"{LAYER}mlp.gate_up_proj": "blk.{}.ffn_up",
        f"{LAYER}mlp.down_proj": "blk.{}.ffn_down",
    },
    keys=PHI3_KEYS,
    made=lambda config: longrope_factors(config, _phi3_dim(config)),
)


QWEN2VL = Family(
    architecture="qwen2vl",
    classes=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    tensors=DECODER,
    keys=USUAL,
)


def deepstack_layers(config: Config) -> int:
    """How many layers what is seen is added to."""
    return len(config.get("vision_config", {}).get("deepstack_visual_indexes", []))


QWEN3VL = Family(
    architecture="qwen3vl",
    classes=("Qwen3VLForConditionalGeneration",),
    tensors=DECODER | HEAD_NORMS,
    keys=(*USUAL, Key("n_deepstack_layers", "u32", deepstack_layers)),
    defaults={"head_dim": 128},
    pooled=True,
)

FAMILIES = (
    LLAMA,
    INTERNLM3,
    ARCEE,
    SMOLLM3,
    MISTRAL3,
    QWEN2,
    QWEN3,
    GRANITE,
    PHI3,
    QWEN2VL,
    QWEN3VL,
)
