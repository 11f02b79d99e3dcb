"""Further tiny models: architectures that needed a declaration and nothing else."""

from collections.abc import Callable

from tiny_blocks import EXPERTS, GATED, LLAMA, QK_NORM, QKV, SHARED, Sizes, model
from tiny_model import Tiny

MEAN = 1
MOE = Sizes(heads=3, kv_heads=1, experts=8, used=3, expert_ffn=64, shared_ffn=64)
SQUARE = Sizes(heads=3, kv_heads=1)
SQUARE_HEADS = Sizes(heads=3, kv_heads=3)
JINA = "attn_q+ attn_k+ attn_v+ attn_output+ attn_output_norm+"
BERT_MORE = {
    "token_types.weight": (2, 96),
    "token_embd_norm.weight": (96,),
    "token_embd_norm.bias": (96,),
}
SIGMOID = {
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_feed_forward_length": 64,
    "expert_shared_count": 1,
    "leading_dense_block_count": 1,
}
BIAS = "exp_probs_b-"


def _dense_first(attention: str) -> Callable[[int], str]:
    return lambda layer: f"{attention} {GATED if layer == 0 else f'{EXPERTS} {SHARED} {BIAS}'}"


FURTHER: tuple[Tiny, ...] = (
    model(
        "minimax-m2",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {EXPERTS} {BIAS}",
        sizes=Sizes(heads=3, kv_heads=1, experts=8, used=3, expert_ffn=64, ffn=64),
        shapes={"attn_q_norm": (96,), "attn_k_norm": (32,)},
        metadata={
            "expert_gating_func": 2,
            "expert_feed_forward_length": 64,
            "rope.dimension_count": 16,
        },
    ),
    model(
        "bailingmoe2",
        _dense_first(f"attn_norm attn_qkv attn_output {QK_NORM} ffn_norm"),
        layers=3,
        sizes=MOE,
        metadata=SIGMOID
        | {
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_shared_feed_forward_length": 64,
            "rope.dimension_count": 16,
        },
    ),
    model(
        "exaone-moe",
        _dense_first(f"attn_norm {QKV} {QK_NORM} ffn_norm"),
        layers=5,
        sizes=MOE,
        metadata=SIGMOID | {"attention.sliding_window": 8},
    ),
    model(
        "deepseek",
        lambda layer: f"attn_norm {QKV} ffn_norm {GATED if layer == 0 else f'{EXPERTS} {SHARED}'}",
        layers=3,
        sizes=MOE,
        metadata={
            "expert_feed_forward_length": 64,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 1.5,
        },
    ),
    model(
        "ernie4_5-moe",
        lambda layer: (
            f"attn_norm {QKV} ffn_norm " + (GATED if layer == 0 else f"{EXPERTS} {SHARED} {BIAS}")
        ),
        layers=3,
        ends="output_norm",
        sizes=MOE,
        metadata={
            "expert_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": 64,
            "interleave_moe_layer_step": 1,
            "leading_dense_block_count": 1,
        },
    ),
    model(
        "qwen3vlmoe",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {EXPERTS}",
        sizes=MOE,
        metadata={
            "expert_feed_forward_length": 64,
            "rope.dimension_sections": [6, 5, 5, 0],
            "n_deepstack_layers": 0,
        },
    ),
    model(
        "phi2",
        "attn_norm+ attn_q+ attn_k+ attn_v+ attn_output+ ffn_up+ ffn_down+",
        ends="output_norm+ output+",
        layer_norm=True,
        sizes=SQUARE,
        metadata={"rope.dimension_count": 16},
        spreads={"*ffn_down*": 0.02},
    ),
    model(
        "chatglm",
        "attn_norm attn_qkv+ attn_output ffn_norm ffn_up ffn_down",
        shapes={"ffn_up": (320, 96)},
        sizes=SQUARE,
        metadata={"rope.dimension_count": 16},
    ),
    model(
        "pangu-embedded",
        f"attn_norm attn_q+ attn_k+ attn_v+ attn_output+ ffn_norm {GATED}",
        sizes=SQUARE,
    ),
    model(
        "eurobert",
        LLAMA,
        ends="output_norm",
        sizes=SQUARE,
        task="embed",
        metadata={"attention.causal": False, "pooling_type": MEAN},
    ),
    model(
        "llama-embed",
        LLAMA,
        ends="output_norm",
        sizes=SQUARE,
        task="embed",
        metadata={"attention.causal": False, "pooling_type": MEAN},
    ),
    model(
        "jina-bert-v2",
        f"{JINA} {GATED.replace('ffn_down', 'ffn_down+')} layer_output_norm+",
        ends="",
        layer_norm=True,
        sizes=SQUARE_HEADS,
        more=BERT_MORE,
        vocabulary="wpm",
        task="embed",
        metadata={"attention.causal": False, "pooling_type": MEAN, "rope.freq_base": None},
    ),
    model(
        "jina-bert-v2-fused",
        f"{JINA} {QK_NORM.replace('norm', 'norm+')} attn_norm_2+ ffn_up ffn_down+ "
        "layer_output_norm+",
        architecture="jina-bert-v2",
        ends="",
        layer_norm=True,
        sizes=SQUARE_HEADS,
        shapes={"ffn_up": (320, 96), "attn_q_norm": (96,), "attn_k_norm": (96,)},
        more=BERT_MORE,
        vocabulary="wpm",
        task="embed",
        metadata={"attention.causal": False, "pooling_type": MEAN, "rope.freq_base": None},
    ),
)
