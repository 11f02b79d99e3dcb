"""Nomic Embed: BERT's blocks with rotation and a gate."""

from ..architecture import Architecture, Norm, Placement, Rope

ARCHITECTURE = Architecture(
    name="nomic-bert",
    rope=Rope.NEOX,
    norm=Norm.LAYER,
    placement=Placement.RESIDUAL,
    causal=False,
    token_types=True,
    embedding_norm=True,
    output_norm=False,
    optional=("token_types",),
    tensor_names={"attn_norm": "attn_output_norm", "ffn_norm": "layer_output_norm"},
)
