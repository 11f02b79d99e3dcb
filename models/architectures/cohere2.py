"""Command R7B and A: windows in three of four layers, the only ones that turn."""

from ..architecture import Architecture, Norm, Placement, Rope

ARCHITECTURE = Architecture(
    name="cohere2",
    rope=Rope.NORM,
    norm=Norm.LAYER,
    placement=Placement.PARALLEL,
    window_pattern=4,
    window_only_rope=True,
    required=("attention.sliding_window", "logit_scale"),
)
