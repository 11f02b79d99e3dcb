"""EXAONE 4: norms after the blocks; the 32B has windows in three of four layers.

Where there are windows, only the layers that have one turn.
"""

from ..architecture import Architecture, Placement, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="exaone4",
    rope=Rope.NEOX,
    placement=Placement.POST,
    qk_norm=QKNorm.HEAD,
    window_pattern=4,
    window_only_rope=True,
)
