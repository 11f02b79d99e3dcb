"""XVERSE."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="xverse",
    rope=Rope.NORM,
)
