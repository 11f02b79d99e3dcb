"""Gemma 1 to 3 and EmbeddingGemma: norms that are stored without their `1 +`."""

from .config import Config
from .families_decoders import AFTER, ATTENTION, ENDS, FFN, HEAD_NORMS, LAYER
from .family import Family, Key, Piece, Target
from .keys import SIZES, USUAL

_NORMS = ("norm", "layernorm")


def _raised(tensors: dict[str, Target]) -> dict[str, Target]:
    """The same with 1 added to every norm."""
    return {
        name: Piece(target, plus=1.0)
        if isinstance(target, str) and name.endswith(_NORMS)
        else target
        for name, target in tensors.items()
    }


_ONE = _raised(
    ENDS
    | ATTENTION
    | FFN
    | {f"{LAYER}post_attention_layernorm": "blk.{}.ffn_norm", "lm_head": None}
)
_TWO = _raised(
    ENDS
    | ATTENTION
    | FFN
    | AFTER
    | {f"{LAYER}pre_feedforward_layernorm": "blk.{}.ffn_norm", "lm_head": None}
)
_THREE = _raised(
    ENDS
    | ATTENTION
    | HEAD_NORMS
    | FFN
    | AFTER
    | {f"{LAYER}pre_feedforward_layernorm": "blk.{}.ffn_norm"}
)

_OLD_KEYS = (
    *SIZES,
    Key("attention.head_count_kv", "u32", lambda config: config.kv_heads),
    Key("attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
    Key("attention.key_length", "u32", "head_dim"),
    Key("attention.value_length", "u32", "head_dim"),
)

GEMMA = Family(
    architecture="gemma",
    classes=("GemmaForCausalLM",),
    tensors=_ONE,
    keys=_OLD_KEYS,
    defaults={"head_dim": 256, "rms_norm_eps": 1e-6, "max_position_embeddings": 8192},
)

GEMMA2 = Family(
    architecture="gemma2",
    classes=("Gemma2ForCausalLM",),
    tensors=_TWO,
    keys=(
        *_OLD_KEYS,
        Key("attn_logit_softcapping", "f32", "attn_logit_softcapping"),
        Key("final_logit_softcapping", "f32", "final_logit_softcapping"),
        Key("attention.sliding_window", "u32", "sliding_window"),
    ),
    defaults={
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
    },
)


def _sliding_base(config: Config) -> float:
    return (config.rope.get("sliding_attention") or {}).get("rope_theta", 10000.0)


_GEMMA3_KEYS = (
    *USUAL,
    Key("attention.head_count_kv", "u32", lambda c: c.get("num_key_value_heads", 4)),
    Key("rope.freq_base", "f32", lambda c: c.full_rope.get("rope_theta", 1_000_000.0)),
    Key("rope.freq_base_swa", "f32", _sliding_base),
    Key("final_logit_softcapping", "f32", lambda c: c.get("final_logit_softcapping") or None),
)
# What the configs of the multimodal ones leave out.
_GEMMA3_DEFAULTS = {
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "vocab_size": 262208,
    "sliding_window": 4096,
}


def _no_softcap(config: Config) -> None:
    if (cap := config.get("attn_logit_softcapping")) is not None:
        raise config.unsupported("attn_logit_softcapping", cap, "null")


GEMMA3 = Family(
    architecture="gemma3",
    classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    tensors=_THREE,
    keys=(
        *_GEMMA3_KEYS,
        Key(
            "attention.sliding_window",
            "u32",
            lambda c: None if c.get("sliding_window_pattern") == 1 else c.get("sliding_window"),
        ),
    ),
    defaults=_GEMMA3_DEFAULTS,
    check=_no_softcap,
)

EMBEDDING_GEMMA = Family(
    architecture="gemma-embedding",
    classes=("Gemma3TextModel",),
    tensors=_THREE,
    keys=(*_GEMMA3_KEYS, Key("attention.sliding_window", "u32", "sliding_window")),
    defaults=_GEMMA3_DEFAULTS,
    check=_no_softcap,
    pooled=True,
    dense=True,
)

FAMILIES = (
    GEMMA,
    GEMMA2,
    GEMMA3,
    EMBEDDING_GEMMA,
)
