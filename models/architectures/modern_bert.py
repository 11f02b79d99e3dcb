"""ModernBERT: an encoder with rotation, and windows to both sides in two of three layers."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Rope

ARCHITECTURE = Architecture(
    name="modern-bert",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    feed_forward=FeedForward.FUSED,
    causal=False,
    embedding_norm=True,
    window_pattern=3,
    full_first=True,
    window_symmetric=True,
    window_rope_base=10000.0,
    window_rope_scaled=False,
    head_mean=True,
    head_gelu=True,
    optional=("attn_norm",),
)
