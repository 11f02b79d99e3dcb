"""Command R and R+: both blocks read the same norm of x; the logits are scaled."""

from ..architecture import Architecture, Norm, Placement, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="command-r",
    rope=Rope.NORM,
    norm=Norm.LAYER,
    placement=Placement.PARALLEL,
    qk_norm=QKNorm.HEADS,
    optional=("attn_q_norm", "attn_k_norm"),
)
