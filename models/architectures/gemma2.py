"""Gemma 2: norms on both sides of each block, soft caps, a window in every other layer."""

from ..architecture import Activation, Architecture, Placement, Rope

ARCHITECTURE = Architecture(
    name="gemma2",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    placement=Placement.SANDWICH,
    scale_embedding=True,
    window=4096,
    window_pattern=2,
    width_scaled_layers=46,
    attention_softcap=50.0,
    final_softcap=30.0,
)
