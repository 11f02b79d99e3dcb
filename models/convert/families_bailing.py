"""Ling and Ring (Bailing): experts beside shared ones, fused q, k and v."""

from typing import Any

from numpy.typing import NDArray

from .config import Config
from .families_decoders import FFN_NORM, LAYER
from .families_experts import EXPERTS
from .families_further import first_rows
from .family import Family, Key, Piece, Target, interleaved
from .keys import LLAMA_KEYS, constant, turned_part

_NAMES: dict[str, Target] = {
    "model.word_embeddings": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    f"{LAYER}input_layernorm": "blk.{}.attn_norm",
    f"{LAYER}attention.dense": "blk.{}.attn_output",
    **FFN_NORM,
    **EXPERTS,
    f"{LAYER}mlp.shared_experts.gate_proj": "blk.{}.ffn_gate_shexp",
    f"{LAYER}mlp.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
    f"{LAYER}mlp.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
    f"{LAYER}mlp.gate_proj": "blk.{}.ffn_gate",
    f"{LAYER}mlp.up_proj": "blk.{}.ffn_up",
    f"{LAYER}mlp.down_proj": "blk.{}.ffn_down",
}
_KEYS = (
    *LLAMA_KEYS,
    Key("leading_dense_block_count", "u32", "first_k_dense_replace"),
    Key("expert_feed_forward_length", "u32", "moe_intermediate_size"),
    Key("expert_shared_count", "u32", "num_shared_experts"),
    Key("expert_weights_norm", "bool", "norm_topk_prob"),
)


def _queries(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return interleaved(first_rows("q")(array, config), config.heads)


def _keys(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return interleaved(first_rows("k")(array, config), config.kv_heads)


BAILING = Family(
    architecture="bailingmoe",
    classes=("BailingMoeForCausalLM",),
    tensors={
        **_NAMES,
        f"{LAYER}attention.query_key_value": (
            Piece("blk.{}.attn_q", _queries),
            Piece("blk.{}.attn_k", _keys),
            Piece("blk.{}.attn_v", first_rows("v")),
        ),
    },
    keys=(*_KEYS, Key("expert_weights_scale", "f32", constant(1.0))),
)

BAILING2 = Family(
    architecture="bailingmoe2",
    classes=("BailingMoeV2ForCausalLM",),
    tensors={
        **_NAMES,
        f"{LAYER}attention.query_key_value": "blk.{}.attn_qkv",
        f"{LAYER}attention.query_layernorm": "blk.{}.attn_q_norm",
        f"{LAYER}attention.key_layernorm": "blk.{}.attn_k_norm",
        f"{LAYER}mlp.gate.expert_bias": "blk.{}.exp_probs_b.bias",
    },
    keys=(
        *_KEYS,
        Key("rope.dimension_count", "u32", turned_part(0.5)),
        Key(
            "expert_shared_feed_forward_length",
            "u32",
            lambda c: c.get(
                "moe_shared_expert_intermediate_size",
                c["moe_intermediate_size"] * c["num_shared_experts"],
            ),
        ),
        Key("expert_weights_scale", "f32", "routed_scaling_factor"),
        Key("nextn_predict_layers", "u32", constant(0)),  # those layers are left out
    ),
    dropped=r"^model\.layers\.\d+\.(eh_proj|enorm|hnorm|final_layernorm)\.",
)

FAMILIES = (BAILING, BAILING2)
