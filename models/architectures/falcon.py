"""Falcon 7B: both blocks read the same norm of x; one key/value head."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Placement, Rope

ARCHITECTURE = Architecture(
    name="falcon",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    placement=Placement.PARALLEL,
    feed_forward=FeedForward.PLAIN,
)
