"""Tiny decoders with a mixture of experts."""

from tiny_blocks import (
    EXPERTS,
    GATED,
    GENTLE,
    POST_NORMS,
    QK_NORM,
    QKV,
    QKV_BIASED,
    SHARED,
    Sizes,
    model,
)
from tiny_model import MIX, MIX_K, Shape, Tiny

MIX_EXPERTS = {"*_exps.weight": "MXFP4"} | MIX  # the first pattern that fits counts
MOE = f"attn_norm {QKV} ffn_norm {EXPERTS}"
SIZES = Sizes(experts=8, used=2, ffn=64)
SQUARE = Sizes(heads=3, kv_heads=1, experts=8, used=3, expert_ffn=64)

GEMMA4_FULL = (False, True, False)
GEMMA4 = (
    f"attn_norm {QKV} {QK_NORM} {POST_NORMS} ffn_norm {GATED} layer_output_scale {EXPERTS} "
    "pre_ffw_norm_2 post_ffw_norm_1 post_ffw_norm_2"
)


def _gemma4_names(layer: int) -> str:
    names = GEMMA4.replace("ffn_gate_exps ffn_up_exps", "ffn_gate_up_exps")
    return names.replace("attn_v ", "") if GEMMA4_FULL[layer] else names


def _gemma4_sizes(layer: int) -> Sizes:
    full = GEMMA4_FULL[layer]
    return Sizes(kv_heads=1 if full else 2, head=64 if full else 32, experts=8, used=3)


# DeepSeek's attention: heads of 32 + 16 rotated values, whose keys and values come from 64.
_ROPE, _NOPE, _VALUE, _KV_RANK, _Q_RANK = 16, 32, 32, 64, 32
_MLA_KEYS = {
    "rope.dimension_count": _ROPE,
    "attention.kv_lora_rank": _KV_RANK,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
}
_SPLIT_KEYS = {"attention.key_length": _NOPE + _ROPE, "attention.value_length": _VALUE}
_ABSORBED_KEYS = {
    "attention.head_count_kv": 1,
    "attention.key_length": _KV_RANK + _ROPE,
    "attention.value_length": _KV_RANK,
    "attention.key_length_mla": _NOPE + _ROPE,
    "attention.value_length_mla": _VALUE,
}


def _deepseek_shapes(dim: int, heads: int) -> dict[str, Shape]:
    return {
        "attn_q": (heads * (_NOPE + _ROPE), dim),
        "attn_q_a": (_Q_RANK, dim),
        "attn_q_a_norm": (_Q_RANK,),
        "attn_q_b": (heads * (_NOPE + _ROPE), _Q_RANK),
        "attn_kv_a_mqa": (_KV_RANK + _ROPE, dim),
        "attn_kv_a_norm": (_KV_RANK,),
        "attn_kv_b": (heads * (_NOPE + _VALUE), _KV_RANK),
        "attn_k_b": (heads, _KV_RANK, _NOPE),
        "attn_v_b": (heads, _VALUE, _KV_RANK),
        "attn_output": (dim, heads * _VALUE),
    }


def _deepseek(name: str, *, query: str, values: str, bias: str = "", **options) -> Tiny:
    """query: the tensors of q; values: those that make keys and values from the latent ones."""
    attention = f"attn_norm {query} attn_kv_a_mqa attn_kv_a_norm {values} attn_output ffn_norm"
    dim = options.pop("dim", 96)
    heads = options.pop("heads", 3)
    sizes = Sizes(
        dim=dim,
        heads=heads,
        kv_heads=heads,
        experts=options.pop("experts", 12),
        used=options.pop("used", 4),
        ffn=options.pop("ffn", 160),
        expert_ffn=32,
        shared_ffn=64,
    )
    metadata = _MLA_KEYS | {"expert_feed_forward_length": 32} | options.pop("metadata")
    return model(
        name,
        lambda layer: f"{attention} {GATED if layer == 0 else f'{EXPERTS} {SHARED} {bias}'}",
        architecture="deepseek2",
        sizes=sizes,
        shapes=_deepseek_shapes(dim, heads),
        metadata=metadata,
        **options,
    )


_Q_LORA = "attn_q_a attn_q_a_norm attn_q_b"
_SIGMOID = {
    "expert_gating_func": 2,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "attention.q_lora_rank": _Q_RANK,
}
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}

EXPERT_MODELS: tuple[Tiny, ...] = (
    model("mixtral", MOE, architecture="llama", sizes=SIZES, vocabulary="spm"),
    model(
        "qwen2moe",
        f"attn_norm {QKV_BIASED} ffn_norm {EXPERTS} ffn_gate_inp_shexp {SHARED}",
        sizes=SQUARE,
        metadata={"expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 96},
    ),
    model(
        "qwen3moe",
        f"attn_norm {QKV} {QK_NORM} ffn_norm {EXPERTS}",
        sizes=Sizes(dim=256, heads=6, experts=5, used=2, expert_ffn=256),
        mix=MIX_K,
        metadata={"expert_feed_forward_length": 256},
    ),
    model(
        "granitemoe",
        f"{MOE} {SHARED}",
        ends="output_norm",
        sizes=SIZES,
        metadata={
            "logit_scale": 0.5,
            "embedding_scale": 3.0,
            "residual_scale": 0.6,
            "attention.scale": 0.3,
            "expert_shared_feed_forward_length": 96,
        },
    ),
    model(
        "gpt-oss",
        "attn_norm attn_q+ attn_k+ attn_v+ attn_output+ attn_sinks post_attention_norm "
        "ffn_gate_inp+ ffn_gate_exps+ ffn_up_exps+ ffn_down_exps+",
        layers=3,
        sizes=Sizes(experts=8, used=3),
        mix=MIX_EXPERTS,
        metadata={
            "expert_feed_forward_length": 64,
            "attention.sliding_window": 8,
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    model(
        "gemma4-moe",
        _gemma4_names,
        architecture="gemma4",
        layers=3,
        ends="output_norm",
        sizes=_gemma4_sizes,
        vocabulary="spm",
        more={"rope_freqs.weight": (32,)}
        | {f"blk.{i}.ffn_gate_inp.scale": (96,) for i in range(3)}
        | {f"blk.{i}.ffn_down_exps.scale": (8,) for i in range(3)},
        shapes={"ffn_gate_up_exps": (8, 128, 96), "layer_output_scale": (1,)},
        spreads=GENTLE
        | {
            "*attn_k_norm.weight": (0.25, 0.08),  # scores are not divided by sqrt(head size)
            "*ffn_gate_inp.weight": 16.0,  # its input is divided by sqrt(dim)
        },
        metadata={
            "expert_feed_forward_length": 64,
            "attention.head_count_kv": [1 if full else 2 for full in GEMMA4_FULL],
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [not full for full in GEMMA4_FULL],
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.key_length_swa": 32,
            "attention.value_length_swa": 32,
            "embedding_length_per_layer_input": 0,
            "rope.dimension_count": 64,
            "rope.dimension_count_swa": 32,
            "rope.freq_base": 1000000.0,
            "rope.freq_base_swa": 10000.0,
            "final_logit_softcapping": 6.0,
        },
    ),
    _deepseek(
        "deepseek2-split",
        query=_Q_LORA,
        values="attn_kv_b",
        layers=3,
        metadata=_SPLIT_KEYS
        | _YARN
        | {"attention.q_lora_rank": _Q_RANK, "expert_weights_scale": 1.5},
    ),
    _deepseek(
        "deepseek2",
        query=_Q_LORA,
        values="attn_k_b attn_v_b",
        bias="exp_probs_b-",
        layers=3,
        metadata=_ABSORBED_KEYS | _YARN | _SIGMOID,
    ),
    _deepseek(
        "deepseek2-lite",
        query="attn_q",
        values="attn_k_b attn_v_b",
        layers=27,  # llama.cpp knows the form by it
        dim=64,
        heads=2,
        ffn=64,
        experts=4,
        used=2,
        metadata=_ABSORBED_KEYS | {"expert_weights_norm": False},
        # So many layers amplify a rounding error unless each adds little.
        spreads={"*attn_output.weight": 0.3, "*ffn_down*": 0.3},
    ),
)
