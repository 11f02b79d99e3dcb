"""Tiny checkpoints of today's dense decoders."""

from typing import Any

from checkpoint_parts import (
    AFTER,
    DIM,
    ENDS,
    FEED,
    FFN,
    HEAD,
    HEADS,
    KV,
    LLAMA3,
    NORMS,
    PLAIN,
    TIED,
    YARN,
    Made,
    attention,
    config,
    head_norms,
    layers,
)


def llama() -> Made:
    return Made(config("LlamaForCausalLM", "llama"), ENDS | layers(PLAIN))


def llama31() -> Made:
    """Frequency factors, tied embeddings, heads of their own size, biases."""
    shapes = TIED | layers(NORMS | attention(head=32, bias="qkvo") | FEED)
    changes = {"rope_scaling": LLAMA3, "head_dim": 32, "tie_word_embeddings": True}
    return Made(config("LlamaForCausalLM", "llama", attention_bias=True, **changes), shapes)


def mistral() -> Made:
    return Made(
        config("MistralForCausalLM", "mistral", head_dim=32, sliding_window=None),
        ENDS | layers(NORMS | attention(head=32) | FEED),
    )


def qwen2() -> Made:
    return Made(
        config("Qwen2ForCausalLM", "qwen2", tie_word_embeddings=True, rope_theta=1e6),
        TIED | layers(NORMS | attention(bias="qkv") | FEED),
    )


def qwen2_yarn() -> Made:
    scaled = config("Qwen2ForCausalLM", "qwen2", rope_scaling=YARN)
    return Made(scaled, ENDS | layers(NORMS | attention(bias="qkv") | FEED))


def qwen3() -> Made:
    return Made(
        config("Qwen3ForCausalLM", "qwen3", head_dim=32, rope_theta=1e6),
        ENDS | layers(NORMS | attention(head=32) | head_norms(32, 32) | FEED),
    )


GEMMA_NORMS = NORMS | {
    "pre_feedforward_layernorm.weight": (DIM,),
    "post_feedforward_layernorm.weight": (DIM,),
}

GEMMA = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}


def gemma() -> Made:
    return Made(
        config("GemmaForCausalLM", "gemma", head_dim=32, **GEMMA),
        TIED | layers(NORMS | attention(head=32) | FEED),
    )


def gemma2() -> Made:
    changes = {"sliding_window": 8, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 50.0}
    return Made(
        config(
            "Gemma2ForCausalLM", "gemma2", head_dim=32, final_logit_softcapping=30.0,
            **changes, **GEMMA,
        ),
        TIED | layers(GEMMA_NORMS | attention(head=32) | FEED),
    )  # fmt: skip


def gemma3_config(kind: str, model_type: str) -> dict[str, Any]:
    return config(
        kind, model_type, head_dim=32, query_pre_attn_scalar=32, num_hidden_layers=7,
        sliding_window=8, sliding_window_pattern=6, rope_local_base_freq=10000.0, rope_theta=1e6,
        **GEMMA,
    )  # fmt: skip


def gemma3() -> Made:
    names = GEMMA_NORMS | attention(head=32) | head_norms(32, 32) | FEED
    return Made(gemma3_config("Gemma3ForCausalLM", "gemma3_text"), TIED | layers(names, 7))


def phi3() -> Made:
    fused = {
        "self_attn.qkv_proj.weight": ((HEADS + 2 * KV) * HEAD, DIM),
        "self_attn.o_proj.weight": (DIM, HEADS * HEAD),
        "mlp.gate_up_proj.weight": (2 * FFN, DIM),
        "mlp.down_proj.weight": (DIM, FFN),
    }
    changes = config(
        "Phi3ForCausalLM", "phi3", original_max_position_embeddings=256, sliding_window=200,
        pad_token_id=318, rope_scaling=None,
    )  # fmt: skip
    return Made(changes, ENDS | layers(NORMS | fused))


def phi3_long() -> Made:
    made = phi3()
    factors = [1.0 + i / 8 for i in range(HEAD // 2)]
    scaling = {"type": "longrope", "short_factor": factors, "long_factor": [3 * f for f in factors]}
    changes = {"rope_scaling": scaling, "original_max_position_embeddings": 64}
    return Made(made.config | changes, made.shapes)


def smollm3() -> Made:
    changes = {"no_rope_layers": [1, 1, 1, 0, 1], "no_rope_layer_interval": 4, "pad_token_id": 318}
    return Made(
        config("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=5, **changes),
        ENDS | layers(PLAIN, 5),
    )


def mistral3() -> Made:
    scaling = YARN | {
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "beta_fast": 32.0,
        "beta_slow": 1.0, "rope_theta": 10000.0,
    }  # fmt: skip
    return Made(
        config("Ministral3ForCausalLM", "ministral3", head_dim=32, rope_theta=None,
               rope_parameters=scaling),
        ENDS | layers(NORMS | attention(head=32) | FEED),
    )  # fmt: skip


def arcee() -> Made:
    feed = {name: shape for name, shape in FEED.items() if "gate" not in name}
    return Made(
        config("ArceeForCausalLM", "arcee", hidden_act="relu2"),
        ENDS | layers(NORMS | attention() | feed),
    )


def granite_swa() -> Made:
    """Windows in some layers, and sinks."""
    made = granite()
    changes = {
        "architectures": ["GraniteSWAForCausalLM"], "model_type": "granite_swa",
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"], "no_rope_layers": [1, 1],
    }  # fmt: skip
    sinks = {f"model.layers.{i}.self_attn.sinks": (HEADS,) for i in range(2)}
    return Made(made.config | changes, made.shapes | sinks)


def granite() -> Made:
    changes = {
        "attention_multiplier": 0.25, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    }  # fmt: skip
    return Made(config("GraniteForCausalLM", "granite", **changes), ENDS | layers(PLAIN))


def ernie() -> Made:
    return Made(
        config("Ernie4_5ForCausalLM", "ernie4_5", head_dim=16, use_bias=False),
        ENDS | layers(PLAIN),
    )


def seed_oss() -> Made:
    return Made(
        config("SeedOssForCausalLM", "seed_oss", head_dim=32, attention_bias=True,
               attention_out_bias=False),
        ENDS | layers(NORMS | attention(head=32, bias="qkv") | FEED),
    )  # fmt: skip


def olmo2() -> Made:
    q, k = HEADS * HEAD, KV * HEAD
    return Made(
        config("Olmo2ForCausalLM", "olmo2", pad_token_id=318),
        ENDS | layers(AFTER | attention() | head_norms(q, k) | FEED),
    )


def olmo3() -> Made:
    kinds = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"]
    q, k = HEADS * HEAD, KV * HEAD
    return Made(
        config("Olmo3ForCausalLM", "olmo3", pad_token_id=318, num_hidden_layers=5,
               layer_types=kinds, sliding_window=8, rope_theta=5e5),
        ENDS | layers(AFTER | attention() | head_norms(q, k) | FEED, 5),
    )  # fmt: skip


def exaone4() -> Made:
    kinds = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"]
    return Made(
        config("Exaone4ForCausalLM", "exaone4", num_hidden_layers=5, layer_types=kinds,
               sliding_window=8, sliding_window_pattern=4, head_dim=16, pad_token_id=318),
        ENDS | layers(AFTER | attention() | head_norms() | FEED, 5),
    )  # fmt: skip


def glm4() -> Made:
    names = NORMS | attention(bias="qkv") | {
        "post_self_attn_layernorm.weight": (DIM,),
        "post_mlp_layernorm.weight": (DIM,),
        "mlp.gate_up_proj.weight": (2 * FFN, DIM),
        "mlp.down_proj.weight": (DIM, FFN),
    }  # fmt: skip
    changes = {
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "pad_token_id": 318,
    }
    return Made(config("Glm4ForCausalLM", "glm4", **changes), ENDS | layers(names))
