"""DeepSeek V2, V3, R1, Kimi K2, GLM 4.7 Flash: latent attention, experts beside a shared one.

Old files hold attn_kv_b, newer ones its two halves (attn_k_b, attn_v_b): see Latent.
"""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="deepseek2",
    rope=Rope.NORM,
    latent=True,
)
