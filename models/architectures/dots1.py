"""dots.llm1: experts by sigmoid beside a shared one, a norm on each head of q and k."""

from ..architecture import Architecture, Gating, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="dots1",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    gating=Gating.SIGMOID,
)
