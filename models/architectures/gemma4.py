"""Gemma 4: the dense models, the E models with a second embedding, and the mixture of experts.

Layers that see everything have larger heads and no attn_v: their values are the unrotated keys. The
last layers of the E models read the keys and values of earlier ones. The mixture's experts stand
beside a dense block.
"""

from ..architecture import Activation, Architecture, Placement, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="gemma4",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    qk_norm=QKNorm.HEAD,
    v_norm=True,
    placement=Placement.SANDWICH,
    scale_embedding=True,
    attention_scale=1.0,
    window_pattern=6,
    window_rope_base=10000.0,
    window_rope_scaled=False,
    final_softcap=30.0,
    normalize_experts=True,
    parallel_experts=True,
    per_layer_embedding=True,
    required=("attention.sliding_window", "attention.sliding_window_pattern"),
    optional=("attn_v", "layer_output_scale"),
)
