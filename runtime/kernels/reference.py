"""What a forward pass means, in plain NumPy: the oracle of every fast path, and slow.

Arrays are (tokens, ...) throughout. Weights are decoded layer by layer, in slices of rows, unless
`keep` is set; nothing but the decoded slice, the activations and the KV lists takes memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...models.architecture import Activation, Placement, QKNorm, Rope, Rotation
from ...models.gguf_types import TensorInfo
from ...models.weights import Weights
from ...quant import format_of

SLICE_ELEMENTS = 1 << 22  # of a matrix decoded at a time

Trace = Callable[[str, NDArray], None]


@dataclass
class State:
    """One sequence's keys and values: a pair of (positions, num_kv_heads, head_dim) a layer."""

    keys: list[NDArray] = field(default_factory=list)
    values: list[NDArray] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Positions held."""
        return len(self.keys[0]) if self.keys else 0


class Reference:
    """Runs a model's forward pass in `dtype`.

    kv_float16 rounds keys and values through float16, as the page cache does. keep holds decoded
    weights in memory: for small models, or many short runs. trace is called with
    (name, activations) at every stage, for comparing a fast path stage by stage.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        dtype: type[np.floating] | str = np.float64,
        kv_float16: bool = False,
        keep: bool = False,
        trace: Trace | None = None,
    ) -> None:
        self.weights = weights
        self.dtype: np.dtype[np.floating] = np.dtype(dtype)
        self.kv_float16 = kv_float16
        self._kept: dict[str, NDArray] | None = {} if keep else None
        self._trace = trace or (lambda name, x: None)

    def run(
        self,
        token_ids: Sequence[int] | NDArray[np.integer],
        state: State | None = None,
        *,
        num_logits: int | None = None,
    ) -> NDArray:
        """Run tokens after those in `state`, which grows by them.

        Returns `dtype` (num_logits, vocab_size): the logits of the last `num_logits` tokens, of
        all by default. IndexError when a token is not in the vocabulary.
        """
        numbers, architecture = self.weights.hyperparameters, self.weights.architecture
        state = State() if state is None else state
        if not state.keys:
            empty = np.empty(
                (0, numbers.layers[0].num_kv_heads, numbers.layers[0].key_dim), self.dtype
            )
            state.keys, state.values = [[empty] * numbers.num_layers for _ in range(2)]
        positions = np.arange(state.length, state.length + len(token_ids))
        x = self._embed(np.asarray(token_ids, np.int64)) * numbers.embedding_scale
        self._trace("embedding", x)
        for layer in range(numbers.num_layers):
            name = f"blk.{layer}."
            y = self._attention_block(self._norm(x, name + "attn_norm"), layer, positions, state)
            x = x + (
                self._norm(y, name + "post_attention_norm")
                if architecture.placement is Placement.SANDWICH
                else y
            )
            self._trace(name + "attention_out", x)
            y = self._ffn(self._norm(x, name + "ffn_norm"), name)
            x = x + (
                self._norm(y, name + "post_ffw_norm")
                if architecture.placement is Placement.SANDWICH
                else y
            )
            self._trace(name + "out", x)
        first = 0 if num_logits is None else len(x) - num_logits
        logits = self._linear(self._norm(x[first:], "output_norm"), self.weights.output)
        return soft_cap(logits, numbers.final_softcap)

    def _embed(self, token_ids: NDArray[np.int64]) -> NDArray:
        info = self.weights.tensor("token_embd.weight")
        rows = info.data.reshape(info.shape[0], -1)[token_ids]
        shape = (len(token_ids), info.shape[1])
        return format_of(info.type_id).dequantize(rows, shape).astype(self.dtype)

    def _norm(self, x: NDArray, name: str) -> NDArray:
        weight = self.weights.f32(name + ".weight").astype(self.dtype)
        return rms_norm(x, weight, self.weights.hyperparameters.norm_eps)

    def _linear(self, x: NDArray, info: TensorInfo, bias: str | None = None) -> NDArray:
        """x (tokens, columns) times a matrix (rows, columns), plus a bias -> (tokens, rows)."""
        rows, columns = info.shape
        out: NDArray = np.empty((len(x), rows), self.dtype)
        step = max(1, SLICE_ELEMENTS // columns)
        for at in range(0, rows, step):
            out[:, at : at + step] = x @ self._rows(info, at, min(at + step, rows)).T
        return out if bias is None else out + self.weights.f32(bias).astype(self.dtype)

    def _rows(self, info: TensorInfo, start: int, stop: int) -> NDArray:
        """Decode the rows start..stop of a matrix."""
        key = f"{info.name}:{start}"
        if self._kept is not None and key in self._kept:
            return self._kept[key]
        data = info.data.reshape(info.shape[0], -1)[start:stop]
        decoded = format_of(info.type_id).dequantize(data, (stop - start, info.shape[1]))
        decoded = decoded.astype(self.dtype, copy=False)
        if self._kept is not None:
            self._kept[key] = decoded
        return decoded

    def _attention_block(
        self, x: NDArray, layer: int, positions: NDArray[np.int64], state: State
    ) -> NDArray:
        """From the normed input to the projected output; adds this step's K and V to the state."""
        numbers, architecture = self.weights.hyperparameters, self.weights.architecture
        name, layers = f"blk.{layer}.", numbers.layers[layer]

        def project(which: str, heads: int) -> NDArray:
            bias = f"{name}attn_{which}.bias"
            bias = bias if self.weights.optional(bias) else None
            y = self._linear(x, self.weights.tensor(f"{name}attn_{which}.weight"), bias)
            return y.reshape(len(x), heads, layers.key_dim)

        q = project("q", layers.num_heads)
        k = project("k", layers.num_kv_heads)
        v = project("v", layers.num_kv_heads)
        if architecture.qk_norm is QKNorm.HEAD:
            q, k = self._norm(q, name + "attn_q_norm"), self._norm(k, name + "attn_k_norm")
        if layers.rotation is not None:
            q, k = (rotate(y, layers.rotation, positions) for y in (q, k))
        if self.kv_float16:
            k, v = (y.astype(np.float16).astype(self.dtype) for y in (k, v))
        self._trace(name + "q", q)
        state.keys[layer] = np.concatenate([state.keys[layer], k])
        state.values[layer] = np.concatenate([state.values[layer], v])
        y = attention(
            q,
            state.keys[layer],
            state.values[layer],
            scale=layers.attention_scale,
            window=layers.window,
            softcap=numbers.attention_softcap,
        )
        self._trace(name + "attention", y)
        return self._linear(y.reshape(len(x), -1), self.weights.tensor(name + "attn_output.weight"))

    def _ffn(self, x: NDArray, name: str) -> NDArray:
        gate = self._linear(x, self.weights.tensor(name + "ffn_gate.weight"))
        up = self._linear(x, self.weights.tensor(name + "ffn_up.weight"))
        act = silu if self.weights.architecture.activation is Activation.SILU else gelu
        return self._linear(act(gate) * up, self.weights.tensor(name + "ffn_down.weight"))


def rms_norm(x: NDArray, weight: NDArray, eps: float) -> NDArray:
    """Scale the last axis to a root mean square of 1, then by `weight`; dtype of x."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean + x.dtype.type(eps)) * weight


def rotate(x: NDArray, rotation: Rotation, positions: NDArray[np.int64]) -> NDArray:
    """Turn pairs of each head's elements; (tokens, heads, head_dim).

    NORM pairs neighbours, NEOX the halves of the rotated part; the rest of a head stays.
    """
    angles = positions[:, None] * rotation.frequencies
    half, at = angles.shape[1], rotation.offset
    cos, sin = (
        (f(angles) * rotation.magnitude)[:, None, :].astype(x.dtype) for f in (np.cos, np.sin)
    )
    if rotation.kind is Rope.NORM:
        first, second = slice(at, at + 2 * half, 2), slice(at + 1, at + 2 * half, 2)
    else:
        first, second = slice(at, at + half), slice(at + half, at + 2 * half)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attention(
    q: NDArray, k: NDArray, v: NDArray, *, scale: float, window: int = 0, softcap: float = 0.0
) -> NDArray:
    """Causal attention of the last positions' queries.

    q (tokens, num_heads, head_dim); k and v (positions, num_kv_heads, head_dim), whose last
    `tokens` positions are the queries' own. Returns the shape and dtype of q. Consecutive query
    heads share a key/value head. window: 0, or how many positions a query sees, itself included.
    """
    tokens, num_heads, head_dim = q.shape
    positions, num_kv_heads, _ = k.shape
    grouped = q.reshape(tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = np.einsum("thgd,phd->htgp", grouped, k, optimize=True) * q.dtype.type(scale)
    scores = soft_cap(scores, softcap)
    at = np.arange(positions - tokens, positions)[:, None]
    seen = np.arange(positions) <= at
    if window:
        seen &= np.arange(positions) > at - window
    scores = np.where(seen[None, :, None, :], scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.einsum("htgp,phd->thgd", scores, v, optimize=True).reshape(q.shape)


def soft_cap(x: NDArray, cap: float) -> NDArray:
    """Bend x into (-cap, cap) by cap * tanh(x / cap); 0 leaves it."""
    return x if not cap else cap * np.tanh(x / cap)


def silu(x: NDArray) -> NDArray:
    """x * sigmoid(x), without overflow for large negative x."""
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))


def gelu(x: NDArray) -> NDArray:
    """GELU in its tanh approximation."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)))


def log_softmax(logits: NDArray) -> NDArray:
    """Log-probabilities over the last axis; dtype of logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
