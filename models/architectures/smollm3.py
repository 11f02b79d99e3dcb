"""SmolLM3: a Llama whose every fourth layer does not rotate."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="smollm3",
    rope=Rope.NORM,
    no_rope_every=4,
)
