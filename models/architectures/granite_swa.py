"""Granite 4.1 with windows and sinks (dense)."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="granite_swa",
    rope=Rope.NORM,
    sinks=True,
    window_pattern=2,
    logit_divisor=True,
    required=("logit_scale", "attention.sliding_window", "attention.sliding_window_pattern"),
)
