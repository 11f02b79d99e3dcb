"""Llama 1 to 3, and what was trained in its shape: SmolLM2, Mistral, Mixtral, Yi and many more.

Converted files store the rows of q and k permuted, so that the rotated pairs are neighbours.
Llama 3.1 and later bring their own frequency factors (`rope_freqs.weight`). Some derivatives have
biases on q, k and v.
"""

from ..architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    name="llama",
    rope=Rope.NORM,
    normalize_experts=True,
)
