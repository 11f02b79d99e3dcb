"""The vocabulary in which an architecture is declared, and the numbers one model file fills in.

An `Architecture` is data: one forward pass (runtime/forward.py) and one reference
(runtime/kernels/reference.py) walk it; neither knows a model by name.
"""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Rope(Enum):
    """How a head's rotated pairs lie: neighbours (2i, 2i+1), halves (i, i + n/2), or none."""

    NONE = 0
    NORM = 1
    NEOX = 2


class Activation(Enum):
    """The gate's non-linearity: SiLU, or GELU in its tanh approximation."""

    SILU = 0
    GELU = 1


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What is true of every model of one `general.architecture`."""

    name: str
    rope: Rope
    activation: Activation = Activation.SILU
    qkv_bias: bool = False  # attn_{q,k,v}.bias are there and added
    qk_norm: bool = False  # RMS norm of each head of q and k, before the rotation
    post_norms: bool = False  # RMS norm of a block's output before the residual addition
    scale_embedding: bool = False  # embeddings are multiplied by sqrt(dim)
    window_pattern: int = 0  # 0: no sliding window; n: of n layers the last one sees everything
    window_rope_base: float | None = None  # the sliding layers' own rope base


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The numbers of one model file. Lengths are in elements, positions in tokens."""

    num_layers: int
    dim: int
    ffn_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_dim: int
    rope_base: float
    rope_scale: float = 1.0  # positions are divided by it (linear scaling), full layers only
    rope_factors: NDArray[np.float32] | None = field(default=None, compare=False)  # (rope_dim/2,)
    window: int = 0  # 0: none; otherwise a query sees the positions p - window < k <= p
    attention_scale: float = 0.0  # factor of q.k
    attention_softcap: float = 0.0  # 0: none; c: scores become c * tanh(s / c)
    final_softcap: float = 0.0
    embedding_scale: float = 1.0
    window_pattern: int = 0
    window_rope_base: float = 10000.0

    def layer_window(self, layer: int) -> int:
        """The sliding window of a layer, 0 when it sees everything."""
        if not self.window or not self.window_pattern:
            return 0
        return 0 if (layer + 1) % self.window_pattern == 0 else self.window

    def layer_rope(self, layer: int) -> tuple[float, float]:
        """(base, position scale) of a layer's rotation; sliding layers have a base of their own."""
        if self.layer_window(layer):
            return self.window_rope_base, 1.0
        return self.rope_base, self.rope_scale
