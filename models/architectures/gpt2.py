"""GPT-2: learned positions, layer norms and biases everywhere."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Rope

ARCHITECTURE = Architecture(
    name="gpt2",
    rope=Rope.NONE,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    feed_forward=FeedForward.PLAIN,
    position_embedding=True,
)
