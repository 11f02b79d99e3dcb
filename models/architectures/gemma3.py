"""Gemma 3 (text): norms on both sides of each block, of each six layers five with a window.

The file's norm weights already include the `1 +` of Gemma's norm. The 27B, known by its 62 layers,
scales its scores by its width.
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
    window_rope_scaled=False,
    width_scaled_layers=62,
)
