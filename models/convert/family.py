"""What a family of checkpoints is: data that says how its tensors and keys become GGUF's.

Facts (names, keys, types, which tensors are moved how) are those of llama.cpp's converter, commit
0c1e570, whose files ours equal.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import Config

# Elements moved: an array of any dtype to one of other shape or order. No arithmetic.
Move = Callable[[NDArray[Any], Config], NDArray[Any]]
# A key's value: the first key of config.json that is there, or a function; None is not written.
Source = str | tuple[str, ...] | Callable[[Config], Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the file that one of the checkpoint becomes, or a part of it.

    name: GGUF's with {} for the layer; `.weight` or `.bias` as in the checkpoint unless it is said.
    plus: is added to each element of a weight, not of its bias.
    """

    name: str
    move: Move | None = None
    plus: float = 0.0


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the metadata, without its architecture: its type (gguf_pairs.KINDS) and source."""

    name: str
    kind: str
    source: Source

    def value(self, config: Config) -> Any:
        """What is to be written, None for nothing."""
        if callable(self.source):
            return self.source(config)
        return config.first(*((self.source,) if isinstance(self.source, str) else self.source))


# What a tensor of the checkpoint becomes: of that name, of these pieces, or nothing.
Target = str | Piece | tuple[Piece, ...] | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family.

    classes: the names in config.json's `architectures`.
    tensors: names in the checkpoint, with {} for the layer and {e} for an expert (those of all
    experts become one tensor), without `.weight` and `.bias` -> Target.
    keys: later ones replace earlier ones.
    defaults: what transformers fills in for keys that config.json leaves out.
    prefixes: what some checkpoints have in front of the names.
    dropped: a pattern of names that aren't needed.
    made: tensors that config.json alone decides, float32 by GGUF's names.
    check: raises for what the family can't express.
    layer_tensors: of a layer, by GGUF's names within it, such as "attn_v.weight": whether they must
    be there (or must not) where the engine alone would run either.
    """

    architecture: str
    classes: tuple[str, ...]
    tensors: Mapping[str, Target]
    keys: tuple[Key, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    dropped: str = ""
    made: Callable[[Config], dict[str, NDArray[np.float32]]] | None = None
    check: Callable[[Config], None] | None = None
    layer_tensors: Callable[[Config, int], Mapping[str, bool]] | None = None
    pooled: bool = False  # modules.json says how vectors are pooled
    dense: bool = False  # and may name dense layers on top

    def drops(self, name: str) -> bool:
        """Whether a tensor of the checkpoint is known not to be needed."""
        return bool(_DROPPED.search(name) or (self.dropped and re.search(self.dropped, name)))


# Tables that every runtime computes for itself.
_DROPPED = re.compile(
    r"\.attention\.masked_bias$|\.attention\.bias$|\.attn\.(masked_)?bias$|rotary_(pos_)?emb\.inv_freq$"
)


def interleaved(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of each head reordered so that the two halves that rotate together are neighbours.

    array: (rows, ...). Checkpoints pair row i with row i + half, GGUF's "norm" rope i with i + 1.
    """
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def query_rows(array: NDArray[Any], config: Config) -> NDArray[Any]:
    """`interleaved`, of queries."""
    return interleaved(array, config.heads)


def key_rows(array: NDArray[Any], config: Config) -> NDArray[Any]:
    """`interleaved`, of keys."""
    return interleaved(array, config.kv_heads)


def turned(array: NDArray[Any], config: Config) -> NDArray[Any]:
    """A matrix, or each of a stack, with rows for columns; a vector stays as it is."""
    return array if array.ndim == 1 else array.swapaxes(-1, -2)


def first_half(array: NDArray[Any], config: Config) -> NDArray[Any]:
    """The upper half of the rows of a matrix or of each of a stack."""
    return array[..., : array.shape[-2] // 2, :]


def second_half(array: NDArray[Any], config: Config) -> NDArray[Any]:
    """The lower half."""
    return array[..., array.shape[-2] // 2 :, :]


def grouped_rows(array: NDArray[Any], groups: int, per_group: int) -> NDArray[Any]:
    """Fused q, k, v that lie group by group, to all q, then all k, then all v.

    array: (rows, ...); a group has `per_group` heads of q, one of k and one of v.
    """
    head = array.shape[0] // groups // (per_group + 2)
    parts = array.reshape(groups, per_group + 2, head, *array.shape[1:])
    rest = array.shape[1:]
    q, k, v = parts[:, :per_group], parts[:, per_group], parts[:, per_group + 1]
    return np.concatenate([part.reshape(-1, *rest) for part in (q, k, v)])
