"""Pooling: from the hidden states of a text's tokens to one vector for the whole text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameterError, LlambaError

StateKind = Literal["mean", "last", "cls"]
PoolingKind = Literal["mean", "last", "cls", "rank"]
KINDS: tuple[StateKind, ...] = get_args(StateKind)
# GGUF's `{arch}.pooling_type`. 0 is none: the file leaves it open.
_OF_FILE: dict[int, StateKind] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
_RANK = 4  # a classifier's or reranker's


@dataclass(frozen=True)
class Pooling:
    """What an embedding is made of.

    kind: "mean" of all tokens, the "last" token, or the first one ("cls"). normalize: to length 1.
    dimensions: only the first so many numbers, for models that were trained for it (Matryoshka).
    finish: what the file has on top of the pooled state, float64 (dim,); before the others.
    """

    kind: StateKind
    normalize: bool = True
    dimensions: int | None = None
    finish: Callable[[NDArray[Any]], NDArray[Any]] | None = None


def choose_pooling(
    kind: Any, normalize: Any, dimensions: Any, *, dim: int, of_file: Any = None
) -> Pooling:
    """Settings checked against a model; a `kind` of None: as the file says, else the mean.

    Args:
        dim: numbers of the model's embeddings.
        of_file: the file's pooling_type, if it has one.

    Raises:
        InvalidParameterError: one of them is out of its range.

    >>> choose_pooling(None, True, None, dim=64, of_file=3).kind
    'last'
    """
    if kind is None:
        known = isinstance(of_file, int)  # a damaged file may have an array there
        kind = "mean" if of_file is None else _OF_FILE.get(of_file) if known else None
        if kind is None:
            why = " (rank: it is a reranker: let it rerank)" if known and of_file == _RANK else ""
            raise InvalidParameterError(
                f"the file's pooling_type {str(of_file)[:40]}{why} gives no embedding; the command "
                f"line's --pooling and Python's pooling= make one all the same: {', '.join(KINDS)}"
            )
    elif kind not in KINDS:
        names = ", ".join((*KINDS, "rank"))
        raise InvalidParameterError(
            f"pooling={kind!r}: must be one of {names}, or None for the model's own"
        )
    if not isinstance(normalize, bool):
        raise InvalidParameterError(f"normalize={normalize!r}: must be True or False")
    if dimensions is not None and (
        not isinstance(dimensions, int)
        or isinstance(dimensions, bool)
        or not 1 <= dimensions <= dim
    ):
        raise InvalidParameterError(
            f"dimensions={dimensions!r}: must be a whole number from 1 to {dim}, or None for all"
        )
    return Pooling(kind, normalize, dimensions)


class Pooler:
    """Makes one text's embedding from hidden states that come chunk by chunk.

    Args:
        pooling: which of them count, and what becomes of the result.
        num_tokens: of the text.
    """

    def __init__(self, pooling: Pooling, num_tokens: int) -> None:
        self.pooling, self._num_tokens = pooling, num_tokens
        self._num_taken = 0  # positions of the sum
        self._sum: NDArray[np.float64] | None = None

    @property
    def needs(self) -> Literal["last", "all"]:
        """Whose hidden states must be made: for all but the last token's the whole text runs."""
        return "last" if self.pooling.kind == "last" else "all"

    def wanted(self, start: int, num_tokens: int) -> slice:
        """Which hidden states of a chunk, that begins at position `start`, add() is to get."""
        kind = self.pooling.kind
        if kind == "mean":
            return slice(None)
        at = (0 if kind == "cls" else self._num_tokens - 1) - start
        return slice(at, at + 1) if 0 <= at < num_tokens else slice(0)

    def add(self, start: int, states: NDArray[np.float32]) -> None:
        """Take the wanted states, float32 (tokens, dim), of the chunk at `start`."""
        if self.pooling.kind == "mean":
            assert start == self._num_taken, f"position {start} after {self._num_taken}"
        if self._sum is None:
            self._sum = np.zeros(states.shape[1])
        # One after the other: the same bits however the text was cut into chunks.
        for state in states:
            self._sum += state
        self._num_taken += len(states)

    def result(self) -> NDArray[np.float32]:
        """The embedding, float32 (dim,) or (dimensions,), when the whole text has run.

        LlambaError if the model gave infinite or undefined numbers.
        """
        expected = self._num_tokens if self.pooling.kind == "mean" else 1
        assert self._sum is not None and self._num_taken == expected, "states are missing"
        vector = self._sum / expected
        with np.errstate(invalid="ignore", over="ignore"):  # a broken file's: looked at below
            if self.pooling.finish is not None:
                vector = self.pooling.finish(vector)
        vector = vector[: self.pooling.dimensions]
        if not np.isfinite(vector).all():
            raise LlambaError(
                "the model gave numbers that are infinite or undefined, so no embedding or score: "
                "the file is damaged, or its values are out of range"
            )
        length = float(np.sqrt(np.square(vector).sum()))
        if self.pooling.normalize and length > 0:
            vector = vector / length
        return vector.astype(np.float32)
