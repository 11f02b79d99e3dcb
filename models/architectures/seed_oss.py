"""Seed-OSS: a Llama with biases and rotation by halves."""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="seed_oss",
    rope=Rope.NEOX,
    tensor_names={"ffn_norm": "post_attention_norm"},
)
