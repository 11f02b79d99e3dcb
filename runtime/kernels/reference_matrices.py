"""A model file's tensors as the reference uses them: decoded to `dtype`, applied, normed."""

import numpy as np
from numpy.typing import NDArray

from ...models.architecture import Norm
from ...models.gguf_types import TensorInfo
from ...models.weights import Weights
from ...quant import format_of
from .reference_math import layer_norm, rms_norm

SLICE_ELEMENTS = 1 << 22  # of a matrix decoded at a time


class Matrices:
    """Weights decoded in slices of rows when they are used; `keep` holds what was decoded."""

    def __init__(self, weights: Weights, dtype: np.dtype[np.floating], *, keep: bool) -> None:
        self.weights, self.dtype = weights, dtype
        self._kept: dict[str, NDArray] | None = {} if keep else None

    def array(self, name: str) -> NDArray:
        """A whole tensor: for norms and biases."""
        return self.weights.f32(name).astype(self.dtype)

    def rows(self, name: str, ids: NDArray[np.int64]) -> NDArray:
        """Rows of a table."""
        info = self.weights.tensor(name)
        raw = info.data.reshape(info.shape[0], -1)[ids]
        decoded = format_of(info.type_id, name).dequantize(raw, (len(ids), info.shape[1]))
        return decoded.astype(self.dtype)

    def norm(self, x: NDArray, name: str) -> NDArray:
        """The architecture's kind of norm with the weight `name`.weight, and bias if there is."""
        kind = {Norm.RMS: rms_norm, Norm.LAYER: layer_norm}[self.weights.architecture.norm]
        y = kind(x, self.array(f"{name}.weight"), self.weights.hyperparameters.norm_eps)
        return y + self.array(f"{name}.bias") if self.weights.optional(f"{name}.bias") else y

    def layer_norm(self, x: NDArray, layer: int, tensor: str) -> NDArray:
        """The same with a layer's weight, by the runtime's name."""
        return self.norm(x, self.weights.name(layer, tensor).removesuffix(".weight"))

    def layer(self, x: NDArray, layer: int, tensor: str, part: int | None = None) -> NDArray:
        """x (tokens, columns) times a layer's matrix, plus its bias -> (tokens, rows).

        part: which matrix of a tensor that holds several.
        """
        y = self.apply(x, self.weights.layer_tensor(layer, tensor), part)
        if self.weights.layer_optional(layer, tensor, "bias") is None:
            return y
        bias = self.array(self.weights.name(layer, tensor, "bias"))
        return y + (bias if part is None else bias[part])

    def apply(self, x: NDArray, info: TensorInfo, part: int | None = None) -> NDArray:
        """x (tokens, columns) times a matrix (rows, columns) -> (tokens, rows)."""
        rows, columns = info.shape[-2:]
        out: NDArray = np.empty((len(x), rows), self.dtype)
        step = max(1, SLICE_ELEMENTS // columns)
        first = 0 if part is None else part * rows
        for at in range(0, rows, step):
            stop = min(at + step, rows)
            out[:, at:stop] = x @ self._decoded(info, first + at, first + stop).T
        return out

    def _decoded(self, info: TensorInfo, start: int, stop: int) -> NDArray:
        """Decode the rows start..stop, counted through all of a tensor's matrices."""
        key = f"{info.name}:{start}"
        if self._kept is not None and key in self._kept:
            return self._kept[key]
        data = info.data.reshape(int(np.prod(info.shape[:-1])), -1)[start:stop]
        decoded = format_of(info.type_id, info.name).dequantize(
            data, (stop - start, info.shape[-1])
        )
        decoded = decoded.astype(self.dtype, copy=False)
        if self._kept is not None:
            self._kept[key] = decoded
        return decoded
