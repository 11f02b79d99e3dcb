"""Phi-3, Phi-3.5 and Phi-4: q, k, v and gate, up lie in one matrix each; long contexts by LongRoPE.

The window that some files name is not used, as in llama.cpp.
"""

from ..architecture import Architecture, FeedForward, Rope

ARCHITECTURE = Architecture(
    name="phi3",
    rope=Rope.NEOX,
    feed_forward=FeedForward.FUSED,
)
