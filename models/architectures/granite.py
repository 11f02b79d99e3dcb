"""Granite 3 and 4 (dense): a Llama whose embeddings, scores, blocks and logits are scaled."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="granite",
    rope=Rope.NORM,
    normalize_experts=True,
    rope_switch=True,
    logit_divisor=True,
    required=("logit_scale",),
)
