"""Tiny encoders, embedding models and rerankers."""

from tiny_blocks import GATED, GENTLE, POST_NORMS, QK_NORM, QKV, Sizes, model
from tiny_model import Tiny

SIZES = Sizes(heads=3, kv_heads=3)
NONE, MEAN, CLS, LAST, RANK = range(5)  # kinds of pooling
BERT = "attn_q+ attn_k+ attn_v+ attn_output+ attn_output_norm+ ffn_up+ ffn_down+ layer_output_norm+"
BERT_MORE = {
    "token_types.weight": (2, 96),
    "token_embd_norm.weight": (96,),
    "token_embd_norm.bias": (96,),
}
POSITIONS = {"position_embd.weight": (256, 96)}
HEAD = {
    "cls.weight": (96, 96),
    "cls.bias": (96,),
    "cls.output.weight": (1, 96),
    "cls.output.bias": (1,),
}
MODERN = "attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down"
MODERN_KEYS = {
    "attention.causal": False,
    "attention.sliding_window": 8,
    "rope.freq_base": 160000.0,
    "rope.freq_base_swa": 10000.0,
}
QWEN3 = f"attn_norm {QKV} {QK_NORM} ffn_norm {GATED}"


def _modern_names(layer: int) -> str:
    return MODERN if layer else MODERN.removeprefix("attn_norm ")


ENCODERS: tuple[Tiny, ...] = (
    model(
        "bert",
        BERT,
        ends="",
        layer_norm=True,
        sizes=SIZES,
        more=BERT_MORE | POSITIONS,
        vocabulary="wpm",
        task="embed",
        metadata={"attention.causal": False, "pooling_type": MEAN},
        spreads=GENTLE,
    ),
    model(
        "bert-rank",
        BERT,
        architecture="bert",
        ends="",
        layer_norm=True,
        sizes=SIZES,
        more=BERT_MORE | POSITIONS | HEAD,
        vocabulary="wpm",
        task="rank",
        metadata={"attention.causal": False, "pooling_type": RANK},
        spreads=GENTLE,
    ),
    model(
        "nomic-bert",
        f"attn_qkv attn_output attn_output_norm+ {GATED} layer_output_norm+",
        ends="",
        layer_norm=True,
        sizes=SIZES,
        more=BERT_MORE,
        vocabulary="wpm",
        task="embed",
        metadata={"attention.causal": False, "pooling_type": CLS, "rope.freq_base": 1000.0},
    ),
    model(
        "modern-bert",
        _modern_names,
        layers=4,
        ends="output_norm",
        layer_norm=True,
        sizes=SIZES,
        shapes={"ffn_up": (320, 96)},
        more={"token_embd_norm.weight": (96,)},
        task="embed",
        metadata=MODERN_KEYS | {"pooling_type": MEAN},
        spreads=GENTLE,
    ),
    model(
        "modern-bert-rank",
        _modern_names,
        architecture="modern-bert",
        layers=4,
        ends="output_norm",
        layer_norm=True,
        sizes=SIZES,
        shapes={"ffn_up": (320, 96)},
        more={"token_embd_norm.weight": (96,), "cls.norm.weight": (96,)}
        | {name: shape for name, shape in HEAD.items() if name != "cls.bias"},
        task="rank",
        metadata=MODERN_KEYS | {"pooling_type": RANK, "hidden_activation": "silu"},
    ),
    model(
        "gemma-embedding",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {GATED} {POST_NORMS}",
        layers=7,
        ends="output_norm",
        vocabulary="spm",
        more={"dense_2.weight": (128, 96), "dense_3.weight": (96, 128)},
        task="embed",
        metadata={
            "pooling_type": MEAN,
            "attention.sliding_window": 8,
            "rope.freq_base": 1000000.0,
            "dense_2_feat_in": 96,
            "dense_2_feat_out": 128,
            "dense_3_feat_in": 128,
            "dense_3_feat_out": 96,
        },
        spreads=GENTLE,
    ),
    model(
        "qwen3-embedding",
        QWEN3,
        architecture="qwen3",
        ends="output_norm",
        task="embed",
        metadata={"pooling_type": LAST},
    ),
    model(
        "qwen3-rank",
        QWEN3,
        architecture="qwen3",
        ends="output_norm",
        more={"cls.output.weight": (2, 96)},
        task="rank",
        metadata={"pooling_type": RANK, "classifier.output_labels": ["yes", "no"]},
    ),
)
