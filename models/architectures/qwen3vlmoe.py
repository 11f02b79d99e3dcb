"""Qwen3-VL with experts, without its eyes: on text the model is a Qwen3-MoE."""

from ..architecture import Architecture, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="qwen3vlmoe",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    normalize_experts=True,
)
