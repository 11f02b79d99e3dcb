"""Falcon: both blocks read the same x, in the 7B through one norm, in the 40B each by its own."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Placement, Rope

ARCHITECTURE = Architecture(
    name="falcon",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    placement=Placement.PARALLEL,
    feed_forward=FeedForward.PLAIN,
)
