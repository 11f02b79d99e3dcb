"""What tiny checkpoints are made of: shapes by transformers' names, keys of config.json."""

from dataclasses import dataclass, field
from typing import Any

VOCAB, DIM, FFN, HEADS, KV, HEAD, LAYERS = 320, 64, 96, 4, 2, 16, 2

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Made:
    """A checkpoint: config.json, and the shapes of its tensors by their names.

    tokenizer: "bpe" or "wordpiece". files: further JSON files by their names.
    """

    config: dict[str, Any]
    shapes: Shapes
    tokenizer: str = "bpe"
    files: dict[str, Any] = field(default_factory=dict)


def config(kind: str, model_type: str, **changes: Any) -> dict[str, Any]:
    """The keys that most decoders have; None takes one away."""
    values: dict[str, Any] = {
        "architectures": [kind],
        "model_type": model_type,
        "hidden_size": DIM,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 316,
        "eos_token_id": 317,
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


def layers(names: Shapes, count: int = LAYERS, prefix: str = "model.layers.{}.") -> Shapes:
    """The tensors of all layers."""
    return {prefix.format(i) + name: s for i in range(count) for name, s in names.items()}


ENDS: Shapes = {
    "model.embed_tokens.weight": (VOCAB, DIM),
    "model.norm.weight": (DIM,),
    "lm_head.weight": (VOCAB, DIM),
}

TIED = {name: shape for name, shape in ENDS.items() if name != "lm_head.weight"}

FEED: Shapes = {
    "mlp.gate_proj.weight": (FFN, DIM),
    "mlp.up_proj.weight": (FFN, DIM),
    "mlp.down_proj.weight": (DIM, FFN),
}

NORMS: Shapes = {"input_layernorm.weight": (DIM,), "post_attention_layernorm.weight": (DIM,)}


def attention(
    *, head: int = HEAD, heads: int = HEADS, kv: int = KV, out: str = "o_proj", bias: str = ""
) -> Shapes:
    """q, k, v and the output; bias: letters of those that have one, such as "qkv"."""
    q = heads * head
    shapes: Shapes = {}
    for name, rows, columns in (
        ("q_proj", q, DIM), ("k_proj", kv * head, DIM), ("v_proj", kv * head, DIM), (out, DIM, q),
    ):  # fmt: skip
        shapes[f"self_attn.{name}.weight"] = (rows, columns)
        if name[0] in bias or (name == out and "o" in bias):
            shapes[f"self_attn.{name}.bias"] = (rows,)
    return shapes


def head_norms(q: int = HEAD, k: int = HEAD) -> Shapes:
    return {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (k,)}


def experts(count: int, ffn: int, *, gate: str = "mlp.gate", names: str = "mlp") -> Shapes:
    """A router and its experts, one tensor each."""
    shapes: Shapes = {f"{gate}.weight": (count, DIM)}
    parts = ("w1", "w2", "w3") if names != "mlp" else ("gate_proj", "down_proj", "up_proj")
    for e in range(count):
        for part in parts:
            down = part in ("w2", "down_proj")
            shapes[f"{names}.experts.{e}.{part}.weight"] = (DIM, ffn) if down else (ffn, DIM)
    return shapes


def shared(name: str, ffn: int) -> Shapes:
    return {
        f"mlp.{name}.gate_proj.weight": (ffn, DIM),
        f"mlp.{name}.up_proj.weight": (ffn, DIM),
        f"mlp.{name}.down_proj.weight": (DIM, ffn),
    }


def biased(shapes: Shapes) -> Shapes:
    """The same with a bias beside each weight."""
    more = {n[: -len("weight")] + "bias": s[:1] for n, s in shapes.items() if n.endswith("weight")}
    return shapes | more


PLAIN = NORMS | attention() | FEED

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

AFTER: Shapes = {
    "post_attention_layernorm.weight": (DIM,),
    "post_feedforward_layernorm.weight": (DIM,),
}

POOLED = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ],
    "1_Pooling/config.json": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
}
