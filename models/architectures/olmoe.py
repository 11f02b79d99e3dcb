"""OLMoE: experts, and a norm over all heads of q and of k."""

from ..architecture import Architecture, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="olmoe",
    rope=Rope.NEOX,
    qk_norm=QKNorm.WHOLE,
)
