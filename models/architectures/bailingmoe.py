"""Ling 1 (BailingMoE): experts beside shared ones."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="bailingmoe",
    rope=Rope.NORM,
)
