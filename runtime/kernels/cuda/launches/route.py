"""ROUTE."""

from ..launch import Fields, Launch, StepShape

WIDTHS = (1, 2, 4, 8, 16)  # experts a thread of a warp, for which there are kernels
MAX_EXPERTS = 32 * WIDTHS[-1]


def route(f: Fields, shape: StepShape) -> list[Launch]:
    """ROUTE."""
    assert f.num_experts <= MAX_EXPERTS, f"{f.num_experts} experts"
    width = next(w for w in WIDTHS if 32 * w >= f.num_experts)
    arguments = (
        f.logits,
        f.stride,
        f.num_experts,
        f.used,
        f.gating,
        f.normalize,
        f.groups,
        f.groups_used,
        f.number("scale"),
        f.select_bias,
        f.expert_scale,
        f.out_experts,
        f.out_weights,
    )
    return [Launch(f"route:route_{width}", (shape.tokens, 1, 1), arguments)]
