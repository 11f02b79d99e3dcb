"""MPT: scores that fall with the distance (ALiBi), layer norms without biases."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Rope

ARCHITECTURE = Architecture(
    name="mpt",
    rope=Rope.NONE,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    feed_forward=FeedForward.PLAIN,
    alibi=True,
    required=("attention.max_alibi_bias",),
)
