"""MiniMax M2: experts by sigmoid, a norm over all heads of q and of k, half of a head turned."""

from ..architecture import Architecture, Gating, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="minimax-m2",
    rope=Rope.NEOX,
    qk_norm=QKNorm.WHOLE,
    gating=Gating.SIGMOID,
    normalize_experts=True,
)
