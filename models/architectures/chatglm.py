"""ChatGLM 3 and GLM 4 (9B of 2024): gate and up in one matrix, half of a head turned."""

from ..architecture import Architecture, FeedForward, Rope

ARCHITECTURE = Architecture(
    name="chatglm",
    rope=Rope.NORM,
    feed_forward=FeedForward.FUSED,
)
