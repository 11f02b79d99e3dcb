"""Tiny decoders of more architectures, most of them older ones."""

from tiny_blocks import (
    EXPERTS,
    GATED,
    GENTLE,
    LLAMA,
    QK_NORM,
    QKV,
    QKV_BIASED,
    SHARED,
    Sizes,
    model,
)
from tiny_model import Tiny

SQUARE = Sizes(heads=3, kv_heads=1)
EQUAL = Sizes(heads=3, kv_heads=3)
SQUARE_MOE = Sizes(heads=3, kv_heads=1, experts=8, used=3, ffn=64)
FUSED_BIASED = "attn_norm+ attn_qkv+ attn_output+ ffn_norm+ ffn_up+ ffn_down+"
BY_SIGMOID = {
    "expert_feed_forward_length": 32,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
}
SIGMOID_SIZES = Sizes(heads=3, kv_heads=1, experts=8, used=3, expert_ffn=32, shared_ffn=64)
NO_ROPE = {"rope.dimension_count": None, "rope.freq_base": None}

MORE: tuple[Tiny, ...] = (
    model(
        "olmoe",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {EXPERTS}",
        sizes=Sizes(heads=3, kv_heads=3, experts=8, used=3, ffn=64),
        shapes={"attn_q_norm": (96,), "attn_k_norm": (96,)},
    ),
    model(
        "phimoe",
        f"attn_norm+ attn_q+ attn_k+ attn_v+ attn_output+ ffn_norm+ {EXPERTS}",
        ends="output_norm+ output+",
        sizes=SQUARE_MOE,
        more={"rope_factors_long.weight": (16,), "rope_factors_short.weight": (16,)},
        metadata={"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.19},
    ),
    model(
        "qwen2vl",
        f"attn_norm {QKV_BIASED} ffn_norm {GATED}",
        ends="output_norm",
        sizes=SQUARE,
        # llama.cpp does not read this architecture's epsilon and has 0.
        metadata={
            "rope.dimension_sections": [4, 6, 6, 0],
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    model(
        "qwen3vl",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {GATED}",
        ends="output_norm",
        metadata={"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 0},
    ),
    model(
        "command-r",
        f"attn_norm {QKV} {GATED}",
        ends="output_norm",
        layer_norm=True,
        sizes=SQUARE,
        metadata={"logit_scale": 0.5},
    ),
    model(
        "gptneox",
        FUSED_BIASED,
        ends="output_norm+ output",
        layer_norm=True,
        sizes=EQUAL,
        metadata={"rope.dimension_count": 8, "use_parallel_residual": True},
        spreads=GENTLE,
    ),
    model(
        "gptneox-sequential",
        FUSED_BIASED,
        architecture="gptneox",
        ends="output_norm+ output",
        layer_norm=True,
        sizes=EQUAL,
        metadata={"rope.dimension_count": 8, "use_parallel_residual": False},
        spreads=GENTLE,
    ),
    model(
        "falcon",
        "attn_norm+ attn_norm_2+ attn_qkv attn_output ffn_up ffn_down",
        ends="output_norm+ output",
        layer_norm=True,
        sizes=SQUARE,
        spreads=GENTLE,
    ),
    model(
        "falcon-7b",
        "attn_norm+ attn_qkv attn_output ffn_up ffn_down",
        architecture="falcon",
        ends="output_norm+",
        layer_norm=True,
        sizes=SQUARE,
        spreads=GENTLE,
    ),
    model(
        "bloom",
        FUSED_BIASED,
        ends="output_norm+",
        layer_norm=True,
        sizes=EQUAL,
        more={"token_embd_norm.weight": (96,), "token_embd_norm.bias": (96,)},
        metadata=NO_ROPE,
        spreads=GENTLE,
    ),
    model(
        "mpt",
        "attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down",
        ends="output_norm",
        layer_norm=True,
        sizes=EQUAL,
        metadata=NO_ROPE | {"attention.max_alibi_bias": 8.0},
        spreads=GENTLE,
    ),
    model(
        "starcoder",
        FUSED_BIASED,
        ends="output_norm+",
        layer_norm=True,
        sizes=SQUARE,
        more={"position_embd.weight": (256, 96)},
        metadata=NO_ROPE,
        spreads=GENTLE,
    ),
    model(
        "nemotron",
        "attn_norm+ attn_q+ attn_k+ attn_v+ attn_output+ ffn_norm+ ffn_up+ ffn_down+",
        ends="output_norm+ output",
        layer_norm=True,
        sizes=SQUARE,
        metadata={"rope.dimension_count": 16},
    ),
    model("arcee", f"attn_norm {QKV} ffn_norm ffn_up ffn_down"),
    model("ernie4_5", LLAMA, ends="output_norm"),
    model("seed_oss", f"attn_norm {QKV_BIASED} post_attention_norm {GATED}"),
    model(
        "minicpm",
        LLAMA,
        ends="output_norm",
        spreads={"token_embd.weight": 0.5},
        metadata={"embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 0.8},
    ),
    model("exaone", LLAMA, ends="output_norm", more={"rope_freqs.weight": (16,)}),
    model(
        "orion",
        f"attn_norm+ {QKV} ffn_norm+ {GATED}",
        ends="output_norm+ output",
        layer_norm=True,
        sizes=SQUARE,
    ),
    model("xverse", LLAMA, sizes=SQUARE),
    model(
        "dots1",
        lambda layer: (
            f"attn_norm {QKV} {QK_NORM} ffn_norm "
            + (f"{EXPERTS} exp_probs_b- {SHARED}" if layer else GATED)
        ),
        layers=3,
        sizes=Sizes(heads=3, kv_heads=3, experts=8, used=3, expert_ffn=32, shared_ffn=64),
        metadata=BY_SIGMOID,
    ),
    model(
        "bailingmoe",
        f"attn_norm {QKV} ffn_norm {EXPERTS} {SHARED}",
        sizes=SIGMOID_SIZES,
        metadata={key: BY_SIGMOID[key] for key in list(BY_SIGMOID)[:2]}
        | {"expert_weights_scale": 1.5, "expert_weights_norm": True},
    ),
    model(
        "glm4moe",
        lambda layer: (
            f"attn_norm {QKV_BIASED} {QK_NORM} post_attention_norm "
            + (f"{EXPERTS} exp_probs_b- {SHARED}" if layer else GATED)
        ),
        layers=3,
        sizes=SIGMOID_SIZES,
        metadata=BY_SIGMOID | {"rope.dimension_count": 16},
    ),
    model(
        "granite_swa",
        f"attn_norm {QKV} attn_sinks ffn_norm {GATED}",
        layers=3,
        ends="output_norm",
        spreads={"token_embd.weight": 0.5},
        metadata={
            "logit_scale": 2.0,
            "embedding_scale": 3.0,
            "residual_scale": 0.6,
            "attention.scale": 0.3,
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [True, False, True],
        },
    ),
)
