"""BLOOM: scores that fall with the distance (ALiBi), and a norm of the embeddings."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Rope

ARCHITECTURE = Architecture(
    name="bloom",
    rope=Rope.NONE,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    feed_forward=FeedForward.PLAIN,
    embedding_norm=True,
    alibi=True,
)
