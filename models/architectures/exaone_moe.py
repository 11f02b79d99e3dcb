"""K-EXAONE: experts by sigmoid; windows in three of four layers, the only ones that turn."""

from ..architecture import Architecture, Gating, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="exaone-moe",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    window_pattern=4,
    window_only_rope=True,
    gating=Gating.SIGMOID,
    required=("attention.sliding_window",),
)
