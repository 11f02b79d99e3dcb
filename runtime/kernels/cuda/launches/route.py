"""ROUTE."""

from ..launch import Fields, Launch, StepShape

WIDTHS = (1, 2, 4, 8, 16)  # experts a thread of a warp, for which there are kernels
MAX_EXPERTS = 32 * WIDTHS[-1]
SORTING = 1024  # threads of the block that sorts
# Up to here each pair of a token and an expert reads the expert's matrices for itself; more of them
# are sorted by expert, and TOGETHER share what they read (launches/experts.py).
MAX_ALONE = 64
TOGETHER = 8


def route(f: Fields, shape: StepShape) -> list[Launch]:
    """ROUTE. `slots` on a GPU: int64 a pair, its expert << 32 | its number."""
    pairs = shape.tokens * f.used
    alone = pairs <= MAX_ALONE
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
        f.slots if alone else 0,
    )
    launches = [Launch(f"route:route_{width}", (shape.tokens, 1, 1), arguments)]
    if not alone:
        launches.append(Launch("route:sort_pairs", (1, 1, 1), (f.out_experts, pairs, f.slots)))
    return launches
