"""Further mixtures, whose routers are sigmoids: MiniMax M2 and K-EXAONE."""

from .config import Config
from .families_decoders import ATTENTION, DECODER, ENDS, FFN_NORM, HEAD_NORMS, LAYER, MIXTRAL
from .families_experts import BIASED_CHOICE, EXPERT_WIDTH, EXPERTS, shared_expert
from .families_further import exaone4_flags
from .family import Family, Key
from .keys import (
    USUAL,
    check_layer_types,
    constant,
    llama3_factors,
    no_rope_scaling,
    turned_part,
)

_CHOICE = "exp_probs_b.bias"  # without it, other experts would be chosen


def _turned(config: Config) -> int:
    """Elements of a head that rotate: a key of its own in the published configs."""
    return config.count("rotary_dim") if "rotary_dim" in config else turned_part(1.0)(config)


def _plain_minimax(config: Config) -> None:
    """The form that is run."""
    expected = {
        "scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer",
        "use_routing_bias": True, "shared_intermediate_size": 0,
    }  # fmt: skip
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise config.unsupported(key, config.get(key), repr(value))
    kinds = config.get("attn_type_list")
    if kinds is not None and set(kinds) != {1}:
        raise config.unsupported("attn_type_list", kinds, "1, full attention in every layer")


MINIMAX_M2 = Family(
    architecture="minimax-m2",
    classes=("MiniMaxM2ForCausalLM",),
    tensors=ENDS
    | ATTENTION
    | HEAD_NORMS
    | FFN_NORM
    | MIXTRAL
    | {f"{LAYER}block_sparse_moe.e_score_correction_bias": "blk.{}.exp_probs_b.bias"},
    keys=(
        *USUAL,
        Key("expert_feed_forward_length", "u32", "intermediate_size"),
        Key("rope.dimension_count", "u32", _turned),
    ),
    defaults={"head_dim": 128, "scoring_func": "sigmoid"},
    check=_plain_minimax,
    layer_tensors=lambda config, layer: {_CHOICE: True},
)


def _dense_first(config: Config) -> int:
    """How many layers have no experts; all others do."""
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return config.get("first_k_dense_replace", config.get("first_last_k_dense_replace", 1))
    dense = next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if set(kinds[dense:]) - {"sparse"} or len(kinds) != config.layers:
        raise config.unsupported("mlp_layer_types", kinds, "dense layers before sparse ones")
    return dense


def _plain_exaone(config: Config) -> None:
    """The form that is run.

    Only layers with a window rotate. The file has one rotation, so where config.json has two, they
    must be alike: a plain one, or one with Llama 3's factors.
    """
    windows = config.rope.get("sliding_attention", config.full_rope)
    kind = windows.get("rope_type")
    if kind not in (None, "default", "llama3"):
        raise config.unsupported("rope type", kind, "default and llama3")
    if windows != config.full_rope:
        raise config.unsupported("rope_parameters", config.rope, "one rotation for all layers")
    expected = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise config.unsupported(key, config.get(key), repr(value))
    check_layer_types(config)


EXAONE_MOE = Family(
    architecture="exaone-moe",
    classes=("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
    tensors=DECODER
    | HEAD_NORMS
    | EXPERTS
    | shared_expert("shared_experts")
    | BIASED_CHOICE
    | {f"{LAYER}mlp.e_score_correction_bias": "blk.{}.exp_probs_b.bias"},
    keys=(
        *USUAL,
        Key("vocab_size", "u32", lambda config: config.count("vocab_size")),
        Key("attention.sliding_window", "u32", "sliding_window"),
        Key("attention.sliding_window_pattern", "bool", exaone4_flags),
        EXPERT_WIDTH,
        Key("expert_shared_count", "u32", "num_shared_experts"),
        Key(
            "expert_shared_feed_forward_length",
            "u32",
            lambda c: c.count("moe_intermediate_size") * c.count("num_shared_experts"),
        ),
        Key("expert_weights_scale", "f32", "routed_scaling_factor"),
        Key("expert_weights_norm", "bool", "norm_topk_prob"),
        Key("leading_dense_block_count", "u32", _dense_first),
        Key("nextn_predict_layers", "u32", constant(0)),  # those layers are left out
        Key("rope.scaling.type", "str", no_rope_scaling),
    ),
    defaults={
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "rms_norm_eps": 1e-5,
        "scoring_func": "sigmoid",
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
    },
    dropped=r"^mtp\.",
    made=lambda config: llama3_factors(config, 16.0),
    check=_plain_exaone,
    layer_tensors=lambda config, layer: {_CHOICE: True} if layer >= _dense_first(config) else {},
)

FAMILIES = (
    MINIMAX_M2,
    EXAONE_MOE,
)
