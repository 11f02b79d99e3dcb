"""Qwen3, its embedding models and rerankers: a norm on each head of q and k."""

from ..architecture import Architecture, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="qwen3",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    head_softmax=True,
)
