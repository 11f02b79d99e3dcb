"""The element-wise mathematics of the reference: norms, activations, rotation, soft caps."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...models.architecture import Activation, Rope, Rotation

Function = Callable[[NDArray], NDArray]


def rms_norm(x: NDArray, weight: NDArray | None, eps: float) -> NDArray:
    """Scale the last axis to a root mean square of 1, then by `weight`; dtype of x."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    scaled = x / np.sqrt(mean + x.dtype.type(eps))
    return scaled if weight is None else scaled * weight


def layer_norm(x: NDArray, weight: NDArray, eps: float) -> NDArray:
    """The same of what differs from the last axis' mean."""
    return rms_norm(x - np.mean(x, axis=-1, keepdims=True), weight, eps)


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


def soft_cap(x: NDArray, cap: float) -> NDArray:
    """Bend x into (-cap, cap) by cap * tanh(x / cap); 0 leaves it."""
    return x if not cap else cap * np.tanh(x / cap)


def sigmoid(x: NDArray) -> NDArray:
    """1 / (1 + exp(-x)), without overflow for large negative x."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def silu(x: NDArray) -> NDArray:
    """x * sigmoid(x), without overflow for large negative x."""
    return x * sigmoid(x)


def gelu(x: NDArray) -> NDArray:
    """GELU in its tanh approximation."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)))


def activate(kind: Activation, gate: NDArray, up: NDArray | None, gelu: Function) -> NDArray:
    """The non-linearity of `gate`, times `up`; up is None where a block has no gate."""
    if kind is Activation.SWIGLU_OAI:
        if up is None:
            raise ValueError(f"{kind} needs a gate")
        gate = np.minimum(gate, 7.0)
        return gate * sigmoid(1.702 * gate) * (np.clip(up, -7.0, 7.0) + 1.0)
    bent = {
        Activation.SILU: silu,
        Activation.GELU: gelu,
        Activation.RELU: lambda x: np.maximum(x, 0.0),
        Activation.RELU_SQUARED: lambda x: np.maximum(x, 0.0) ** 2,
    }[kind](gate)
    return bent if up is None else bent * up


def softmax(x: NDArray) -> NDArray:
    """Probabilities over the last axis; dtype of x."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(logits: NDArray) -> NDArray:
    """Log-probabilities over the last axis; dtype of logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
