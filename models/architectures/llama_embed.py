"""Llamas that were made encoders (Llama-Embed-Nemotron)."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="llama-embed",
    rope=Rope.NORM,
    causal=False,
)
