"""MiniCPM 1 and 2: a Llama whose embeddings, blocks and logits are scaled."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="minicpm",
    rope=Rope.NORM,
    logit_divisor=True,
    required=("embedding_scale", "residual_scale", "logit_scale"),
)
