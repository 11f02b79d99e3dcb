"""EuroBERT: a Llama as an encoder."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="eurobert",
    rope=Rope.NEOX,
    causal=False,
)
