"""GLM 4 (0414): norms on both sides of each block, half of a head turned."""

from ..architecture import Architecture, FeedForward, Placement, Rope

ARCHITECTURE = Architecture(
    name="glm4",
    rope=Rope.NORM,
    placement=Placement.SANDWICH,
    feed_forward=FeedForward.FUSED,
)
