"""Qwen2-VL and Qwen2.5-VL without their eyes: on text the model is a Qwen2."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="qwen2vl",
    rope=Rope.NEOX,
)
