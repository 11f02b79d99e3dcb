"""ROUTE."""

from ..launch import Fields, Launch, StepShape

WIDTHS = (1, 2, 4, 8, 16)  # experts a thread of a warp, for which there are kernels
MAX_EXPERTS = 32 * WIDTHS[-1]
SORTING = 1024  # threads of the block that sorts


def are_sorted(tokens: int, used: int, num_experts: int) -> bool:
    """Whether pairs are sorted by expert.

    Where several want the same one, its rows come from memory once then, whichever kernel reads
    them.
    """
    return tokens > 1 and 2 * tokens * used >= num_experts


def route(f: Fields, shape: StepShape) -> list[Launch]:
    """ROUTE. `slots` on a GPU: int64 a pair, its expert << 32 | its number."""
    pairs = shape.tokens * f.used
    ordered = are_sorted(shape.tokens, f.used, f.num_experts)
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
        0 if ordered else f.slots,
    )
    launches = [Launch(f"route:route_{width}", (shape.tokens, 1, 1), arguments)]
    if ordered:
        launches.append(Launch("route:sort_pairs", (1, 1, 1), (f.out_experts, pairs, f.slots)))
    return launches
