"""EmbeddingGemma: Gemma 3's blocks as an encoder, windows to both sides."""

from ..architecture import Activation, Architecture, Placement, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="gemma-embedding",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    qk_norm=QKNorm.HEAD,
    placement=Placement.SANDWICH,
    causal=False,
    scale_embedding=True,
    window_pattern=6,
    window_symmetric=True,
    window_rope_base=10000.0,
    window_rope_scaled=False,
    required=("attention.sliding_window",),
)
