"""ROPE."""

from ..launch import Fields, Launch, StepShape

HEADS = 4  # of a token that a block works on, a warp each


def rope_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """ROPE."""
    blocks = -(-(f.num_heads + 2 * f.num_kv_heads) // HEADS)
    arguments = (
        *(f.q, f.stride, f.k, f.v, f.kv_stride, f.k_step, f.v_step, f.shared, f.shared_stride),
        *(f.num_heads, f.num_kv_heads, f.key_dim, f.value_dim, f.rope_dim // 2, f.rope_offset),
        *(f.kind, f.table, f.norm_kind, f.q_norm, f.k_norm, f.q_bias, f.k_bias, f.norm_step),
        *(f.v_norm, f.number("eps"), f.number("q_scale"), f.temperature),
        *(f.kv, f.page_bytes, f.head_bytes, shape.step.positions, shape.step.tables),
    )
    return [Launch(f"rope:rope_{f.kv_type}", (blocks, shape.tokens, 1), arguments)]
