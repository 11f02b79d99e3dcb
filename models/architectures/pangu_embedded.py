"""openPangu-Embedded: a Llama with biases and rotation by halves."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="pangu-embedded",
    rope=Rope.NEOX,
)
