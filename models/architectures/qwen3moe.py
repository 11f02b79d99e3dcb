"""Qwen3 with experts (30B-A3B, 235B-A22B): the chosen probabilities are made to sum to 1."""

from ..architecture import Architecture, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="qwen3moe",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    normalize_experts=True,
)
