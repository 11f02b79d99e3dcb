"""Importance matrices: how strongly the columns of each weight's input were used on a text.

For every weight of a matrix product: the sum over tokens of the square of each column of its input,
and how many tokens that were, for each expert of its own. Quantizers weigh a column's error by the
mean of the squares. What is summed and how files keep it is llama.cpp's definition
(tools/imatrix/imatrix.cpp, common/imatrix-loader.cpp, tools/quantize/quantize.cpp: load_imatrix).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError

CHUNK_SIZE = 512  # tokens of a chunk of the older form, which doesn't say it: llama.cpp's default


@dataclass(frozen=True, eq=False)
class Sums:
    """What was collected for one weight.

    squares: float32 (parts, columns), sums of squares; a part for each expert, else one (of a
    dense tensor of several matrices one row holds all of them). counts: int64 (parts,), tokens,
    in the older form chunks. values: as squares, the plain sums; None where a file has none.
    """

    squares: NDArray[np.float32]
    counts: NDArray[np.int64]
    values: NDArray[np.float32] | None = None

    @property
    def num_unseen(self) -> int:
        """Parts that no token went to."""
        return int((self.counts <= 0).sum())

    def in_tokens(self, chunk_size: int) -> "Sums":
        """Of the older form, whose sums and counts are of chunks."""
        with np.errstate(over="ignore"):
            squares = self.squares * np.float32(chunk_size)
        return Sums(squares, self.counts * chunk_size)

    def means(self) -> NDArray[np.float32]:
        """Mean squares, (parts, columns), in float32; 1 for parts that no token went to."""
        seen = (self.counts > 0)[:, None]
        counts = np.where(seen, self.counts[:, None], 1).astype(np.float32)
        return np.where(seen, self.squares / counts, np.float32(1))


@dataclass(frozen=True, eq=False)
class Importance(Mapping[str, Sums]):
    """An importance matrix: weight name -> Sums.

    datasets: names of the texts. chunk_count: chunks of text that it is of; chunk_size: their
    tokens, 0 in the older form, where `chunked` is True.
    """

    entries: dict[str, Sums]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0
    chunked: bool = False
    path: Path | None = field(default=None, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a file of either form.

        InvalidModelFileError: neither, cut short, or with sums that can't be. ModelNotFoundError:
        no such file.
        """
        from .importance_file import read

        return cls(**read(Path(path)))

    def __getitem__(self, name: str) -> Sums:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def of(self, name: str, columns: int | None = None) -> NDArray[np.float32] | None:
        """What llama-quantize takes for a weight: float32 (matrices, columns); None: not collected.

        columns: the weight's. By default those that an entry's counts divide it into, which are
        all matrices' together where a dense tensor has several. InvalidModelFileError: the entry
        is not of whole rows of so many columns.
        """
        if (entry := self.entries.get(name)) is None:
            return None
        if self.chunked and not entry.counts.all():
            found = entry.squares  # as llama-quantize has it: nothing to divide by
        else:
            found = entry.means()
        if columns is None:
            return found
        if found.size % columns:
            raise InvalidModelFileError(
                f"{self.path or 'importance matrix'}: {name} has {found.size} values, the weight "
                f"{columns} columns: it was made for another model"
            )
        return found.reshape(-1, columns)

    @classmethod
    def merged(cls, parts: Sequence["Importance"], chunk_size: int = 0) -> Self:
        """The sum of several, as llama-imatrix adds --in-file.

        chunk_size: of what the older forms' chunks are taken to be; by default that of the first
        part that says one. InvalidModelFileError: they are not of the same model.
        """
        chunk_size = chunk_size or next((p.chunk_size for p in parts if p.chunk_size), CHUNK_SIZE)
        entries: dict[str, Sums] = {}
        for part in parts:
            for name, entry in part.items():
                more = entry.in_tokens(chunk_size) if part.chunked else entry
                if name in entries:
                    where = f"{part.path or 'importance matrix'}: {name}"
                    entries[name] = added(entries[name], more, where)
                else:
                    entries[name] = more
        datasets = tuple(name for part in parts for name in part.datasets)
        return cls(entries, datasets, num_chunks(entries, chunk_size), chunk_size)


def added(a: Sums, b: Sums, where: str) -> Sums:
    """The sum of two entries of a weight; `where` begins the message of what doesn't fit.

    One count for all parts stands for each, as of files from before experts had their own.
    """
    counts = max(a.counts.size, b.counts.size)
    same = a.squares.size == b.squares.size and {a.counts.size, b.counts.size} <= {1, counts}
    if not same or a.squares.size % counts:
        raise InvalidModelFileError(
            f"{where} has {b.squares.size} values in {b.counts.size} parts, in the others "
            f"{a.squares.size} in {a.counts.size}: they are of different models"
        )
    values = None
    if a.values is not None and b.values is not None:
        values = _sum(a.values, b.values, counts)
    total = np.broadcast_to(a.counts, counts) + np.broadcast_to(b.counts, counts)
    return Sums(_sum(a.squares, b.squares, counts), total, values)


def _sum(a: NDArray[np.float32], b: NDArray[np.float32], parts: int) -> NDArray[np.float32]:
    total = a.ravel().astype(np.float64) + b.ravel()
    with np.errstate(over="ignore"):
        return total.astype(np.float32).reshape(parts, -1)


def num_chunks(entries: Mapping[str, Sums], chunk_size: int) -> int:
    """Chunks that the entry with the most tokens is of, to the nearest."""
    most = max((int(entry.counts.max()) for entry in entries.values()), default=0)
    return (most + chunk_size // 2) // chunk_size
