"""ERNIE 4.5 with experts, and perhaps a shared one."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="ernie4_5-moe",
    rope=Rope.NORM,
    normalize_experts=True,
)
