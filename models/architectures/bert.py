"""BERT and its kin (MiniLM, BGE, E5): an encoder with norms after each sum, learned positions."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Placement, Rope

ARCHITECTURE = Architecture(
    name="bert",
    rope=Rope.NONE,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    placement=Placement.RESIDUAL,
    feed_forward=FeedForward.PLAIN,
    causal=False,
    position_embedding=True,
    token_types=True,
    embedding_norm=True,
    output_norm=False,
    optional=("token_types",),
    tensor_names={"attn_norm": "attn_output_norm", "ffn_norm": "layer_output_norm"},
)
