"""What some files have on top of a text's pooled state: dense layers, a classifier's head."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..models.weights import Weights
from ..quant import format_of
from .pooling import StateKind

Vector = NDArray[np.floating]

_DENSE = ("dense_2", "dense_3")


class Heads:
    """Applies them, as llama.cpp does, to one vector of float64 (dim,) after the other.

    num_labels: results of the classifier's or reranker's head; 0: the file has none. pooling: what
    that head reads.
    """

    def __init__(self, weights: Weights) -> None:
        numbers = weights.hyperparameters
        self._weights, self._dim = weights, numbers.dim
        self.num_labels, self.pooling = numbers.num_labels, numbers.head_pooling

    @property
    def kind(self) -> StateKind:
        """The states that the head reads."""
        kinds: dict[str, StateKind] = {"mean": "mean", "last": "last", "cls": "cls"}
        return kinds[self.pooling]

    @property
    def dim(self) -> int:
        """Numbers of an embedding."""
        found = [info for name in _DENSE if (info := self._weights.optional(f"{name}.weight"))]
        return found[-1].shape[0] if found else self._dim

    @cached_property
    def has_dense(self) -> bool:
        """Whether there are layers that an embedding goes through."""
        return any(self._weights.optional(f"{name}.weight") is not None for name in _DENSE)

    @property
    def is_softmax(self) -> bool:
        """Whether the head's results are probabilities that add up to 1."""
        return self._weights.architecture.head_softmax

    def finish_embedding(self, pooled: Vector) -> Vector:
        """The pooled state through the dense layers (EmbeddingGemma), float64 (self.dim,)."""
        x = pooled
        for name in _DENSE:
            if self._weights.optional(f"{name}.weight") is not None:
                x = self._linear(name, x)
        return x

    def score(self, pooled: Vector) -> Vector:
        """The head's results, float64 (num_labels,): BERT's tanh, ModernBERT's GELU and norm."""
        x, has = pooled, self._weights.optional
        if has("cls.weight") is not None:
            x = self._linear("cls", x)
            x = _gelu(x) if self._weights.architecture.head_gelu else np.tanh(x)
            if has("cls.norm.weight") is not None:
                x = x - x.mean()
                x = x / np.sqrt(np.square(x).mean() + self._weights.hyperparameters.norm_eps)
                x = x * self._tensor("cls.norm.weight")
        x = self._linear("cls.output", x)
        return softmax(x) if self.is_softmax else x

    def choice(self, pooled: Vector, token_ids: tuple[int, ...]) -> Vector:
        """The probabilities that the next token is each of these, if it is one of them."""
        numbers = self._weights.hyperparameters
        logits = (self._token_rows(token_ids) @ pooled.astype(np.float32)).astype(np.float64)
        if self._weights.optional("output.bias") is not None:
            logits = logits + self._tensor("output.bias")[list(token_ids)]
        logits = logits * numbers.logit_scale
        if cap := numbers.final_softcap:
            logits = cap * np.tanh(logits / cap)
        return softmax(logits)

    def _linear(self, name: str, x: Vector) -> Vector:
        y = (self._tensor(f"{name}.weight") @ x.astype(np.float32)).astype(np.float64)
        bias = self._weights.optional(f"{name}.bias")
        return y if bias is None else y + self._tensor(f"{name}.bias")

    def _tensor(self, name: str) -> NDArray[np.float32]:
        """Decoded once: these are small."""
        if name not in self._decoded:
            self._decoded[name] = self._weights.f32(name)
        return self._decoded[name]

    def _token_rows(self, token_ids: tuple[int, ...]) -> NDArray[np.float32]:
        """Rows of the output matrix."""
        key = f"output {token_ids}"
        if key not in self._decoded:
            info = self._weights.output
            raw = info.data.reshape(info.shape[0], -1)[list(token_ids)]
            shape = len(token_ids), info.shape[1]
            rows = format_of(info.type_id, info.name).dequantize(np.ascontiguousarray(raw), shape)
            self._decoded[key] = rows
        return self._decoded[key]

    @cached_property
    def _decoded(self) -> dict[str, NDArray[np.float32]]:
        return {}


def softmax(x: Vector) -> Vector:
    """Positive numbers in the ratios e^x, that add up to 1."""
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def sigmoid(x: Vector) -> Vector:
    """A log-odds as a probability, without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def _gelu(x: Vector) -> Vector:
    """Its tanh approximation."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
