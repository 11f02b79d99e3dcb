"""Orion: a Llama with layer norms."""

from ..architecture import Architecture, Norm, Rope

ARCHITECTURE = Architecture(
    name="orion",
    rope=Rope.NEOX,
    norm=Norm.LAYER,
)
