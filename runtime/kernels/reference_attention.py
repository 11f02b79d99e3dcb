"""Attention of the reference: projections, norms, rotation, latent attention, scores."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...models.architecture import Hyperparameters, Latent, QKNorm
from .reference_math import rms_norm, rotate, soft_cap
from .reference_matrices import Matrices


@dataclass
class State:
    """One sequence's keys and values: a pair of (positions, num_kv_heads, elements) a layer.

    Layers that use another one's stay empty.
    """

    keys: list[NDArray] = field(default_factory=list)
    values: list[NDArray] = field(default_factory=list)
    length: int = 0  # positions held

    def prepare(self, numbers: Hyperparameters, dtype: np.dtype[np.floating]) -> None:
        """Make room for a model's layers, once."""
        for layer in numbers.layers if not self.keys else ():
            self.keys.append(np.empty((0, layer.num_kv_heads, layer.key_dim), dtype))
            self.values.append(np.empty((0, layer.num_kv_heads, layer.value_dim), dtype))

    def add(self, layer: int, keys: NDArray, values: NDArray) -> None:
        """Append the keys and values of further positions."""
        self.keys[layer] = np.concatenate([self.keys[layer], keys])
        self.values[layer] = np.concatenate([self.values[layer], values])


class ReferenceAttention:
    """The attention block of any layer, from its input (after the norm) to its output."""

    def __init__(self, matrices: Matrices, *, kv_float16: bool) -> None:
        self._matrices, self._weights = matrices, matrices.weights
        self._kv_float16 = kv_float16

    def heads(self, x: NDArray, layer: int, positions: NDArray[np.int64], state: State) -> NDArray:
        """Each head's rotated query, (tokens, heads, key_dim); adds keys and values to the state.

        A query carries the temperature, but not yet the scale of the scores.
        """
        numbers = self._weights.hyperparameters
        if numbers.latent is not None:
            q, k, v = self._latent(x, layer, numbers.latent)
        else:
            q, k, v = self._plain(x, layer)
        rotation = numbers.layers[layer].rotation
        if rotation is not None:
            q = rotate(q, rotation, positions)
            k = None if k is None else rotate(k, rotation, positions)
        if k is not None and v is not None:
            if self._kv_float16:
                k, v = (y.astype(np.float16).astype(q.dtype) for y in (k, v))
            state.add(layer, k, v)
        if numbers.temperature:
            steps = np.floor(positions / numbers.temperature_length)
            q = q * (1.0 + numbers.temperature * np.log1p(steps))[:, None, None].astype(q.dtype)
        return q

    def attend(self, q: NDArray, layer: int, state: State) -> NDArray:
        """Each head's mean of values, (tokens, heads, value_dim)."""
        weights, numbers = self._weights, self._weights.hyperparameters
        this = numbers.layers[layer]
        sinks = None
        if weights.architecture.sinks:
            sinks = self._matrices.array(weights.name(layer, "attn_sinks"))
        return attention(
            q,
            state.keys[this.cache],
            state.values[this.cache],
            scale=this.attention_scale,
            window=this.window,
            softcap=numbers.attention_softcap,
            causal=weights.architecture.causal,
            symmetric=weights.architecture.window_symmetric,
            alibi_bias=numbers.alibi_bias,
            sinks=sinks,
        )

    def project(self, y: NDArray, layer: int) -> NDArray:
        """From all heads' values to the block's output, (tokens, dim)."""
        latent = self._weights.hyperparameters.latent
        if latent is not None and latent.absorbed:  # heads hold means of latents so far
            parts = [
                self._matrices.layer(y[:, head], layer, "attn_v_b", head)
                for head in range(y.shape[1])
            ]
            y = np.stack(parts, axis=1)
        return self._matrices.layer(y.reshape(len(y), -1), layer, "attn_output")

    def _plain(self, x: NDArray, layer: int) -> tuple[NDArray, NDArray | None, NDArray | None]:
        """q, k, v before the rotation, k and v None where another layer's are used."""
        weights, matrices = self._weights, self._matrices
        this = weights.hyperparameters.layers[layer]
        sizes = {
            "attn_q": this.num_heads * this.key_dim,
            "attn_k": this.num_kv_heads * this.key_dim,
            "attn_v": this.num_kv_heads * this.value_dim,
        }
        own = this.cache == layer
        if weights.layer_optional(layer, "attn_qkv") is not None:
            fused = matrices.layer(x, layer, "attn_qkv")
            ends = np.cumsum(list(sizes.values()))[:-1]
            q, k, v = np.split(fused, ends, axis=1)
        else:
            q = matrices.layer(x, layer, "attn_q")
            k = matrices.layer(x, layer, "attn_k") if own else None
            named = weights.layer_optional(layer, "attn_v") is not None
            v = matrices.layer(x, layer, "attn_v") if own and named else k
        q = self._normed(q, layer, "attn_q_norm", this.num_heads)
        if k is None or v is None:
            return q, None, None
        v = v.reshape(len(x), this.num_kv_heads, this.value_dim)
        if weights.architecture.v_norm:
            v = rms_norm(v, None, weights.hyperparameters.norm_eps)
        return q, self._normed(k, layer, "attn_k_norm", this.num_kv_heads), v

    def _normed(self, x: NDArray, layer: int, tensor: str, heads: int) -> NDArray:
        """Split into heads and normed, over the whole or head by head."""
        kind = self._weights.architecture.qk_norm
        if kind is QKNorm.WHOLE:
            x = self._matrices.layer_norm(x, layer, tensor)
        x = x.reshape(len(x), heads, -1)
        if kind in (QKNorm.HEAD, QKNorm.HEADS):  # the weight is (elements) or (heads, elements)
            x = self._matrices.layer_norm(x, layer, tensor)
        return x

    def _latent(self, x: NDArray, layer: int, latent: Latent) -> tuple[NDArray, NDArray, NDArray]:
        """q, k, v of latent attention before the rotation of their last elements."""
        matrices, heads = self._matrices, self._weights.hyperparameters.layers[layer].num_heads
        if latent.q_rank:
            low = matrices.layer_norm(matrices.layer(x, layer, "attn_q_a"), layer, "attn_q_a_norm")
            q = matrices.layer(low, layer, "attn_q_b")
        else:
            q = matrices.layer(x, layer, "attn_q")
        q = q.reshape(len(x), heads, latent.key_dim)
        plain_dim = latent.key_dim - latent.rope_dim
        joined = matrices.layer(x, layer, "attn_kv_a_mqa")
        compressed, turned = np.split(joined, [latent.kv_rank], axis=1)
        compressed = matrices.layer_norm(compressed, layer, "attn_kv_a_norm")
        turned = turned[:, None, :]  # one for all heads
        if latent.absorbed:
            # q.(B c) = (q B).c: a query for the latent vector itself.
            parts = [
                matrices.layer(q[:, head, :plain_dim], layer, "attn_k_b", head)
                for head in range(heads)
            ]
            q = np.concatenate([np.stack(parts, axis=1), q[..., plain_dim:]], axis=2)
            compressed = compressed[:, None, :]
            return q, np.concatenate([compressed, turned], axis=2), compressed
        expanded = matrices.layer(compressed, layer, "attn_kv_b")
        keys, values = np.split(expanded.reshape(len(x), heads, -1), [plain_dim], axis=2)
        turned = np.broadcast_to(turned, (len(x), heads, latent.rope_dim))
        return q, np.concatenate([keys, turned], axis=2), values


def attention(
    q: NDArray,
    k: NDArray,
    v: NDArray,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
    symmetric: bool = False,
    alibi_bias: float = 0.0,
    sinks: NDArray | None = None,
) -> NDArray:
    """Attention of the last positions' queries.

    q (tokens, num_heads, key_dim); k and v (positions, num_kv_heads, key_dim or value_dim), whose
    last `tokens` positions are the queries' own. Returns (tokens, num_heads, value_dim).
    Consecutive query heads share a key/value head. window: 0, or how many positions a query sees,
    itself included; symmetric: half of it to each side. sinks (num_heads): scores of nothing.
    """
    tokens, num_heads, key_dim = q.shape
    positions, num_kv_heads, _ = k.shape
    grouped = q.reshape(tokens, num_kv_heads, num_heads // num_kv_heads, key_dim)
    scores = np.einsum("thgd,phd->htgp", grouped, k, optimize=True) * q.dtype.type(scale)
    scores = soft_cap(scores, softcap)
    at, keys_at = np.arange(positions - tokens, positions)[:, None], np.arange(positions)
    if alibi_bias:
        slopes = alibi_slopes(num_heads, alibi_bias).reshape(num_kv_heads, 1, -1, 1)
        distance = np.abs(at - keys_at)[None, :, None, :]
        scores = scores - (slopes * distance).astype(q.dtype)
    seen = keys_at <= at if causal else np.ones((tokens, positions), bool)
    if window and symmetric:
        seen = seen & (np.abs(keys_at - at) <= window // 2)
    elif window:
        seen = seen & (keys_at > at - window)
    scores = np.where(seen[None, :, None, :], scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    nothing = np.zeros((), q.dtype)
    if sinks is not None:
        sink = sinks.reshape(num_kv_heads, 1, -1, 1)
        most = np.maximum(most, sink)
        nothing = np.exp(sink - most)
    scores = np.exp(scores - most)
    scores = scores / (scores.sum(axis=-1, keepdims=True) + nothing)
    out = np.einsum("htgp,phd->thgd", scores, v, optimize=True)
    return out.reshape(tokens, num_heads, v.shape[2])


def alibi_slopes(num_heads: int, bias: float) -> NDArray[np.float64]:
    """By how much each head's scores fall a position (ALiBi, arXiv 2108.12409)."""
    whole = 1 << (num_heads.bit_length() - 1)  # the power of two that the paper's slopes are for
    heads = np.arange(num_heads)
    between = 2.0 ** (-bias / 2 / whole * (2 * (heads - whole) + 1))
    return np.where(heads < whole, 2.0 ** (-bias / whole * (heads + 1)), between)
