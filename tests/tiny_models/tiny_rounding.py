"""What llama.cpp rounds on the CPU, for the reference to do the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamba.quant import format_of

PLAIN = ("F32", "F16", "BF16")
Apply = Callable[..., NDArray]


def gelu_table(x: NDArray) -> NDArray:
    """GELU as a table of float16 numbers over float16 numbers."""
    half = x.astype(np.float32).astype(np.float16).astype(np.float32)
    inner = np.float32(0.7978845608) * half * (1 + np.float32(0.044715) * half * half)
    table = (np.float32(0.5) * half * (1 + np.tanh(inner))).astype(np.float16).astype(x.dtype)
    return np.where(x <= -10, 0, np.where(x >= 10, x, table))


def rounded_to_int8(x: NDArray, group: int) -> NDArray:
    """x (tokens, columns) as whole multiples of a scale a group: 127 steps to its largest value."""
    groups = x.reshape(len(x), -1, group)
    scale = np.abs(groups).max(axis=-1, keepdims=True) / 127
    steps = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0))
    return (steps * scale).reshape(x.shape)


def with_int8_inputs(apply: Apply) -> Apply:
    """The reference's product with a matrix, a quantized matrix's input rounded to int8 before."""

    def rounded(self: Any, x: NDArray, info: Any, part: int | None = None) -> NDArray:
        kind = format_of(info.type_id)
        x = x if kind.name in PLAIN else rounded_to_int8(x, kind.block_len)
        return apply(self, x, info, part)

    return rounded
