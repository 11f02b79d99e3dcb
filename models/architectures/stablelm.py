"""StableLM 1.6B, 3B, 12B: layer norms, a part of each head turned.

The 12B has no ffn_norm, its blocks are parallel, and its heads have norms of their own.
"""

from ..architecture import Architecture, Norm, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="stablelm",
    rope=Rope.NEOX,
    norm=Norm.LAYER,
    qk_norm=QKNorm.HEADS,
    optional=("ffn_norm", "attn_q_norm", "attn_k_norm"),
)
