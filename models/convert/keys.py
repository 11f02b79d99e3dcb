"""config.json's keys as GGUF's: those that most families have, and rope scaling."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import Config
from .family import Key

GATING = {"softmax": 1, "sigmoid": 2}  # expert_gating_func, by what configs call it


def no_rope_scaling(config: Config) -> str:
    """What some families say of themselves always."""
    return "none"


def head_dim(config: Config) -> int:
    """Elements of a head."""
    return config.head_dim


def shared_width(config: Config) -> int:
    """Elements of a head, where the config may not say otherwise."""
    return config.width // config.heads


def turned_part(usual: float | None = None) -> Any:
    """A source: the elements of a head that rotate, `usual` being their part by default."""

    def count(config: Config) -> int:
        part = config.full_rope.get("partial_rotary_factor", usual)
        if part is None:
            raise config.invalid("partial_rotary_factor", None, "a part of each head")
        return int(part * config.head_dim)

    return count


def sliding_flags(config: Config) -> list[bool] | None:
    """Which layers have a window, as `layer_types` says."""
    kinds = config.get("layer_types")
    return None if kinds is None else [kind == "sliding_attention" for kind in kinds]


def check_layer_types(config: Config) -> None:
    """Raise unless `layer_types`, if it is there, says of each layer whether it has a window."""
    kinds, known = config.get("layer_types"), ("sliding_attention", "full_attention")
    if kinds is None:
        return
    expected = f"{' and '.join(known)}, one for each of {config.layers} layers"
    if not isinstance(kinds, list):
        raise config.invalid("layer_types", kinds, f"a list of {expected}")
    if len(kinds) != config.layers or any(kind not in known for kind in kinds):
        raise config.unsupported("layer_types", kinds, expected)


def constant(value: Any) -> Any:
    """A source that is the same for every model of a family."""
    return lambda config: value


def _scaling(config: Config) -> tuple[str, Any]:
    rope = config.full_rope
    return str(rope.get("rope_type", "")).lower(), rope


def _scaling_type(config: Config) -> str | None:
    kind, rope = _scaling(config)
    if kind in ("linear", "yarn"):
        return kind if rope.get("factor") is not None else None
    if kind in ("su", "longrope"):
        return "longrope"
    if kind not in ("", "default", "llama3", "proportional", "mrope"):
        raise config.unsupported("rope type", kind, "linear, yarn, longrope and llama3")
    return None


def _of_scaling(key: str, *kinds: str) -> Any:
    def source(config: Config) -> Any:
        kind, rope = _scaling(config)
        return rope.get(key) if kind in kinds and rope.get("factor") is not None else None

    return source


def _attention_factor(config: Config) -> Any:
    kind, rope = _scaling(config)
    return rope.get("attention_factor", rope.get("attn_factor")) if kind == "yarn" else None


def _sliding_base(config: Config) -> Any:
    return (config.rope.get("sliding_attention") or {}).get("rope_theta")


def _sections(config: Config) -> list[int] | None:
    sections = config.rope.get("mrope_section")
    return None if sections is None else [*sections, 0, 0, 0][:4]


def _gating(config: Config) -> int | None:
    keys = (
        "score_function", "scoring_func", "score_func", "moe_router_activation",
        "moe_router_activation_func",
    )  # fmt: skip
    name = config.first(*keys)
    if name is not None and name not in GATING:
        raise config.unsupported("scoring_func", name, ", ".join(GATING))
    return None if name is None else GATING[name]


ROPE = (
    Key("rope.scaling.type", "str", _scaling_type),
    Key("rope.scaling.factor", "f32", _of_scaling("factor", "linear", "yarn")),
    Key(
        "rope.scaling.original_context_length",
        "u32",
        _of_scaling("original_max_position_embeddings", "yarn"),
    ),
    Key("rope.scaling.yarn_ext_factor", "f32", _of_scaling("extrapolation_factor", "yarn")),
    Key("rope.scaling.yarn_attn_factor", "f32", _attention_factor),
    Key("rope.scaling.yarn_beta_fast", "f32", _of_scaling("beta_fast", "yarn")),
    Key("rope.scaling.yarn_beta_slow", "f32", _of_scaling("beta_slow", "yarn")),
    Key("rope.dimension_sections", "i32", _sections),
    Key("rope.freq_base", "f32", lambda config: config.full_rope.get("rope_theta")),
    Key("rope.freq_base_swa", "f32", _sliding_base),
)

CONTEXT = (
    "max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length",
    "model_max_length",
)  # fmt: skip

SIZES = (
    Key("block_count", "u32", lambda config: config.layers),
    Key("context_length", "u32", CONTEXT),
    Key("embedding_length", "u32", lambda config: config.width),
    Key(
        "feed_forward_length",
        "u32",
        ("dense_intermediate_size", "intermediate_size", "n_inner", "hidden_dim"),
    ),
    Key("attention.head_count", "u32", lambda config: config.heads),
)

# What a family has that needs nothing special.
USUAL = (
    *SIZES,
    Key("attention.head_count_kv", "u32", ("num_key_value_heads", "n_kv_heads")),
    Key(
        "attention.causal",
        "bool",
        lambda config: False if config.get("is_causal") is False else None,
    ),
    *ROPE,
    Key("attention.layer_norm_rms_epsilon", "f32", ("rms_norm_eps", "norm_eps")),
    Key(
        "attention.layer_norm_epsilon",
        "f32",
        ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    ),
    Key("expert_count", "u32", ("num_local_experts", "num_experts", "n_routed_experts")),
    Key(
        "expert_used_count",
        "u32",
        ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    ),
    Key("expert_group_count", "u32", "n_group"),
    Key("expert_group_used_count", "u32", "topk_group"),
    Key("expert_gating_func", "u32", _gating),
    Key("attention.key_length", "u32", "head_dim"),
    Key("attention.value_length", "u32", "head_dim"),
)

LLAMA_KEYS = (
    *USUAL,
    Key("vocab_size", "u32", lambda config: config.count("vocab_size")),
    Key("rope.dimension_count", "u32", head_dim),
)


def llama3_factors(config: Config, factor: float = 8.0) -> dict[str, NDArray[np.float32]]:
    """`rope_freqs.weight`, (head_dim / 2,): what Llama 3.1 divides each pair's frequency by.

    Pairs that turn often in the old context keep their frequency, those that turn rarely are
    slowed down by the factor, and between the two it goes over smoothly.
    """
    rope = config.full_rope
    if str(rope.get("rope_type", "")).lower() != "llama3":
        return {}
    dim, base = config.head_dim, rope.get("rope_theta", 10000.0)
    factor = rope.get("factor", factor)
    low, high = rope.get("low_freq_factor", 1.0), rope.get("high_freq_factor", 4.0)
    context = rope.get("original_max_position_embeddings", 8192)
    # In float32, and dividing by multiplying with the inverse, as PyTorch does there: the file's
    # bytes are the same.
    one = np.float32(1)
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    frequencies = one / np.power(np.float32(base), exponents)
    factors = []
    for length in (one / frequencies) * np.float32(2 * math.pi):
        if length < context / high:
            factors.append(1.0)
        elif length > context / low:
            factors.append(factor)
        else:
            turns = (one / length) * np.float32(context)
            share = (turns - np.float32(low)) / np.float32(high - low)
            factors.append(one / ((one - share) / np.float32(factor) + share))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def longrope_factors(config: Config, dim: int) -> dict[str, NDArray[np.float32]]:
    """The two tensors of LongRoPE, (dim / 2,) each, where the config has them."""
    rope = config.full_rope
    factors = {}
    for name in ("long", "short"):
        if values := rope.get(f"{name}_factor"):
            if len(values) != dim // 2:
                raise config.invalid(
                    f"{name}_factor", f"{len(values)} numbers", f"{dim // 2}, half a head's"
                )
            factors[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    if len(factors) == 1:
        raise config.invalid("rope_scaling", sorted(rope), "both long_factor and short_factor")
    return factors
