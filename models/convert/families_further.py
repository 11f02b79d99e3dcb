"""Further dense decoders: norms behind the blocks, fused matrices, scales of their own."""

from typing import Any

from numpy.typing import NDArray

from .config import Config
from .families_decoders import (
    AFTER,
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
)
from .family import Family, Key, Piece, first_half, interleaved, second_half
from .keys import (
    LLAMA_KEYS,
    USUAL,
    head_dim,
    llama3_factors,
    longrope_factors,
    no_rope_scaling,
    shared_width,
    sliding_flags,
    turned_part,
)


def first_rows(which: str) -> Any:
    """Ernie's and Bailing's fused matrices: q, k and v one after the other."""

    def move(array: NDArray[Any], config: Config) -> NDArray[Any]:
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        starts = {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)}
        first, last = starts[which]
        return array[first:last]

    return move


ERNIE = Family(
    architecture="ernie4_5",
    classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    tensors=DECODER
    | {
        f"{LAYER}self_attn.qkv_proj": (
            Piece("blk.{}.attn_q", first_rows("q")),
            Piece("blk.{}.attn_k", first_rows("k")),
            Piece("blk.{}.attn_v", first_rows("v")),
        ),
        f"{LAYER}mlp.up_gate_proj": (
            Piece("blk.{}.ffn_gate", first_half),
            Piece("blk.{}.ffn_up", second_half),
        ),
    },
    keys=USUAL,
    defaults={"head_dim": head_dim},
)

SEED_OSS = Family(
    architecture="seed_oss",
    classes=("SeedOssForCausalLM",),
    tensors=DECODER | {f"{LAYER}post_attention_layernorm": "blk.{}.post_attention_norm"},
    keys=USUAL,
    defaults={"head_dim": head_dim},
)


def _olmo2_flags(config: Config) -> list[bool] | None:
    if "sliding_window" not in config:
        return None
    return sliding_flags(config) or [(i + 1) % 4 != 0 for i in range(config.layers)]


OLMO2 = Family(
    architecture="olmo2",
    classes=("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
    tensors=ENDS | ATTENTION | HEAD_NORMS | FFN | AFTER,
    keys=(
        *USUAL,
        Key("attention.sliding_window", "u32", "sliding_window"),
        Key("attention.sliding_window_pattern", "bool", _olmo2_flags),
        Key(
            "rope.freq_base_swa",
            "f32",
            lambda c: c.full_rope.get("rope_theta") if "sliding_window" in c else None,
        ),
    ),
)


def exaone4_flags(config: Config) -> list[bool] | None:
    if "sliding_window" not in config:
        return None
    if (flags := sliding_flags(config)) is not None:
        return flags
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str):  # such as LLLG
        return [pattern[i % len(pattern)] == "L" for i in range(config.layers)]
    return [(i + 1) % pattern != 0 for i in range(config.layers)] if pattern else None


EXAONE4 = Family(
    architecture="exaone4",
    classes=("Exaone4ForCausalLM",),
    tensors=ENDS | ATTENTION | HEAD_NORMS | FFN | AFTER,
    keys=(
        *USUAL,
        Key("vocab_size", "u32", lambda config: config.count("vocab_size")),
        Key("attention.sliding_window", "u32", "sliding_window"),
        Key("attention.sliding_window_pattern", "bool", exaone4_flags),
    ),
    defaults={"head_dim": head_dim},
    made=lambda config: llama3_factors(config, 16.0),
)

EXAONE = Family(
    architecture="exaone",
    classes=("ExaoneForCausalLM",),
    tensors={
        "transformer.wte": "token_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "transformer.h.{}.ln_1": "blk.{}.attn_norm",
        "transformer.h.{}.attn.attention.q_proj": "blk.{}.attn_q",
        "transformer.h.{}.attn.attention.k_proj": "blk.{}.attn_k",
        "transformer.h.{}.attn.attention.v_proj": "blk.{}.attn_v",
        "transformer.h.{}.attn.attention.out_proj": "blk.{}.attn_output",
        "transformer.h.{}.ln_2": "blk.{}.ffn_norm",
        "transformer.h.{}.mlp.c_fc_0": "blk.{}.ffn_gate",
        "transformer.h.{}.mlp.c_fc_1": "blk.{}.ffn_up",
        "transformer.h.{}.mlp.c_proj": "blk.{}.ffn_down",
    },
    keys=(
        *USUAL,
        # Its configs call it so; llama.cpp's converter, at that commit, writes none.
        Key("attention.layer_norm_rms_epsilon", "f32", ("rms_norm_eps", "layer_norm_epsilon")),
        Key("rope.dimension_count", "u32", turned_part(1.0)),
    ),
    made=llama3_factors,
)

GLM4 = Family(
    architecture="glm4",
    classes=("Glm4ForCausalLM",),
    tensors=ENDS
    | ATTENTION
    | FFN_NORM
    | {
        f"{LAYER}post_self_attn_layernorm": "blk.{}.post_attention_norm",
        f"{LAYER}post_mlp_layernorm": "blk.{}.post_ffw_norm",
        f"{LAYER}mlp.gate_up_proj": "blk.{}.ffn_up",
        f"{LAYER}mlp.down_proj": "blk.{}.ffn_down",
    },
    keys=(*USUAL, Key("rope.dimension_count", "u32", turned_part(0.5))),
    defaults={"head_dim": 128},
)


def _internlm2_rows(which: str) -> Any:
    """InternLM 2's fused matrix lies group by group: its heads of q, one of k, one of v."""

    def move(array: NDArray[Any], config: Config) -> NDArray[Any]:
        heads, kv = config.heads, config.kv_heads
        rows = array.shape[0] // (heads + 2 * kv)
        parts = array.reshape(kv, heads // kv + 2, rows, *array.shape[1:])
        chosen = {"q": parts[:, :-2], "k": parts[:, -2], "v": parts[:, -1]}[which]
        flat = chosen.reshape(-1, *array.shape[1:])
        return flat if which == "v" else interleaved(flat, heads if which == "q" else kv)

    return move


INTERNLM2 = Family(
    architecture="internlm2",
    classes=("InternLM2ForCausalLM",),
    tensors={
        "model.tok_embeddings": "token_embd",
        "model.norm": "output_norm",
        "output": "output",
        f"{LAYER}attention_norm": "blk.{}.attn_norm",
        f"{LAYER}attention.wqkv": (
            Piece("blk.{}.attn_q", _internlm2_rows("q")),
            Piece("blk.{}.attn_k", _internlm2_rows("k")),
            Piece("blk.{}.attn_v", _internlm2_rows("v")),
        ),
        f"{LAYER}attention.wo": "blk.{}.attn_output",
        f"{LAYER}ffn_norm": "blk.{}.ffn_norm",
        f"{LAYER}feed_forward.w1": "blk.{}.ffn_gate",
        f"{LAYER}feed_forward.w2": "blk.{}.ffn_down",
        f"{LAYER}feed_forward.w3": "blk.{}.ffn_up",
    },
    keys=USUAL,
)

MINICPM = Family(
    architecture="minicpm",
    classes=("MiniCPMForCausalLM",),
    tensors=LLAMA_TENSORS,
    keys=(
        *USUAL,
        Key("embedding_scale", "f32", "scale_emb"),
        Key("residual_scale", "f32", lambda c: c["scale_depth"] / c.layers**0.5),
        Key("logit_scale", "f32", lambda c: c.width / c["dim_model_base"]),
    ),
    made=lambda config: longrope_factors(config, shared_width(config)),
)

COMMAND_R = Family(
    architecture="command-r",
    classes=("CohereForCausalLM",),
    tensors=ENDS | ATTENTION | HEAD_NORMS | FFN,
    keys=(
        *USUAL,
        Key("context_length", "u32", ("model_max_length", "max_position_embeddings")),
        Key("logit_scale", "f32", "logit_scale"),
        Key("rope.scaling.type", "str", no_rope_scaling),
    ),
    defaults={"layer_norm_eps": 1e-5, "logit_scale": 0.0625},
)

COHERE2 = Family(
    architecture="cohere2",
    classes=("Cohere2ForCausalLM",),
    tensors=ENDS | ATTENTION | FFN,
    keys=(
        *USUAL,
        Key("logit_scale", "f32", "logit_scale"),
        Key("attention.sliding_window", "u32", "sliding_window"),
        Key("vocab_size", "u32", lambda config: config.count("vocab_size")),
        Key(
            "rope.dimension_count",
            "u32",
            lambda c: int(c.get("rotary_pct", 1.0) * (c.width // c.heads)),
        ),
        Key("rope.scaling.type", "str", no_rope_scaling),
    ),
    defaults={"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "head_dim": shared_width},
)

LLAMA_EMBED = Family(
    architecture="llama-embed",
    classes=("LlamaBidirectionalModel",),
    tensors=LLAMA_TENSORS,
    keys=LLAMA_KEYS,
    made=llama3_factors,
)

PANGU = Family(
    architecture="pangu-embedded",
    classes=("PanguEmbeddedForCausalLM",),
    tensors=DECODER,
    keys=LLAMA_KEYS,
    defaults={"head_dim": head_dim},
)


def _swa_flags(config: Config) -> list[bool]:
    return sliding_flags(config) or [i % 4 != 0 for i in range(config.layers)]


def _turning_flags(config: Config) -> list[bool] | None:
    layers = config.get("no_rope_layers")  # 1: it turns
    return [bool(turns) for turns in layers] if layers else None


GRANITE_SWA = Family(
    architecture="granite_swa",
    classes=("GraniteSWAForCausalLM",),
    tensors=LLAMA_TENSORS | {f"{LAYER}self_attn.sinks": "blk.{}.attn_sinks"},
    keys=(
        *GRANITE_KEYS,
        Key("attention.sliding_window", "u32", lambda c: c.get("sliding_window", 128)),
        Key("attention.sliding_window_pattern", "bool", _swa_flags),
        Key("attention.rope_pattern", "bool", _turning_flags),
    ),
    defaults=GRANITE_DEFAULTS,
    made=llama3_factors,
)

FAMILIES = (
    ERNIE,
    SEED_OSS,
    OLMO2,
    EXAONE4,
    EXAONE,
    GLM4,
    INTERNLM2,
    MINICPM,
    COMMAND_R,
    COHERE2,
    LLAMA_EMBED,
    PANGU,
    GRANITE_SWA,
)
