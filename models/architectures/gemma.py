"""Gemma 1.

The file's norm weights already include the `1 +` of Gemma's norm.
"""

from ..architecture import Activation, Architecture, Rope

ARCHITECTURE = Architecture(
    name="gemma",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    scale_embedding=True,
)
