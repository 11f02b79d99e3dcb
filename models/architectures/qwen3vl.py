"""Qwen3-VL without its eyes: on text the model is a Qwen3."""

from ..architecture import Architecture, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="qwen3vl",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    head_softmax=True,
)
