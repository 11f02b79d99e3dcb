"""What a forward pass means, in plain NumPy: the oracle of every fast path, and slow.

Arrays are (tokens, ...) throughout. Weights are decoded layer by layer, in slices of rows, unless
`keep` is set; nothing but the decoded slice, the activations and the KV lists takes memory.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...models.architecture import Placement
from ...models.weights import Weights
from .reference_attention import ReferenceAttention, State, attention
from .reference_experts import ReferenceFeedForward
from .reference_math import (
    Function,
    gelu,
    layer_norm,
    log_softmax,
    rms_norm,
    rotate,
    silu,
    soft_cap,
    softmax,
)
from .reference_matrices import Matrices

__all__ = [
    "Reference",
    "State",
    "attention",
    "gelu",
    "log_softmax",
    "rms_norm",
    "rotate",
    "silu",
    "soft_cap",
]

Ids = Sequence[int] | NDArray[np.integer]
Trace = Callable[[str, NDArray], None]


class Reference:
    """Runs a model's forward pass in `dtype`.

    kv_float16 rounds keys and values through float16, as the page cache does. keep holds decoded
    weights in memory: for small models, or many short runs. trace is called with
    (name, activations) at every stage, for comparing a fast path stage by stage. gelu_function: in
    place of the exact one, as other runtimes look theirs up in coarse tables.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        dtype: type[np.floating] | str = np.float64,
        kv_float16: bool = False,
        keep: bool = False,
        trace: Trace | None = None,
        gelu_function: Function | None = None,
    ) -> None:
        self.weights = weights
        self.dtype: np.dtype[np.floating] = np.dtype(dtype)
        self._matrices = Matrices(weights, self.dtype, keep=keep)
        self._attention = ReferenceAttention(self._matrices, kv_float16=kv_float16)
        self._gelu = gelu_function or gelu
        self._feed_forward = ReferenceFeedForward(self._matrices, self._gelu)
        self._trace = trace or (lambda name, x: None)

    def run(
        self, token_ids: Ids, state: State | None = None, *, num_logits: int | None = None
    ) -> NDArray:
        """Run tokens after those in `state`, which grows by them.

        Returns `dtype` (num_logits, vocab_size): the logits of the last `num_logits` tokens, of
        all by default. IndexError when a token is not in the vocabulary.
        """
        numbers, matrices = self.weights.hyperparameters, self._matrices
        x = self._layers(token_ids, State() if state is None else state)
        x = self._output_norm(x[0 if num_logits is None else len(x) - num_logits :])
        logits = matrices.apply(x, self.weights.output)
        if self.weights.optional("output.bias") is not None:
            logits = logits + matrices.array("output.bias")
        return soft_cap(logits * self.dtype.type(numbers.logit_scale), numbers.final_softcap)

    def encode(self, token_ids: Ids) -> NDArray:
        """Run a whole text; (tokens, dim): each token's hidden state after the output norm."""
        return self._output_norm(self._layers(token_ids, State()))

    def score(self, hidden: NDArray) -> NDArray:
        """Run a classifier's or reranker's head on a text's hidden states; (num_labels)."""
        numbers, architecture = self.weights.hyperparameters, self.weights.architecture
        matrices, has = self._matrices, self.weights.optional
        x = {"cls": hidden[:1], "last": hidden[-1:], "mean": hidden.mean(axis=0, keepdims=True)}[
            numbers.head_pooling
        ]
        for name in ("cls", "cls.output"):
            if has(f"{name}.weight") is None:
                continue
            x = matrices.apply(x, self.weights.tensor(f"{name}.weight"))
            x = x + matrices.array(f"{name}.bias") if has(f"{name}.bias") is not None else x
            if name == "cls":
                x = self._gelu(x) if architecture.head_gelu else np.tanh(x)
                if has("cls.norm.weight") is not None:
                    x = layer_norm(x, matrices.array("cls.norm.weight"), numbers.norm_eps)
        return (softmax(x) if architecture.head_softmax else x)[0]

    def finish_embedding(self, pooled: NDArray) -> NDArray:
        """Apply the layers that some embedding models have on top of the pooled vector, (dim)."""
        x = np.atleast_2d(pooled)
        for name in ("dense_2.weight", "dense_3.weight"):
            if (info := self.weights.optional(name)) is not None:
                x = self._matrices.apply(x, info)
        return x.reshape(*pooled.shape[:-1], -1)

    def _layers(self, token_ids: Ids, state: State) -> NDArray:
        """From tokens to the last layer's output."""
        numbers = self.weights.hyperparameters
        ids = np.asarray(token_ids, np.int64)
        state.prepare(numbers, self.dtype)
        positions = np.arange(state.length, state.length + len(ids))
        x = self._embed(ids, positions)
        extra = self._per_layer_inputs(ids, x) if numbers.per_layer_dim else None
        self._trace("embedding", x)
        for layer in range(numbers.num_layers):
            x = self._block(x, layer, positions, state)
            if extra is not None:
                x = self._add_per_layer_input(x, layer, extra[:, layer])
            if self.weights.layer_optional(layer, "layer_output_scale") is not None:
                x = x * self._matrices.array(self.weights.name(layer, "layer_output_scale"))
            self._trace(f"blk.{layer}.out", x)
        state.length += len(ids)
        return x

    def _embed(self, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray:
        architecture, matrices = self.weights.architecture, self._matrices
        x = matrices.rows("token_embd.weight", ids)
        x = x * self.dtype.type(self.weights.hyperparameters.embedding_scale)
        if architecture.position_embedding:
            x = x + matrices.rows("position_embd.weight", positions)
        if architecture.token_types:
            x = x + matrices.rows("token_types.weight", np.zeros(1, np.int64))
        return matrices.norm(x, "token_embd_norm") if architecture.embedding_norm else x

    def _output_norm(self, x: NDArray) -> NDArray:
        return self._matrices.norm(x, "output_norm") if self.weights.architecture.output_norm else x

    def _block(self, x: NDArray, layer: int, positions: NDArray[np.int64], state: State) -> NDArray:
        """One layer: attention and feed-forward block with their norms and sums."""
        norm, placement = self._matrices.layer_norm, self.weights.architecture.placement
        scale = self.dtype.type(self.weights.hyperparameters.residual_scale)

        def attend(y: NDArray) -> NDArray:
            q = self._attention.heads(y, layer, positions, state)
            self._trace(f"blk.{layer}.q", q)
            means = self._attention.attend(q, layer, state)
            self._trace(f"blk.{layer}.attention", means)
            return self._attention.project(means, layer) * scale

        def feed(y: NDArray, hidden: NDArray) -> NDArray:
            return self._feed_forward.block(y, layer, hidden) * scale

        def before(y: NDArray, tensor: str) -> NDArray:  # some first layers have no norm
            present = self.weights.layer_optional(layer, tensor) is not None
            return norm(y, layer, tensor) if present else y

        match placement:
            case Placement.PRE:
                x = x + attend(before(x, "attn_norm"))
                self._trace(f"blk.{layer}.attention_out", x)
                return x + feed(norm(x, layer, "ffn_norm"), x)
            case Placement.SANDWICH:
                y = attend(norm(x, layer, "attn_norm"))
                x = x + norm(y, layer, "post_attention_norm")
                self._trace(f"blk.{layer}.attention_out", x)
                return x + norm(feed(norm(x, layer, "ffn_norm"), x), layer, "post_ffw_norm")
            case Placement.POST:
                x = x + norm(attend(x), layer, "post_attention_norm")
                self._trace(f"blk.{layer}.attention_out", x)
                return x + norm(feed(x, x), layer, "post_ffw_norm")
            case Placement.RESIDUAL:
                y = norm(x + attend(x), layer, "attn_norm")
                twice = self.weights.layer_optional(layer, "attn_norm_2") is not None
                x = norm(x + y, layer, "attn_norm_2") if twice else y
                self._trace(f"blk.{layer}.attention_out", x)
                return norm(x + feed(x, x), layer, "ffn_norm")
            case Placement.PARALLEL:
                y = norm(x, layer, "attn_norm")
                own = self.weights.layer_optional(layer, "ffn_norm") is not None
                z = norm(x, layer, "ffn_norm") if own else y
                return x + attend(y) + feed(z, x)

    def _per_layer_inputs(self, ids: NDArray[np.int64], x: NDArray) -> NDArray:
        """What each layer of Gemma 4's E models adds, (tokens, layers, per_layer_dim)."""
        numbers, matrices = self.weights.hyperparameters, self._matrices
        shape = (len(ids), numbers.num_layers, numbers.per_layer_dim)
        own = matrices.rows("per_layer_token_embd.weight", ids).reshape(shape)
        projected = matrices.apply(x, self.weights.tensor("per_layer_model_proj.weight"))
        projected = projected.reshape(shape) / np.sqrt(self.dtype.type(numbers.dim))
        projected = matrices.norm(projected, "per_layer_proj_norm")
        root = np.sqrt(self.dtype.type(numbers.per_layer_dim))
        return (projected + own * root) / np.sqrt(self.dtype.type(2))

    def _add_per_layer_input(self, x: NDArray, layer: int, extra: NDArray) -> NDArray:
        matrices = self._matrices
        gate = self._gelu(matrices.layer(x, layer, "inp_gate"))
        y = matrices.layer(gate * extra, layer, "proj")
        return x + matrices.layer_norm(y, layer, "post_norm")
