"""StarCoder and SantaCoder: learned positions, one key/value head."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Rope

ARCHITECTURE = Architecture(
    name="starcoder",
    rope=Rope.NONE,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    feed_forward=FeedForward.PLAIN,
    position_embedding=True,
)
