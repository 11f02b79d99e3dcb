"""The vocabulary in which an architecture is declared, and the numbers one model file fills in.

An `Architecture` is data: one forward pass (runtime/forward.py) and one reference
(runtime/kernels/reference.py) walk it; neither knows a model by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Rope(Enum):
    """How a head's rotated pairs lie: neighbours (2i, 2i+1), halves (i, i + n/2), or none."""

    NONE = 0
    NORM = 1
    NEOX = 2


class Activation(Enum):
    """A feed-forward block's non-linearity.

    GELU: its tanh approximation. SWIGLU_OAI: gpt-oss's, min(g, 7) * sigmoid(1.702 min(g, 7)) *
    (clip(u, -7, 7) + 1) of gate g and up u.
    """

    SILU = 0
    GELU = 1
    RELU = 2
    RELU_SQUARED = 3
    SWIGLU_OAI = 4


class Norm(Enum):
    """RMS: x / sqrt(mean(x^2) + eps). LAYER: the same of x - mean(x). Then weight and bias."""

    RMS = 0
    LAYER = 1


class Placement(Enum):
    """Where a block f (attention, feed-forward) has its norms, x being the hidden state.

    PRE: x + f(norm(x)). SANDWICH: x + post(f(norm(x))). POST: x + post(f(x)).
    RESIDUAL: norm(x + f(x)), as in BERT. PARALLEL: x + attention(norm(x)) + ffn(norm(x)), one norm,
    or the feed-forward block's own (of the same x) where the file has an ffn_norm.
    """

    PRE = 0
    SANDWICH = 1
    POST = 2
    RESIDUAL = 3
    PARALLEL = 4


class FeedForward(Enum):
    """GATED: down(act(gate x) * up x). FUSED: the same, ffn_up holding gate's rows, then up's.

    PLAIN: down(act(up x)).
    """

    GATED = 0
    FUSED = 1
    PLAIN = 2


class QKNorm(Enum):
    """A norm of q and k before their rotation, of the architecture's kind.

    HEAD: of each head, one weight for all (head). HEADS: of each head, its own weight
    (heads, head). WHOLE: over all heads at once, weight (heads * head).
    """

    NONE = 0
    HEAD = 1
    HEADS = 2
    WHOLE = 3


class Gating(Enum):
    """From the router's logits to probabilities of experts.

    SOFTMAX over all experts, SIGMOID of each, or SELECTED: softmax over the chosen ones only.
    """

    SOFTMAX = 1
    SIGMOID = 2
    SELECTED = 3


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What is true of every model of one `general.architecture`.

    Biases need no declaration: `X.bias` beside an expected `X.weight` is added wherever a file has
    it. Nor do fused q/k/v (`attn_qkv`): either form is read. models/weights.py settles by the
    tensors that are there what a declaration leaves open (`optional`).
    """

    name: str
    rope: Rope
    activation: Activation = Activation.SILU
    norm: Norm = Norm.RMS
    placement: Placement = Placement.PRE
    feed_forward: FeedForward = FeedForward.GATED
    qk_norm: QKNorm = QKNorm.NONE
    v_norm: bool = False  # RMS norm of each head of v, without a weight
    causal: bool = True  # False: an encoder, whose tokens see the whole text
    scale_embedding: bool = False  # embeddings are multiplied by sqrt(dim)
    position_embedding: bool = False  # position_embd's rows are added to the embeddings
    token_types: bool = False  # token_types' first row is added
    embedding_norm: bool = False  # token_embd_norm follows
    output_norm: bool = True
    alibi: bool = False  # a head's scores fall linearly with the distance
    sinks: bool = False  # attn_sinks: a head's score of nothing, in the softmax's denominator
    latent: bool = False  # multi-head latent attention (DeepSeek V2): see Latent
    window: int = 0  # the sliding window where the file names none; 0: none
    window_pattern: int = 0  # n: of n layers the last sees everything; 0: no sliding layers
    full_first: bool = False  # of n layers the first sees everything, not the last
    window_symmetric: bool = False  # a query sees as far forwards as backwards, half each
    window_rope_base: float | None = None  # the sliding layers' own rope base; None: the same
    window_rope_scaled: bool = True  # False: the sliding layers turn without scaling or factors
    window_only_rope: bool = False  # where there are windows, the layers that see all don't rotate
    no_rope_every: int = 0  # n: every nth layer doesn't rotate (NoPE)
    rope_switch: bool = False  # rope.scaling.finetuned = false means that nothing rotates
    attention_scale: float = 0.0  # factor of q.k; 0: one over the root of a head's size
    width_scaled_layers: int = 0  # a model of so many layers takes dim / heads for a head's size
    attention_softcap: float = 0.0  # where the file names none; likewise:
    final_softcap: float = 0.0
    logit_divisor: bool = False  # the file's logit_scale divides, and does not multiply
    normalize_experts: bool = False  # the chosen experts' probabilities are made to sum to 1
    gating: Gating = Gating.SOFTMAX  # where the file names none
    shared_gate: bool = False  # the shared experts' output is multiplied by a sigmoid of its own
    parallel_experts: bool = False  # Gemma 4: experts beside a dense block, with norms of their own
    per_layer_embedding: bool = False  # Gemma 4's E models: a second embedding, used in each layer
    head_mean: bool = False  # a classifier's head reads the mean, where the file names nothing else
    head_gelu: bool = False  # and has a GELU inside, not a tanh
    head_softmax: bool = False  # its results are made probabilities
    required: tuple[str, ...] = ()  # keys without which a file can't be run
    optional: tuple[str, ...] = ()  # tensors that a file may lack, and what they stand for
    tensor_names: Mapping[str, str] = field(default_factory=dict, hash=False)  # ours -> the file's


@dataclass(frozen=True, eq=False)
class Rotation:
    """How a layer turns its heads: all scaling (linear, YaRN, LongRoPE, Llama 3) is in the numbers.

    frequencies: float64 (n,), radians a position of the n pairs. magnitude: cos and sin are
    multiplied by it. offset: the head's first rotated element. long: what replaces both in
    contexts of more than `original_context` tokens (LongRoPE).
    """

    kind: Rope
    frequencies: NDArray[np.float64]
    magnitude: float = 1.0
    offset: int = 0
    long: "Rotation | None" = None
    original_context: int = 0

    @property
    def dim(self) -> int:
        """How many elements of a head are turned."""
        return 2 * len(self.frequencies)

    def for_context(self, context_length: int) -> "Rotation":
        """The one that applies in a context of so many tokens."""
        long = self.long is not None and context_length > self.original_context
        return self.long if long and self.long else self


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: the numbers of its router and blocks."""

    count: int
    used: int
    ffn_dim: int  # of each
    gating: Gating = Gating.SOFTMAX
    normalize: bool = False
    scale: float = 1.0  # on the chosen ones' probabilities
    groups: int = 1  # of consecutive experts, of which the `groups_used` best may be chosen from
    groups_used: int = 1
    shared_ffn_dim: int = 0  # the dense block that every token passes; 0: none


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values from one vector.

    absorbed: the file has attn_k_b and attn_v_b, so that attention runs on the latent itself, as
    one KV head of kv_rank + rope_dim; otherwise attn_kv_b expands it to keys and values a head.
    """

    q_rank: int  # 0: q comes straight from attn_q
    kv_rank: int
    rope_dim: int
    key_dim: int  # of a head: the part without rotation, then rope_dim
    value_dim: int
    absorbed: bool


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The numbers of one layer. Lengths in elements; a window of 0 sees everything.

    key_dim, value_dim: of a head, as attention and the cache have them (of absorbed latent
    attention: the latent's). cache: the layer whose keys and values are used, its own or an earlier
    one's. experts: whether the feed-forward block is the model's mixture.
    """

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    ffn_dim: int
    cache: int
    rotation: Rotation | None
    attention_scale: float  # factor of q.k
    window: int = 0  # a query at p sees p - window < k <= p (symmetric: |p - k| <= window / 2)
    experts: bool = False


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The numbers of one model file. Lengths are in elements, positions in tokens."""

    dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    layers: tuple[Layer, ...]
    experts: Experts | None = None
    latent: Latent | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # on each block's output
    logit_scale: float = 1.0
    attention_softcap: float = 0.0  # 0: none; c: scores become c * tanh(s / c)
    final_softcap: float = 0.0
    # q is multiplied by 1 + temperature * ln(1 + floor(position / temperature_length)).
    temperature: float = 0.0
    temperature_length: int = 0
    alibi_bias: float = 0.0
    per_layer_dim: int = 0  # of Gemma 4's second embedding, a layer
    num_labels: int = 0  # of a classifier's or reranker's head; 0: no head
    head_pooling: str = ""  # what the head reads: "cls", "last" or "mean"

    def for_context(self, context_length: int) -> "Hyperparameters":
        """The numbers in a context of so many tokens: each rotation the one that applies."""
        chosen = {id(r): r.for_context(context_length) for r in self.rotations}
        layers = tuple(
            layer if layer.rotation is None else replace(layer, rotation=chosen[id(layer.rotation)])
            for layer in self.layers
        )
        return replace(self, layers=layers)

    @property
    def rotations(self) -> tuple[Rotation, ...]:
        """The different rotations; layers that turn alike share one object."""
        found = {id(r): r for layer in self.layers if (r := layer.rotation) is not None}
        return tuple(found.values())

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)
