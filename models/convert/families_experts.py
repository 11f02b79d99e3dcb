"""Decoders with experts: those of all experts of a layer become one tensor."""

from typing import Any

from numpy.typing import NDArray

from .config import Config
from .families_decoders import (
    ATTENTION,
    DECODER,
    ENDS,
    FFN,
    FFN_NORM,
    GRANITE_DEFAULTS,
    GRANITE_KEYS,
    HEAD_NORMS,
    LAYER,
    LLAMA_TENSORS,
    MIXTRAL,
    NEIGHBOURS,
    PHI3_KEYS,
    deepstack_layers,
)
from .family import Family, Key, Piece, Target, first_half, second_half, turned
from .keys import (
    GATING,
    LLAMA_KEYS,
    USUAL,
    constant,
    head_dim,
    llama3_factors,
    longrope_factors,
    no_rope_scaling,
    shared_width,
    turned_part,
)

EXPERTS: dict[str, Target] = {
    f"{LAYER}mlp.gate": "blk.{}.ffn_gate_inp",
    f"{LAYER}mlp.experts.{{e}}.gate_proj": "blk.{}.ffn_gate_exps",
    f"{LAYER}mlp.experts.{{e}}.up_proj": "blk.{}.ffn_up_exps",
    f"{LAYER}mlp.experts.{{e}}.down_proj": "blk.{}.ffn_down_exps",
    # As transformers 5 saves them: stacked, gate above up.
    f"{LAYER}mlp.experts.gate_up_proj": (
        Piece("blk.{}.ffn_gate_exps", first_half),
        Piece("blk.{}.ffn_up_exps", second_half),
    ),
    f"{LAYER}mlp.experts.down_proj": "blk.{}.ffn_down_exps",
}
EXPERT_WIDTH = Key("expert_feed_forward_length", "u32", "moe_intermediate_size")


def shared_expert(name: str) -> dict[str, Target]:
    """The expert that every token sees."""
    return {
        f"{LAYER}mlp.{name}.gate_proj": "blk.{}.ffn_gate_shexp",
        f"{LAYER}mlp.{name}.up_proj": "blk.{}.ffn_up_shexp",
        f"{LAYER}mlp.{name}.down_proj": "blk.{}.ffn_down_shexp",
    }


QWEN2MOE = Family(
    architecture="qwen2moe",
    classes=("Qwen2MoeForCausalLM",),
    tensors=DECODER
    | EXPERTS
    | shared_expert("shared_expert")
    | {f"{LAYER}mlp.shared_expert_gate": "blk.{}.ffn_gate_inp_shexp"},
    keys=(
        *USUAL,
        EXPERT_WIDTH,
        Key("expert_shared_feed_forward_length", "u32", "shared_expert_intermediate_size"),
    ),
)

QWEN3MOE = Family(
    architecture="qwen3moe",
    classes=("Qwen3MoeForCausalLM",),
    tensors=DECODER | HEAD_NORMS | EXPERTS,
    keys=(*USUAL, EXPERT_WIDTH),
)

OLMOE = Family(
    architecture="olmoe",
    classes=("OlmoeForCausalLM",),
    tensors=DECODER | HEAD_NORMS | EXPERTS,
    keys=(*USUAL, Key("attention.layer_norm_rms_epsilon", "f32", constant(1e-5))),
)

GRANITEMOE = Family(
    architecture="granitemoe",
    classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    tensors=ENDS
    | ATTENTION
    | FFN_NORM
    | NEIGHBOURS
    | {
        f"{LAYER}block_sparse_moe.router.layer": "blk.{}.ffn_gate_inp",
        f"{LAYER}block_sparse_moe.input_linear": (
            Piece("blk.{}.ffn_gate_exps", first_half),
            Piece("blk.{}.ffn_up_exps", second_half),
        ),
        f"{LAYER}block_sparse_moe.output_linear": "blk.{}.ffn_down_exps",
        f"{LAYER}shared_mlp.input_linear": (
            Piece("blk.{}.ffn_gate_shexp", first_half),
            Piece("blk.{}.ffn_up_shexp", second_half),
        ),
        f"{LAYER}shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
    },
    keys=(
        *GRANITE_KEYS,
        Key(
            "expert_shared_feed_forward_length",
            "u32",
            lambda c: c.get("shared_intermediate_size") or None,
        ),
    ),
    defaults=GRANITE_DEFAULTS,
    made=llama3_factors,
)

PHIMOE = Family(
    architecture="phimoe",
    classes=("PhiMoEForCausalLM", "PhimoeForCausalLM"),
    tensors=ENDS | ATTENTION | FFN_NORM | MIXTRAL,
    keys=(
        *PHI3_KEYS,
        Key("expert_used_count", "u32", ("num_experts_per_tok", "num_experts_per_token")),
        Key("expert_count", "u32", ("num_local_experts", "num_experts")),
    ),
    made=lambda config: longrope_factors(config, shared_width(config)),
)

BIASED_CHOICE: dict[str, Target] = {
    f"{LAYER}mlp.gate.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    f"{LAYER}mlp.gate.e_score_correction": "blk.{}.exp_probs_b",
}

DOTS1 = Family(
    architecture="dots1",
    classes=("Dots1ForCausalLM",),
    tensors=DECODER | HEAD_NORMS | EXPERTS | shared_expert("shared_experts") | BIASED_CHOICE,
    keys=(
        *USUAL,
        EXPERT_WIDTH,
        Key("leading_dense_block_count", "u32", "first_k_dense_replace"),
        Key("expert_shared_count", "u32", "n_shared_experts"),
        Key("expert_weights_scale", "f32", "routed_scaling_factor"),
        Key("expert_weights_norm", "bool", "norm_topk_prob"),
    ),
    defaults={"head_dim": head_dim},
)

GLM4MOE = Family(
    architecture="glm4moe",
    classes=("Glm4MoeForCausalLM",),
    tensors=ENDS
    | ATTENTION
    | HEAD_NORMS
    | FFN
    | EXPERTS
    | shared_expert("shared_experts")
    | BIASED_CHOICE
    | {f"{LAYER}post_attention_layernorm": "blk.{}.post_attention_norm"},
    keys=(
        *USUAL,
        Key("rope.dimension_count", "u32", turned_part(0.5)),
        Key("expert_count", "u32", "n_routed_experts"),
        EXPERT_WIDTH,
        Key("expert_shared_count", "u32", "n_shared_experts"),
        Key("leading_dense_block_count", "u32", "first_k_dense_replace"),
        Key("expert_gating_func", "u32", constant(GATING["sigmoid"])),
        Key("expert_weights_scale", "f32", "routed_scaling_factor"),
        Key("expert_weights_norm", "bool", "norm_topk_prob"),
        Key("nextn_predict_layers", "u32", constant(0)),  # those layers are left out
    ),
)

DEEPSEEK = Family(
    architecture="deepseek",
    classes=("DeepseekForCausalLM",),
    tensors=LLAMA_TENSORS | EXPERTS | shared_expert("shared_experts"),
    keys=(
        *LLAMA_KEYS,
        Key("rope.scaling.type", "str", no_rope_scaling),
        Key("leading_dense_block_count", "u32", "first_k_dense_replace"),
        EXPERT_WIDTH,
        Key("expert_weights_scale", "f32", constant(1.0)),
        Key("expert_count", "u32", "n_routed_experts"),
        Key("expert_shared_count", "u32", "n_shared_experts"),
    ),
)


def _latent_part(which: str) -> Any:
    """The matrix that expands DeepSeek's latent vector, as the two halves that are absorbed."""

    def move(array: NDArray[Any], config: Config) -> NDArray[Any]:
        plain, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
        heads = array.reshape(-1, plain + value, array.shape[-1])
        return heads[:, :plain].swapaxes(1, 2) if which == "k" else heads[:, plain:]

    return move


def _latent_rank(config: Config) -> int:
    return config.get("kv_lora_rank", 512)


def _dense_layers(config: Config) -> int:
    usual = 0 if "n_routed_experts" in config else config.layers
    return config.get("first_k_dense_replace", usual)


DEEPSEEK2 = Family(
    architecture="deepseek2",
    classes=("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    tensors=ENDS
    | FFN_NORM
    | FFN
    | EXPERTS
    | shared_expert("shared_experts")
    | BIASED_CHOICE
    | {
        f"{LAYER}input_layernorm": "blk.{}.attn_norm",
        f"{LAYER}self_attn.q_proj": "blk.{}.attn_q",
        f"{LAYER}self_attn.q_a_proj": "blk.{}.attn_q_a",
        f"{LAYER}self_attn.q_a_layernorm": "blk.{}.attn_q_a_norm",
        f"{LAYER}self_attn.q_b_proj": "blk.{}.attn_q_b",
        f"{LAYER}self_attn.kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
        f"{LAYER}self_attn.kv_a_layernorm": "blk.{}.attn_kv_a_norm",
        f"{LAYER}self_attn.kv_b_proj": (
            Piece("blk.{}.attn_k_b", _latent_part("k")),
            Piece("blk.{}.attn_v_b", _latent_part("v")),
        ),
        f"{LAYER}self_attn.o_proj": "blk.{}.attn_output",
    },
    keys=(
        *(key for key in USUAL if key.name != "attention.head_count_kv"),
        Key("attention.head_count_kv", "u32", constant(1)),
        Key("attention.layer_norm_rms_epsilon", "f32", lambda c: c.get("rms_norm_eps", 1e-6)),
        Key("leading_dense_block_count", "u32", _dense_layers),
        Key("vocab_size", "u32", lambda config: config.count("vocab_size")),
        Key("attention.q_lora_rank", "u32", "q_lora_rank"),
        Key("attention.kv_lora_rank", "u32", _latent_rank),
        Key("attention.key_length", "u32", lambda c: _latent_rank(c) + c["qk_rope_head_dim"]),
        Key("attention.value_length", "u32", _latent_rank),
        Key(
            "attention.key_length_mla",
            "u32",
            lambda c: c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        ),
        Key("attention.value_length_mla", "u32", "v_head_dim"),
        Key("expert_feed_forward_length", "u32", ("moe_intermediate_size", "intermediate_size")),
        Key("expert_shared_count", "u32", lambda c: c.get("n_shared_experts", 0)),
        Key("expert_weights_scale", "f32", "routed_scaling_factor"),
        Key("expert_weights_norm", "bool", lambda c: c.get("norm_topk_prob") or None),
        Key("rope.dimension_count", "u32", "qk_rope_head_dim"),
        Key(
            "rope.scaling.yarn_log_multiplier",
            "f32",
            lambda c: _tenth(c.rope.get("mscale_all_dim")),
        ),
    ),
    dropped=r"^model\.layers\.\d+\.(eh_proj|enorm|hnorm|shared_head|embed_tokens)\.",
)


def _tenth(value: float | None) -> float | None:
    return None if value is None else 0.1 * value


def even_rows(array: NDArray[Any], config: Config) -> NDArray[Any]:
    """Of each expert, rows 0, 2, ...: gates and what they gate lie in turns."""
    return array[:, ::2]


def odd_rows(array: NDArray[Any], config: Config) -> NDArray[Any]:
    """Rows 1, 3, ..."""
    return array[:, 1::2]


def _turned_even(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return array.swapaxes(1, 2)[:, ::2]


def _turned_odd(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return array.swapaxes(1, 2)[:, 1::2]


_OSS = f"{LAYER}mlp.experts."
GPT_OSS = Family(
    architecture="gpt-oss",
    classes=("GptOssForCausalLM",),
    tensors=ENDS
    | ATTENTION
    | {
        f"{LAYER}post_attention_layernorm": "blk.{}.post_attention_norm",
        f"{LAYER}self_attn.sinks": "blk.{}.attn_sinks",
        f"{LAYER}mlp.router": "blk.{}.ffn_gate_inp",
        f"{_OSS}gate_up_proj": (
            Piece("blk.{}.ffn_gate_exps", _turned_even),
            Piece("blk.{}.ffn_up_exps", _turned_odd),
        ),
        f"{_OSS}gate_up_proj_blocks": (
            Piece("blk.{}.ffn_gate_exps.weight", even_rows),
            Piece("blk.{}.ffn_up_exps.weight", odd_rows),
        ),
        f"{_OSS}gate_up_proj_bias": (
            Piece("blk.{}.ffn_gate_exps.bias", even_rows),
            Piece("blk.{}.ffn_up_exps.bias", odd_rows),
        ),
        f"{_OSS}down_proj": Piece("blk.{}.ffn_down_exps", turned),
        f"{_OSS}down_proj_blocks": "blk.{}.ffn_down_exps",
        f"{_OSS}down_proj_bias": "blk.{}.ffn_down_exps.bias",
    },
    keys=(
        *USUAL,
        Key("attention.sliding_window", "u32", "sliding_window"),
        Key("expert_feed_forward_length", "u32", "intermediate_size"),
    ),
    defaults={"head_dim": 64, "sliding_window": 128},
)


def _turned_first(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return first_half(array.swapaxes(1, 2), config)


def _turned_second(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return second_half(array.swapaxes(1, 2), config)


QWEN3VLMOE = Family(
    architecture="qwen3vlmoe",
    classes=("Qwen3VLMoeForConditionalGeneration",),
    tensors=DECODER
    | HEAD_NORMS
    | EXPERTS
    | {
        f"{LAYER}mlp.experts.gate_up_proj": (
            Piece("blk.{}.ffn_gate_exps", _turned_first),
            Piece("blk.{}.ffn_up_exps", _turned_second),
        ),
        f"{LAYER}mlp.experts.down_proj": Piece("blk.{}.ffn_down_exps", turned),
    },
    keys=(*USUAL, EXPERT_WIDTH, Key("n_deepstack_layers", "u32", deepstack_layers)),
)


def _ernie_shared(config: Config) -> int | None:
    if not config.get("moe_num_shared_experts"):
        return None
    return config.count("intermediate_size") // config.kv_heads


ERNIE_MOE = Family(
    architecture="ernie4_5-moe",
    classes=("Ernie4_5_MoeForCausalLM",),
    tensors=DECODER
    | EXPERTS
    | shared_expert("shared_experts")
    | {f"{LAYER}mlp.moe_statics.e_score_correction_bias": "blk.{}.exp_probs_b.bias"},
    keys=(
        *USUAL,
        Key("expert_count", "u32", "moe_num_experts"),
        Key("expert_used_count", "u32", "moe_k"),
        Key("interleave_moe_layer_step", "u32", "moe_layer_interval"),
        Key("leading_dense_block_count", "u32", "moe_layer_start_index"),
        EXPERT_WIDTH,
        Key("expert_shared_count", "u32", "moe_num_shared_experts"),
        Key("expert_shared_feed_forward_length", "u32", _ernie_shared),
    ),
    dropped=r"^model\.mtp_",
)

FAMILIES = (
    QWEN2MOE,
    QWEN3MOE,
    OLMOE,
    GRANITEMOE,
    PHIMOE,
    DOTS1,
    GLM4MOE,
    DEEPSEEK,
    DEEPSEEK2,
    GPT_OSS,
    QWEN3VLMOE,
    ERNIE_MOE,
)
