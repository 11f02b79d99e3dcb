"""Tiny dense decoders."""

from tiny_blocks import GATED, GENTLE, LLAMA, POST_NORMS, QK_NORM, QKV, QKV_BIASED, Sizes, model
from tiny_model import MIX, MIX_K, Tiny

SQUARE = Sizes(heads=3, kv_heads=1)  # heads * head size == dim, where llama.cpp insists on it
WIDE = Sizes(dim=256, heads=8, kv_heads=2, ffn=256)
NARROW = Sizes(dim=64, heads=4, kv_heads=2, ffn=32)
TIED = "output_norm"
# Formats of files that were made small with an importance matrix.
MIX_SMALL = {"*attn_v.weight": "IQ4_XS"} | MIX_K
MIX_SMALL |= {
    "token_embd.weight": "Q3_K",
    "*attn_q.weight": "Q3_K",
    "*attn_k.weight": "Q2_K",
    "*attn_output.weight": "IQ4_NL",
    "*ffn_up*": "IQ4_XS",
    "*ffn_down*": "Q3_K",
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
FACTORS = {"rope_factors_long.weight": (48,), "rope_factors_short.weight": (48,)}
FACTORS_PARTIAL = {"rope_factors_long.weight": (36,), "rope_factors_short.weight": (36,)}
PHI3 = "attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down"
PHI3_SIZES = Sizes(dim=192, heads=2, kv_heads=1, head=96)
PHI3_SHAPES = {"ffn_up": (320, 192)}
SMALL_KEYS = {"*attn_k_norm.weight": (0.25, 0.08)}  # scores that no sqrt(head size) divides

GEMMA4 = (
    f"attn_norm {QKV} {QK_NORM} {POST_NORMS} ffn_norm {GATED} layer_output_scale "
    "inp_gate proj post_norm"
)
GEMMA4_FULL = (False, False, True, False, True)  # which layers see everything


def _gemma4_sizes(layer: int) -> Sizes:
    full = GEMMA4_FULL[layer]
    return Sizes(
        heads=6, kv_heads=1 if full else 2, head=64 if full else 32, ffn=192 if layer > 2 else 160
    )


def _gemma4_names(layer: int) -> str:
    """The last two layers use the keys and values of layers 1 and 2; full ones have no attn_v."""
    names = GEMMA4.split()
    if layer > 2:
        names = [name for name in names if name not in ("attn_k", "attn_v", "attn_k_norm")]
    elif GEMMA4_FULL[layer]:
        names.remove("attn_v")
    return " ".join(names)


DENSE: tuple[Tiny, ...] = (
    model("llama", LLAMA),
    model(
        "llama-factors",
        LLAMA,
        architecture="llama",
        ends=TIED,
        more={"rope_freqs.weight": (16,)},
        metadata={"rope.freq_base": 500000.0},
    ),
    model(
        "llama-linear",
        "attn_norm attn_q+ attn_k+ attn_v+ attn_output+ ffn_norm ffn_gate+ ffn_up+ ffn_down+",
        architecture="llama",
        sizes=Sizes(dim=160, heads=4, kv_heads=2, head=48),
        metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    model("llama-k", LLAMA, architecture="llama", sizes=WIDE, mix=MIX_K),
    model("llama-small", LLAMA, architecture="llama", sizes=WIDE, mix=MIX_SMALL),
    model(
        "qwen2",
        f"attn_norm {QKV_BIASED} ffn_norm {GATED}",
        ends="output_norm output+",
        sizes=SQUARE,
        metadata={"rope.freq_base": 1000000.0},
    ),
    model("qwen3", f"attn_norm {QKV} {QK_NORM} ffn_norm {GATED}", ends=TIED),
    model(
        "qwen3-yarn",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {GATED}",
        architecture="qwen3",
        ends=TIED,
        metadata=YARN,
    ),
    model("gemma", LLAMA, ends=TIED, vocabulary="spm"),
    model(
        "gemma2",
        f"attn_norm {QKV} ffn_norm {GATED} {POST_NORMS}",
        ends=TIED,
        vocabulary="spm",
        metadata={
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 6.0,
        },
        spreads=GENTLE,
    ),
    model(
        "gemma3",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {GATED} {POST_NORMS}",
        layers=7,
        ends=TIED,
        vocabulary="spm",
        metadata={
            "attention.sliding_window": 8,
            "rope.freq_base": 1000000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 6.0,
        },
        spreads=GENTLE,
    ),
    # The largest ones, which llama.cpp knows by their number of layers, divide scores by
    # sqrt(dim / heads).
    model(
        "gemma2-27b",
        f"attn_norm {QKV} ffn_norm {GATED} {POST_NORMS}",
        architecture="gemma2",
        layers=46,
        ends=TIED,
        sizes=NARROW,
        vocabulary="spm",
        metadata={"attention.sliding_window": 8},
        spreads=GENTLE,
    ),
    model(
        "gemma3-27b",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {GATED} {POST_NORMS}",
        architecture="gemma3",
        layers=62,
        ends=TIED,
        sizes=NARROW,
        vocabulary="spm",
        metadata={"attention.sliding_window": 8},
        spreads=GENTLE,
    ),
    model(
        "gemma4",
        _gemma4_names,
        layers=5,
        ends=TIED,
        sizes=_gemma4_sizes,
        vocabulary="spm",
        more={
            "per_layer_token_embd.weight": (101, 5 * 32),
            "per_layer_model_proj.weight": (5 * 32, 96),
            "per_layer_proj_norm.weight": (32,),
            "rope_freqs.weight": (32,),
        },
        shapes={"inp_gate": (32, 96), "proj": (96, 32), "layer_output_scale": (1,)},
        spreads=GENTLE | SMALL_KEYS,
        metadata={
            "feed_forward_length": [160, 160, 160, 192, 192],
            "attention.head_count_kv": [1 if full else 2 for full in GEMMA4_FULL],
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [not full for full in GEMMA4_FULL],
            "attention.shared_kv_layers": 2,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.key_length_swa": 32,
            "attention.value_length_swa": 32,
            "embedding_length_per_layer_input": 32,
            "rope.dimension_count": 64,
            "rope.dimension_count_swa": 32,
            "rope.freq_base": 1000000.0,
            "rope.freq_base_swa": 10000.0,
            "final_logit_softcapping": 6.0,
        },
    ),
    model("phi3", PHI3, sizes=PHI3_SIZES, shapes=PHI3_SHAPES),
    model(
        "phi3-short",
        PHI3,
        architecture="phi3",
        sizes=PHI3_SIZES,
        shapes=PHI3_SHAPES,
        more=FACTORS,
        metadata={
            "context_length": 2048,
            "rope.scaling.original_context_length": 512,
            "rope.scaling.attn_factor": 1.19,
        },
    ),
    model(
        "phi3-long",
        PHI3,
        architecture="phi3",
        ends=TIED,
        sizes=PHI3_SIZES,
        shapes=PHI3_SHAPES,
        more=FACTORS_PARTIAL,
        metadata={
            "context_length": 2048,
            "rope.dimension_count": 72,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 1.19,
        },
    ),
    model(
        "granite",
        LLAMA,
        ends=TIED,
        sizes=WIDE,
        mix=MIX_K,
        spreads={"token_embd.weight": 0.5},
        metadata={
            "logit_scale": 2.0,
            "embedding_scale": 3.0,
            "residual_scale": 0.6,
            "attention.scale": 0.3,
        },
    ),
    model("smollm3", LLAMA, layers=4, ends=TIED, metadata={"rope.freq_base": 50000.0}),
    model(
        "mistral3",
        LLAMA,
        metadata={
            "rope.freq_base": 100.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_beta_fast": 2.0,
            "rope.scaling.yarn_beta_slow": 0.25,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.5,
        },
    ),
    model(
        "olmo2",
        f"{QKV} {QK_NORM} {GATED} {POST_NORMS}",
        sizes=SQUARE,
        shapes={"attn_q_norm": (96,), "attn_k_norm": (32,)},
    ),
    model(
        "olmo3",
        f"{QKV} {QK_NORM} {GATED} {POST_NORMS}",
        architecture="olmo2",
        layers=4,
        sizes=SQUARE,
        shapes={"attn_q_norm": (96,), "attn_k_norm": (32,)},
        metadata=YARN | {"attention.sliding_window": 8, "rope.scaling.attn_factor": 1.1},
    ),
    model(
        "starcoder2",
        "attn_norm+ attn_q+ attn_k+ attn_v+ attn_output+ ffn_norm+ ffn_up+ ffn_down+",
        ends="output_norm+",
        layer_norm=True,
        sizes=Sizes(heads=2, kv_heads=1, head=48),
        spreads=GENTLE,
    ),
    model(
        "gpt2",
        "attn_norm+ attn_qkv+ attn_output+ ffn_norm+ ffn_up+ ffn_down+",
        ends="output_norm+",
        layer_norm=True,
        sizes=Sizes(heads=3, kv_heads=3),
        more={"position_embd.weight": (256, 96)},
        metadata={"rope.dimension_count": None, "rope.freq_base": None},
        spreads=GENTLE,
    ),
    model(
        "glm4",
        f"attn_norm {QKV_BIASED} ffn_norm ffn_up ffn_down {POST_NORMS}",
        sizes=WIDE,
        mix=MIX_SMALL,
        shapes={"ffn_up": (512, 256)},
        metadata={"rope.dimension_count": 16},
    ),
    model(
        "exaone4",
        f"{QKV} {QK_NORM} {GATED} {POST_NORMS}",
        sizes=SQUARE,
        more={"rope_freqs.weight": (16,)},
    ),
    model(
        "exaone4-windows",
        f"{QKV} {QK_NORM} {GATED} {POST_NORMS}",
        architecture="exaone4",
        layers=64,
        sizes=Sizes(dim=64, heads=2, kv_heads=1, ffn=64),
        metadata={"attention.sliding_window": 8},
    ),
    model(
        "cohere2",
        f"attn_norm {QKV} {GATED}",
        layers=4,
        ends=TIED,
        layer_norm=True,
        sizes=SQUARE,
        metadata={"attention.sliding_window": 8, "logit_scale": 0.5},
    ),
    model(
        "stablelm",
        f"attn_norm+ {QKV_BIASED} ffn_norm+ {GATED}",
        ends="output_norm+ output",
        layer_norm=True,
        sizes=Sizes(dim=160, heads=2, kv_heads=1, head=80),
        metadata={"rope.dimension_count": 20},
    ),
    model(
        "stablelm-parallel",
        f"attn_norm+ {QKV} {QK_NORM} {GATED}",
        architecture="stablelm",
        ends="output_norm+ output",
        layer_norm=True,
        sizes=SQUARE,
        shapes={"attn_q_norm": (3, 32), "attn_k_norm": (1, 32)},
        metadata={"rope.dimension_count": 8},
    ),
    model("internlm2", LLAMA, sizes=SQUARE, mix=MIX | {"*attn_output.weight": "Q4_1"}),
)
