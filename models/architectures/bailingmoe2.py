"""Ling 2 and Ring 2: experts by sigmoid in groups beside a shared one, after dense layers."""

from ..architecture import Architecture, Gating, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="bailingmoe2",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    gating=Gating.SIGMOID,
)
