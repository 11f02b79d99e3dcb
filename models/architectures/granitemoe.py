"""Granite with experts, and perhaps a shared one."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="granitemoe",
    rope=Rope.NORM,
    normalize_experts=True,
    logit_divisor=True,
    required=("logit_scale",),
)
