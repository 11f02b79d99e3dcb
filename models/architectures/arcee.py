"""Arcee AFM: a Llama with a squared ReLU and no gate."""

from ..architecture import Activation, Architecture, FeedForward, Rope

ARCHITECTURE = Architecture(
    name="arcee",
    rope=Rope.NORM,
    activation=Activation.RELU_SQUARED,
    feed_forward=FeedForward.PLAIN,
)
