"""Qwen2 and Qwen2.5: biases on q, k and v, rotation by halves."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="qwen2",
    rope=Rope.NEOX,
)
