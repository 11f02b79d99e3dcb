"""gpt-oss: experts with an activation of their own, sinks, a window in every other layer, YaRN."""

from ..architecture import Activation, Architecture, Gating, Rope

ARCHITECTURE = Architecture(
    name="gpt-oss",
    rope=Rope.NEOX,
    activation=Activation.SWIGLU_OAI,
    sinks=True,
    window_pattern=2,
    gating=Gating.SELECTED,
    required=("attention.sliding_window",),
    tensor_names={"ffn_norm": "post_attention_norm"},
)
