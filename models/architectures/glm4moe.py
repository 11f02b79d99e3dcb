"""GLM 4.5 and 4.6: experts by sigmoid beside a shared one, after a few dense layers."""

from ..architecture import Architecture, Gating, QKNorm, Rope

ARCHITECTURE = Architecture(
    name="glm4moe",
    rope=Rope.NEOX,
    qk_norm=QKNorm.HEAD,
    gating=Gating.SIGMOID,
    optional=("attn_q_norm", "attn_k_norm"),
    tensor_names={"ffn_norm": "post_attention_norm"},
)
