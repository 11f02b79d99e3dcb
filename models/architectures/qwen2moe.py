"""Qwen1.5-MoE and Qwen2-57B-A14B: experts beside a shared one, which has a gate of its own."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="qwen2moe",
    rope=Rope.NEOX,
    shared_gate=True,
)
