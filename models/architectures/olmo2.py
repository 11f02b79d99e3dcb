"""OLMo 2 and 3: norms after the blocks, and one over all heads of q and of k.

OLMo 3 has windows in three of four layers, which turn without YaRN.
"""

from ..architecture import Architecture, Placement, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="olmo2",
    rope=Rope.NEOX,
    placement=Placement.POST,
    qk_norm=QKNorm.WHOLE,
    window_pattern=4,
    window_rope_scaled=False,
)
