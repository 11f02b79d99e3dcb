"""InternLM 2 and 2.5."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="internlm2",
    rope=Rope.NORM,
)
