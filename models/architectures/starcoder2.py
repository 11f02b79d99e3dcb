"""StarCoder 2: layer norms and biases everywhere."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Rope

ARCHITECTURE = Architecture(
    name="starcoder2",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    feed_forward=FeedForward.PLAIN,
)
