"""ERNIE 4.5, dense."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="ernie4_5",
    rope=Rope.NORM,
)
