"""Mistral 3 (Ministral, Devstral 2): YaRN, and sharper scores far into the context."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="mistral3",
    rope=Rope.NORM,
    normalize_experts=True,
)
