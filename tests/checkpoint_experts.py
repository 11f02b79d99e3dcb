"""Tiny checkpoints of decoders with experts."""

from typing import Any

from checkpoint_decoders import granite
from checkpoint_parts import (
    DIM,
    ENDS,
    FEED,
    FFN,
    HEAD,
    HEADS,
    KV,
    NORMS,
    PLAIN,
    VOCAB,
    YARN,
    Made,
    Shapes,
    attention,
    biased,
    config,
    experts,
    head_norms,
    layers,
    shared,
)


def mixtral() -> Made:
    shapes = experts(4, 32, gate="block_sparse_moe.gate", names="block_sparse_moe")
    changes = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
    return Made(
        config("MixtralForCausalLM", "mixtral", **changes),
        ENDS | layers(NORMS | attention() | shapes),
    )


def granitemoe() -> Made:
    moe = {
        "block_sparse_moe.router.layer.weight": (4, DIM),
        "block_sparse_moe.input_linear.weight": (4, 2 * 32, DIM),
        "block_sparse_moe.output_linear.weight": (4, DIM, 32),
    }
    changes = granite().config | {
        "architectures": ["GraniteMoeForCausalLM"],
        "model_type": "granitemoe",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
    }
    return Made(changes, ENDS | layers(NORMS | attention() | moe))


def qwen2moe() -> Made:
    names = NORMS | attention(bias="qkv") | experts(4, 32) | shared("shared_expert", 80)
    names |= {"mlp.shared_expert_gate.weight": (1, DIM)}
    changes = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 80,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
    }
    return Made(config("Qwen2MoeForCausalLM", "qwen2_moe", **changes), ENDS | layers(names))


def qwen3moe() -> Made:
    names = NORMS | attention(head=32) | head_norms(32, 32) | experts(4, 32)
    changes = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "head_dim": 32,
    }
    return Made(config("Qwen3MoeForCausalLM", "qwen3_moe", **changes), ENDS | layers(names))


def olmoe() -> Made:
    q, k = HEADS * HEAD, KV * HEAD
    names = NORMS | attention() | head_norms(q, k) | experts(4, 32)
    changes = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "norm_topk_prob": False,
        "pad_token_id": 318,
        "rms_norm_eps": 1e-5,
    }
    return Made(config("OlmoeForCausalLM", "olmoe", **changes), ENDS | layers(names))


def deepseek2(rank: int | None = None) -> Made:
    heads, plain, turned, value, kv_rank = HEADS, 16, 16, 32, 32
    attn: Shapes = {
        "self_attn.kv_a_proj_with_mqa.weight": (kv_rank + turned, DIM),
        "self_attn.kv_a_layernorm.weight": (kv_rank,),
        "self_attn.kv_b_proj.weight": (heads * (plain + value), kv_rank),
        "self_attn.o_proj.weight": (DIM, heads * value),
        "self_attn.q_proj.weight": (heads * (plain + turned), DIM),
    }
    moe = experts(4, 32) | shared("shared_experts", 32)
    changes = {
        "num_key_value_heads": HEADS,
        "q_lora_rank": None,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": turned,
        "v_head_dim": value,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
    }
    made = config("DeepseekV2ForCausalLM", "deepseek_v2", **changes)
    made["q_lora_rank"] = None
    return Made(
        made,
        ENDS
        | layers(NORMS | attn | FEED, 1)
        | {f"model.layers.1.{name}": shape for name, shape in (NORMS | attn | moe).items()},
    )


def phimoe() -> Made:
    names = biased(NORMS) | attention(bias="qkvo")
    names |= experts(4, 32, gate="block_sparse_moe.gate", names="block_sparse_moe")
    factors = [1.0 + i / 8 for i in range(HEAD // 2)]
    changes = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "original_max_position_embeddings": 64,
        "attention_bias": True,
        "lm_head_bias": True,
        "sliding_window": 200,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": factors,
            "long_factor": [3 * f for f in factors],
            "short_mscale": 1.0,
            "long_mscale": 1.0,
            "original_max_position_embeddings": 64,
        },
    }
    ends = ENDS | {"model.norm.bias": (DIM,), "lm_head.bias": (VOCAB,)}
    return Made(config("PhiMoEForCausalLM", "phimoe", **changes), ends | layers(names))


def _sigmoid_moe(attn: Shapes, bias: str) -> Shapes:
    """A dense layer, then one with experts, a shared one and a bias of the choice."""
    moe = experts(4, 32) | shared("shared_experts", 32) | {bias: (4,)}
    later = {f"model.layers.1.{name}": shape for name, shape in (NORMS | attn | moe).items()}
    return ENDS | layers(NORMS | attn | FEED, 1) | later


SIGMOID = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}


def dots1() -> Made:
    shapes = _sigmoid_moe(attention() | head_norms(), "mlp.gate.e_score_correction_bias")
    changes = SIGMOID | {"scoring_func": "sigmoid", "head_dim": 16}
    return Made(config("Dots1ForCausalLM", "dots1", **changes), shapes)


def glm4moe() -> Made:
    names = attention(bias="qkv") | head_norms()
    changes = SIGMOID | {
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
        "attention_bias": True,
        "num_nextn_predict_layers": 0,
    }
    shapes = _sigmoid_moe(names, "mlp.gate.e_score_correction_bias")
    return Made(config("Glm4MoeForCausalLM", "glm4_moe", **changes), shapes)


def deepseek() -> Made:
    moe = experts(4, 32) | shared("shared_experts", 32)
    later = {f"model.layers.1.{name}": shape for name, shape in (NORMS | attention() | moe).items()}
    changes = SIGMOID | {
        "routed_scaling_factor": None,
        "n_group": None,
        "topk_group": None,
        "scoring_func": "softmax",
        "norm_topk_prob": False,
    }
    return Made(
        config("DeepseekForCausalLM", "deepseek", **changes), ENDS | layers(PLAIN, 1) | later
    )


def bailing() -> Made:
    attn: Shapes = {
        "attention.query_key_value.weight": ((HEADS + 2 * KV) * HEAD, DIM),
        "attention.dense.weight": (DIM, HEADS * HEAD),
    }
    moe = experts(4, 32) | shared("shared_experts", 64)
    ends: Shapes = {
        "model.word_embeddings.weight": (VOCAB, DIM),
        "model.norm.weight": (DIM,),
        "lm_head.weight": (VOCAB, DIM),
    }
    changes = {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "num_shared_experts": 2, "first_k_dense_replace": 0, "norm_topk_prob": True, "head_dim": 16,
    }  # fmt: skip
    return Made(
        config("BailingMoeForCausalLM", "bailing_moe", **changes),
        ends | layers(NORMS | attn | moe),
    )


def bailing2() -> Made:
    made = bailing()
    shapes = dict(made.shapes)
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes[f"{at}.attention.query_layernorm.weight"] = (HEAD,)
        shapes[f"{at}.attention.key_layernorm.weight"] = (HEAD,)
        shapes[f"{at}.mlp.gate.expert_bias"] = (4,)
    changes = {
        "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe_v2",
        "routed_scaling_factor": 2.5, "n_group": 2, "topk_group": 1, "score_function": "sigmoid",
        "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    return Made(made.config | changes, shapes)


def _gpt_oss_config(**changes: Any) -> dict[str, Any]:
    return config(
        "GptOssForCausalLM",
        "gpt_oss",
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        intermediate_size=32,
        attention_bias=True,
        rope_scaling=YARN | {"beta_fast": 32.0, "beta_slow": 1.0},
        **changes,
    )


def gpt_oss() -> Made:
    names = (
        NORMS
        | attention(head=32, bias="qkvo")
        | {
            "self_attn.sinks": (HEADS,),
            "mlp.router.weight": (4, DIM),
            "mlp.router.bias": (4,),
            "mlp.experts.gate_up_proj": (4, DIM, 64),
            "mlp.experts.gate_up_proj_bias": (4, 64),
            "mlp.experts.down_proj": (4, 32, DIM),
            "mlp.experts.down_proj_bias": (4, DIM),
        }
    )
    return Made(_gpt_oss_config(), ENDS | layers(names))


def gpt_oss_mxfp4() -> Made:
    """As it was published: experts in 4-bit floats, 32 of which have a scale."""
    names = gpt_oss().shapes
    packed: Shapes = {}
    for name, shape in names.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            rows, columns = shape[2], shape[1]
            packed[f"{name}_blocks"] = (4, rows, columns // 32, 16)
            packed[f"{name}_scales"] = (4, rows, columns // 32)
        else:
            packed[name] = shape
    return Made(_gpt_oss_config(quantization_config={"quant_method": "mxfp4"}), packed)


def ernie_moe() -> Made:
    shapes = _sigmoid_moe(attention(), "mlp.moe_statics.e_score_correction_bias")
    shapes["model.layers.1.mlp.moe_statics.e_score_correction_bias"] = (1, 4)
    changes = {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 1,
        "moe_layer_interval": 1,
        "use_bias": False,
        "intermediate_size": FFN,
    }
    return Made(config("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", **changes), shapes)


def minimax_m2() -> Made:
    """Norms over all heads of q and of k, half of a head turned, a bias of the choice."""
    names = NORMS | attention(head=32) | head_norms(HEADS * 32, KV * 32)
    names |= experts(4, 32, gate="block_sparse_moe.gate", names="block_sparse_moe")
    names |= {"block_sparse_moe.e_score_correction_bias": (4,)}
    changes = {
        "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "head_dim": 32,
        "rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True,
        "qk_norm_type": "per_layer", "attn_type_list": [1, 1], "shared_intermediate_size": 0,
        "num_mtp_modules": 3, "mtp_transformer_layers": 1,
    }  # fmt: skip
    return Made(config("MiniMaxM2ForCausalLM", "minimax_m2", **changes), ENDS | layers(names))


def exaone_moe() -> Made:
    """A window in three of four layers, a dense layer before those with experts."""
    attn = NORMS | attention(head=32) | head_norms(32, 32)
    moe = experts(4, 32) | shared("shared_experts", 64) | {"mlp.e_score_correction_bias": (4,)}
    shapes = ENDS | layers(attn, 4) | layers(FEED, 1)
    shapes |= {f"model.layers.{i}.{name}": s for i in (1, 2, 3) for name, s in moe.items()}
    changes = {
        "num_hidden_layers": 4, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "num_shared_experts": 2, "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0,
        "sliding_window": 8, "sliding_window_pattern": "LLLG", "rope_theta": None,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    }  # fmt: skip
    return Made(config("ExaoneMoeForCausalLM", "exaone_moe", **changes), shapes)
