"""EXAONE 3 and 3.5: a Llama with rotation by halves."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="exaone",
    rope=Rope.NEOX,
)
