"""How two model files differ: keys, tensors, types, shapes and, where those agree, the data."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .progress import Progress
from .quantize_metadata import SPLIT_KEYS
from .tensor_reader import TensorReader
from .tensor_stream import COPY_BYTES, in_order

if TYPE_CHECKING:
    from .gguf import GGUFFile, TensorInfo

_THREADS = 2


@dataclass(frozen=True)
class Diff:
    """The names of what is only in the second file (added), only in the first (removed), in both.

    Tensors that are in both are in exactly one of types, shapes, data and equal; one of another
    type and another shape is in shapes.
    """

    keys_added: list[str]
    keys_removed: list[str]
    keys_changed: list[str]
    added: list[str]
    removed: list[str]
    types: list[str]
    shapes: list[str]
    data: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Nothing differs."""
        return not any(vars(self)[name] for name in vars(self) if name != "equal")


def compare(
    a: "GGUFFile", b: "GGUFFile", *, progress: Progress = lambda event, done, total: None
) -> Diff:
    """Compare two open files; how they are divided into shards does not count.

    progress: called with "compare" and bytes. InvalidModelFileError: one can't be read.
    """
    keys_a, keys_b = (
        {key: raw for key, raw in file.raw_pairs().items() if key not in SPLIT_KEYS}
        for file in (a, b)
    )
    both = [name for name in a.tensors if name in b.tensors]
    shapes = [n for n in both if a.tensors[n].shape != b.tensors[n].shape]
    types = [n for n in both if n not in shapes and a.tensors[n].type_id != b.tensors[n].type_id]
    diff = Diff(
        keys_added=[key for key in keys_b if key not in keys_a],
        keys_removed=[key for key in keys_a if key not in keys_b],
        keys_changed=[key for key in keys_a if keys_a[key] != keys_b.get(key, keys_a[key])],
        added=[name for name in b.tensors if name not in a.tensors],
        removed=[name for name in a.tensors if name not in b.tensors],
        types=types,
        shapes=shapes,
    )
    rest = [a.tensors[n] for n in both if n not in {*shapes, *types}]
    differs = _differing(a, b, rest, progress)
    diff.data.extend(t.name for t in rest if t.name in differs)
    diff.equal.extend(t.name for t in rest if t.name not in differs)
    return diff


def _differing(
    a: "GGUFFile", b: "GGUFFile", tensors: list["TensorInfo"], progress: Progress
) -> set[str]:
    """The names of tensors whose bytes are not the same; read a piece at a time."""
    found: set[str] = set()
    total, done = sum(t.num_bytes for t in tensors), 0
    with TensorReader(a) as first, TensorReader(b) as second:

        def piece(name: str, at: int, size: int) -> tuple[str, int, bool]:
            if name in found:
                return name, size, True
            one, other = (
                first.read(a.tensors[name], at, size),
                second.read(b.tensors[name], at, size),
            )
            return name, size, not np.array_equal(one, other)

        def pieces() -> Iterator[Callable[[], tuple[str, int, bool]]]:
            for tensor in tensors:
                for at in range(0, tensor.num_bytes, COPY_BYTES):
                    size = min(COPY_BYTES, tensor.num_bytes - at)
                    yield lambda n=tensor.name, start=at, s=size: piece(n, start, s)

        with closing(in_order(pieces(), _THREADS)) as finished:
            for name, size, differs in finished:
                if differs:
                    found.add(name)
                done += size
                progress("compare", done, total)
    return found
