"""Phi-1.5 and Phi-2: both blocks read the same norm of x, biases everywhere."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Placement, Rope

ARCHITECTURE = Architecture(
    name="phi2",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    placement=Placement.PARALLEL,
    feed_forward=FeedForward.PLAIN,
)
