"""DeepSeek MoE 16B, the first: experts beside shared ones."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="deepseek",
    rope=Rope.NORM,
)
