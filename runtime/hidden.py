"""The hidden states that a step left in the arena, token by token, after the output norm."""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Norm

_PIECE = 64  # tokens normed at a time, so that what that takes stays in the cache


class HiddenStates:
    """Reads them in either layout: rows (tokens, dim), or blocks (dim, lanes) of tokens in lanes.

    Args:
        rows: address of those in rows.
        in_lanes: of those in lanes; 0 if there are none.
        num_lanes: tokens side by side in a block.
        dim: elements of a state.
        norm: float32 (dim,): the output norm's weight; None: there is no output norm.
        bias: what that norm adds at the end, float32 (dim,), if anything.
        kind: which norm it is.
        eps: what that norm adds to the mean square.

    What comes out of a token's state does not depend on the tokens read with it, bit for bit.
    """

    def __init__(
        self,
        *,
        rows: int,
        in_lanes: int,
        num_lanes: int,
        dim: int,
        norm: NDArray[np.float32] | None,
        bias: NDArray[np.float32] | None = None,
        kind: Norm = Norm.RMS,
        eps: float,
    ) -> None:
        self._rows, self._in_lanes, self._num_lanes = rows, in_lanes, num_lanes
        self._dim, self._kind, self._eps = dim, kind, eps
        self._norm = None if norm is None else norm.astype(np.float64)
        self._bias = None if bias is None else bias.astype(np.float64)

    def read(self, slots: Sequence[int], *, lanes: bool) -> NDArray[np.float32]:
        """Float32 (slots, dim): the normed states of these rows, or lanes."""
        at, dim = np.asarray(slots, np.int64), self._dim
        out = np.empty((len(at), dim), np.float32)
        if not len(at):
            return out
        size = self._num_lanes if lanes else 1
        blocks = _view(
            self._in_lanes if lanes else self._rows, int(at.max()) // size + 1, dim, size
        )
        if self._norm is None:
            out[:] = blocks[at // size, :, at % size]
            return out
        for first in range(0, len(at), _PIECE):
            piece = at[first : first + _PIECE]
            # A copy whose rows are contiguous: each is then summed by itself in the same order.
            x = np.ascontiguousarray(blocks[piece // size, :, piece % size], np.float64)
            out[first : first + _PIECE] = self._normed(x, self._norm)
        return out

    def _normed(self, x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore", over="ignore"):  # a broken file's; the pooler looks
            if self._kind is Norm.LAYER:
                x -= x.mean(axis=1, keepdims=True)
            x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + self._eps)
            x *= weight
            return x if self._bias is None else x + self._bias


def _view(address: int, *shape: int) -> NDArray[np.float32]:
    """The float32 values there; valid as long as the arena."""
    return np.ctypeslib.as_array(
        (ctypes.c_float * int(np.prod(shape))).from_address(address)
    ).reshape(shape)
