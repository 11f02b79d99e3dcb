"""Decoders of before 2024: GPT-2, NeoX, Falcon, Phi, StarCoder, StableLM, ChatGLM and others."""

from typing import Any

from numpy.typing import NDArray

from .config import Config
from .families_decoders import ATTENTION, ENDS, FFN, FFN_NORM, LAYER, NEIGHBOURS
from .family import Family, Key, Piece, Target, grouped_rows, turned
from .keys import SIZES, USUAL, constant, turned_part

_LAYER_NORM = Key("attention.layer_norm_epsilon", "f32", ("layer_norm_epsilon", "layer_norm_eps"))


def _four_widths(config: Config) -> int:
    return 4 * config.width


_PLAIN_SIZES = (*SIZES, Key("feed_forward_length", "u32", _four_widths), _LAYER_NORM)

_GPT2: dict[str, Target] = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{}.ln_1": "blk.{}.attn_norm",
    "transformer.h.{}.attn.c_attn": "blk.{}.attn_qkv",
    "transformer.h.{}.attn.c_proj": "blk.{}.attn_output",
    "transformer.h.{}.ln_2": "blk.{}.ffn_norm",
    "transformer.h.{}.mlp.c_fc": "blk.{}.ffn_up",
    "transformer.h.{}.mlp.c_proj": "blk.{}.ffn_down",
}

GPT2 = Family(
    architecture="gpt2",
    classes=("GPT2LMHeadModel",),
    # Its matrices are stored with rows for columns.
    tensors={
        name: Piece(str(target), turned) if ".c_" in name else target
        for name, target in _GPT2.items()
    },
    keys=(*_PLAIN_SIZES, Key("context_length", "u32", ("n_ctx", "n_positions"))),
    prefixes=("transformer.",),
    defaults={"layer_norm_epsilon": 1e-5},
)

STARCODER = Family(
    architecture="starcoder",
    classes=("GPTBigCodeForCausalLM",),
    tensors=_GPT2,
    keys=(
        *_PLAIN_SIZES,
        Key("context_length", "u32", "n_positions"),
        Key("attention.head_count_kv", "u32", constant(1)),
    ),
    defaults={"layer_norm_epsilon": 1e-5},
)

STARCODER2 = Family(
    architecture="starcoder2",
    classes=("Starcoder2ForCausalLM",),
    tensors=ENDS
    | ATTENTION
    | FFN_NORM
    | {f"{LAYER}mlp.c_fc": "blk.{}.ffn_up", f"{LAYER}mlp.c_proj": "blk.{}.ffn_down"},
    keys=USUAL,
)

PHI2 = Family(
    architecture="phi2",
    classes=("PhiForCausalLM",),
    tensors=ATTENTION
    | {
        "model.embed_tokens": "token_embd",
        "model.final_layernorm": "output_norm",
        "lm_head": "output",
        f"{LAYER}self_attn.dense": "blk.{}.attn_output",
        f"{LAYER}mlp.fc1": "blk.{}.ffn_up",
        f"{LAYER}mlp.fc2": "blk.{}.ffn_down",
    },
    keys=(
        *_PLAIN_SIZES,
        Key("context_length", "u32", ("n_positions", "max_position_embeddings")),
        Key("attention.head_count_kv", "u32", lambda config: config.heads),
        Key("rope.dimension_count", "u32", turned_part(0.5)),
    ),
    defaults={"layer_norm_eps": 1e-5},
)

STABLELM = Family(
    architecture="stablelm",
    classes=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    tensors=ENDS
    | ATTENTION
    | FFN_NORM
    | FFN
    | {
        f"{LAYER}self_attn.q_layernorm.norms.{{e}}": "blk.{}.attn_q_norm",
        f"{LAYER}self_attn.k_layernorm.norms.{{e}}": "blk.{}.attn_k_norm",
    },
    keys=(
        *SIZES,
        Key("context_length", "u32", "max_position_embeddings"),
        Key("feed_forward_length", "u32", "intermediate_size"),
        Key("rope.dimension_count", "u32", turned_part(0.25)),
        Key("attention.head_count_kv", "u32", lambda config: config.kv_heads),
        Key("use_parallel_residual", "bool", lambda c: c.get("use_parallel_residual", True)),
        Key("attention.layer_norm_epsilon", "f32", ("layer_norm_eps", "norm_eps")),
    ),
    defaults={"layer_norm_eps": 1e-5},
)


def _neox_rows(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return grouped_rows(array, config.heads, 1)


GPTNEOX = Family(
    architecture="gptneox",
    classes=("GPTNeoXForCausalLM",),
    tensors={
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output",
        "gpt_neox.layers.{}.input_layernorm": "blk.{}.attn_norm",
        "gpt_neox.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "gpt_neox.layers.{}.attention.query_key_value": Piece("blk.{}.attn_qkv", _neox_rows),
        "gpt_neox.layers.{}.attention.dense": "blk.{}.attn_output",
        "gpt_neox.layers.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "gpt_neox.layers.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    },
    keys=(
        *SIZES,
        Key("context_length", "u32", "max_position_embeddings"),
        Key("feed_forward_length", "u32", "intermediate_size"),
        Key("rope.dimension_count", "u32", turned_part(0.25)),
        Key("use_parallel_residual", "bool", lambda c: c.get("use_parallel_residual", True)),
        Key("attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
    ),
    defaults={"layer_norm_eps": 1e-5},
    dropped=r"\.attention\.rotary_emb\.",
)


def _falcon_kv_heads(config: Config) -> int:
    """As the layers are built: grouped, or one for all, or one for each."""
    if config.get("new_decoder_architecture"):
        return config.first("num_kv_heads", "n_head_kv") or config.heads
    return 1 if config.get("multi_query", True) else config.heads


def _falcon_rows(array: NDArray[Any], config: Config) -> NDArray[Any]:
    kv = _falcon_kv_heads(config)
    return grouped_rows(array, kv, config.heads // kv)


FALCON = Family(
    architecture="falcon",
    classes=("FalconForCausalLM", "RWForCausalLM"),
    tensors={
        "transformer.word_embeddings": "token_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "transformer.h.{}.input_layernorm": "blk.{}.attn_norm",
        "transformer.h.{}.ln_mlp": "blk.{}.attn_norm",
        "transformer.h.{}.ln_attn": "blk.{}.attn_norm_2",
        "transformer.h.{}.self_attention.query_key_value": Piece("blk.{}.attn_qkv", _falcon_rows),
        "transformer.h.{}.self_attention.dense": "blk.{}.attn_output",
        "transformer.h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "transformer.h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    },
    keys=(
        *_PLAIN_SIZES,
        Key("context_length", "u32", constant(2048)),  # config.json doesn't say
        Key("tensor_data_layout", "str", constant("jploski")),
        Key("attention.head_count_kv", "u32", _falcon_kv_heads),
    ),
    defaults={"layer_norm_epsilon": 1e-5},
)


def _glm_rope(config: Config) -> int:
    dim = config.get("attention_dim", config.width // config.heads)
    return int(dim * config.rope.get("partial_rotary_factor", 0.5))


def _glm_base(config: Config) -> float:
    base = config.rope.get("rope_theta", 10000.0)
    return 10000.0 * config["rope_ratio"] if "rope_ratio" in config else base


# llama.cpp's converter takes none of these from the keys of transformers' own class: its files of
# GLM 4 (hf) have an epsilon of 1e-5, a base of 10,000 and a context as long as the model is wide.
CHATGLM = Family(
    architecture="chatglm",
    classes=("GlmForCausalLM", "ChatGLMModel", "ChatGLMForConditionalGeneration"),
    tensors=ENDS
    | ATTENTION
    | FFN_NORM
    | {
        f"{LAYER}mlp.gate_up_proj": "blk.{}.ffn_up",
        f"{LAYER}mlp.down_proj": "blk.{}.ffn_down",
        "embedding.word_embeddings": "token_embd",
        "encoder.final_layernorm": "output_norm",
        "output_layer": "output",
        "encoder.layers.{}.input_layernorm": "blk.{}.attn_norm",
        "encoder.layers.{}.self_attention.query_key_value": "blk.{}.attn_qkv",
        "encoder.layers.{}.self_attention.dense": "blk.{}.attn_output",
        "encoder.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "encoder.layers.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "encoder.layers.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    },
    keys=(
        *SIZES,
        Key("context_length", "u32", ("seq_length", "max_position_embeddings")),
        Key(
            "feed_forward_length",
            "u32",
            lambda c: c.first("ffn_hidden_size", "intermediate_size") or 4 * c.width,
        ),
        Key(
            "attention.head_count_kv",
            "u32",
            lambda c: c.first("multi_query_group_num", "num_key_value_heads") or c.heads,
        ),
        Key(
            "attention.layer_norm_rms_epsilon",
            "f32",
            lambda c: c.first("layernorm_epsilon", "rms_norm_eps") or 1e-5,
        ),
        Key("rope.dimension_count", "u32", _glm_rope),
        Key("rope.freq_base", "f32", _glm_base),
    ),
    prefixes=("transformer.",),
)

BLOOM = Family(
    architecture="bloom",
    classes=("BloomForCausalLM", "BloomModel"),
    tensors={
        "word_embeddings": "token_embd",
        "word_embeddings_layernorm": "token_embd_norm",
        "ln_f": "output_norm",
        "lm_head": "output",
        "h.{}.input_layernorm": "blk.{}.attn_norm",
        "h.{}.self_attention.query_key_value": Piece("blk.{}.attn_qkv", _neox_rows),
        "h.{}.self_attention.dense": "blk.{}.attn_output",
        "h.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    },
    keys=(
        *_PLAIN_SIZES,
        Key("context_length", "u32", lambda c: c.get("seq_length", c.width)),
        Key("attention.head_count_kv", "u32", lambda config: config.heads),
    ),
    defaults={"layer_norm_epsilon": 1e-5},
    prefixes=("transformer.",),
)


def _attention_setting(key: str) -> Any:
    return lambda config: config.get("attn_config", {}).get(key)


def _alibi(config: Config) -> float:
    settings = config.get("attn_config", {})
    return float(settings.get("alibi_bias_max", 8)) if settings.get("alibi") else 0.0


MPT = Family(
    architecture="mpt",
    classes=("MPTForCausalLM", "MptForCausalLM"),
    tensors={
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.norm_f": "output_norm",
        "lm_head": "output",
        "transformer.blocks.{}.norm_1": "blk.{}.attn_norm",
        "transformer.blocks.{}.attn.Wqkv": "blk.{}.attn_qkv",
        "transformer.blocks.{}.attn.out_proj": "blk.{}.attn_output",
        "transformer.blocks.{}.norm_2": "blk.{}.ffn_norm",
        "transformer.blocks.{}.ffn.up_proj": "blk.{}.ffn_up",
        "transformer.blocks.{}.ffn.down_proj": "blk.{}.ffn_down",
    },
    keys=(
        *SIZES,
        Key("context_length", "u32", "max_seq_len"),
        Key("feed_forward_length", "u32", _four_widths),
        Key("attention.head_count_kv", "u32", _attention_setting("kv_n_heads")),
        Key("attention.layer_norm_epsilon", "f32", constant(1e-5)),
        Key("attention.clamp_kqv", "f32", _attention_setting("clip_qkv")),
        Key("attention.max_alibi_bias", "f32", _alibi),
    ),
)

ORION = Family(
    architecture="orion",
    classes=("OrionForCausalLM",),
    tensors=ENDS | ATTENTION | FFN_NORM | FFN,
    keys=(
        *SIZES,
        Key("tensor_data_layout", "str", constant("Meta AI original pth")),
        Key(
            "context_length",
            "u32",
            ("max_sequence_length", "max_position_embeddings", "model_max_length"),
        ),
        Key("attention.head_count_kv", "u32", lambda config: config.kv_heads),
        Key("attention.layer_norm_epsilon", "f32", "rms_norm_eps"),  # it is a layer norm
    ),
)


def _equal_heads(config: Config) -> None:
    if config.kv_heads != config.heads:
        raise config.unsupported("num_key_value_heads", config.kv_heads, str(config.heads))


XVERSE = Family(
    architecture="xverse",
    classes=("XverseForCausalLM",),
    tensors=ENDS | ATTENTION | FFN_NORM | FFN | NEIGHBOURS,
    keys=(
        *USUAL,
        Key("tensor_data_layout", "str", constant("Meta AI original pth")),
        Key("rope.dimension_count", "u32", lambda config: config.width // config.heads),
    ),
    check=_equal_heads,
)


def _nemotron_scaling(config: Config) -> str:
    return "none" if _nemotron_factor(config) is None else "linear"


def _nemotron_factor(config: Config) -> float | None:
    return config.get("factor") or config.rope.get("factor")


NEMOTRON = Family(
    architecture="nemotron",
    classes=("NemotronForCausalLM",),
    # Its layer norms are stored without their 1 +.
    tensors={
        name: Piece(str(target), plus=1.0) if name.endswith("norm") else target
        for name, target in (ENDS | ATTENTION | FFN_NORM | FFN).items()
        if "gate_proj" not in name
    },
    keys=(
        *USUAL,
        Key("vocab_size", "u32", lambda config: config.count("vocab_size")),
        Key(
            "attention.layer_norm_epsilon",
            "f32",
            ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
        ),
        Key(
            "rope.dimension_count",
            "u32",
            lambda c: int(c.rope.get("partial_rotary_factor", 0.5) * c.width) // c.heads,
        ),
        Key("rope.scaling.type", "str", _nemotron_scaling),
        Key("rope.scaling.factor", "f32", _nemotron_factor),
    ),
    defaults={"norm_eps": 1e-5, "head_dim": lambda config: config.width // config.heads},
)

FAMILIES = (
    GPT2,
    STARCODER,
    STARCODER2,
    PHI2,
    STABLELM,
    GPTNEOX,
    FALCON,
    CHATGLM,
    BLOOM,
    MPT,
    ORION,
    XVERSE,
    NEMOTRON,
)
