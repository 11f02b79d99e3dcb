"""Gemma 3 (text): norms on both sides of each block, of each six layers five with a window.

The file's norm weights already include the `1 +` of Gemma's norm.
"""

from ..architecture import Activation, Architecture, Placement, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="gemma3",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    qk_norm=QKNorm.HEAD,
    placement=Placement.SANDWICH,
    scale_embedding=True,
    window_pattern=6,
    window_rope_base=10000.0,
)
