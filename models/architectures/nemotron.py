"""Nemotron 4 and Minitron: layer norms, squared ReLU without a gate."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Rope

ARCHITECTURE = Architecture(
    name="nemotron",
    rope=Rope.NEOX,
    activation=Activation.RELU_SQUARED,
    norm=Norm.LAYER,
    feed_forward=FeedForward.PLAIN,
)
