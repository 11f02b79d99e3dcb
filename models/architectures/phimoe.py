"""Phi-3.5-MoE: experts, biases everywhere; norms as llama.cpp has them, by the root mean square."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="phimoe",
    rope=Rope.NEOX,
    normalize_experts=True,
)
