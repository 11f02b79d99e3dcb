"""Which tensors are never quantized: small ones, tables of positions, convolutions, routers.

From tensor_allows_quantization of llama.cpp's src/llama-quant.cpp (commit 0c1e570).
"""

# A tensor whose name holds one of these stays as it is.
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",  # a router: small, and it decides for all experts
    "ffn_gate_tid2eid.weight",  # whole numbers: token -> expert
    "altup", "laurel", "per_layer_model_proj",  # Gemma 3n's small ones
    "ssm_conv1d", "shortconv.conv.weight",  # short convolutions
    "indexer.k_proj.weight", "indexer.q_proj.weight",
    "attn_rel_b.weight",  # T5's bias by distance
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd",
    ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",  # towers for pictures and sound
    *(
        f"time_mix_{name}.weight"  # RWKV's matrices of a few rows
        for name in "first w0 w1 w2 v0 v1 v2 a0 a1 a2 g1 g2 decay_w1 decay_w2 lerp_fused".split()
    ),
)  # fmt: skip
_KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})

# What an architecture keeps beyond that.
_KEPT_OF = {
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate",
        "indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight",
        "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight",
        "attn_v_b.weight",
    ),
}  # fmt: skip


def is_quantized(name: str, shape: tuple[int, ...], architecture: str) -> bool:
    """Whether a tensor, shape (..., rows, columns), is one that a recipe gives a format."""
    # Leading dimensions of 1 don't count, so that a matrix of one row is a vector.
    if len(shape) < 2 or all(n == 1 for n in shape[:-1]):
        return False
    if not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    return not any(part in name for part in (*_KEPT, *_KEPT_OF.get(architecture, ())))
