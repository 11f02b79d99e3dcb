"""Jina Embeddings 2: BERT's blocks with a gate, and scores that fall with the distance (ALiBi).

In the code model a second norm stands around attention and its input.
"""

from ..architecture import Activation, Architecture, Norm, Placement, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="jina-bert-v2",
    rope=Rope.NONE,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    placement=Placement.RESIDUAL,
    qk_norm=QKNorm.WHOLE,
    causal=False,
    token_types=True,
    embedding_norm=True,
    output_norm=False,
    alibi=True,
    optional=("ffn_gate", "attn_q_norm", "attn_k_norm", "attn_norm_2"),
    tensor_names={"attn_norm": "attn_output_norm", "ffn_norm": "layer_output_norm"},
)
