"""A file of a text's log-probabilities by one model, in llama-perplexity's own format.

Little endian: b"_logits_"; int32 n_ctx, vocab_size, number of chunks; all chunks' token ids, int32;
then for each scored token (n_ctx - 1 - n_ctx // 2 of each chunk, see perplexity.py) float32 scale,
float32 lowest log-probability, and a uint16 code for every token of the vocabulary, filled up to an
even number of them. log p = scale * code + lowest. What is less likely than e^-16 times the best
token is as likely as that. Source: llama.cpp, tools/perplexity/perplexity.cpp.
"""

import os
import stat
import struct
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError
from ..models.output_file import OutputFile
from .perplexity import MIN_CTX, first_scored

MAGIC = b"_logits_"
_HEAD = struct.Struct("<8s3i")
_WIDEST = np.float32(16.0)  # natural units that the codes span
_STEPS = np.float32(65535.0)


def row_len(vocab_size: int) -> int:
    """Codes of a row: four for its two floats, and the vocabulary filled up to an even number."""
    return 4 + vocab_size + vocab_size % 2


def rows_of_chunk(n_ctx: int) -> int:
    """Scored tokens of a chunk."""
    return n_ctx - 1 - first_scored(n_ctx)


def encode_rows(logits: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rows of logits as the file keeps them: (rows, vocab_size) -> uint16 (rows, row_len)."""
    vocab_size = logits.shape[1]
    rows = np.zeros((len(logits), row_len(vocab_size)), np.uint16)
    for row, out in zip(np.asarray(logits, np.float32), rows, strict=True):
        highest = row.max()
        lowest = np.maximum(row.min(), highest - _WIDEST)
        log_sum = np.float32(np.log(np.exp(row - highest).sum(dtype=np.float64)))
        scale = (highest - lowest) / _STEPS
        out[:4].view(np.float32)[:] = scale, lowest - highest - log_sum
        if scale > 0:
            codes = np.rint((row - lowest) * (np.float32(1) / scale))
            out[4 : 4 + vocab_size] = np.clip(codes, 0, _STEPS)
    return rows


def decode_rows(rows: NDArray[np.uint16], vocab_size: int) -> NDArray[np.float32]:
    """Log-probabilities of encoded rows, float32 (rows, vocab_size)."""
    ends = np.ascontiguousarray(rows[:, :4]).view(np.float32)
    found = rows[:, 4 : 4 + vocab_size].astype(np.float32)
    found *= ends[:, :1]
    found += ends[:, 1:]
    return found


class LogitsWriter:
    """Writes such a file; in a `with` statement, it has its name when the last row is written.

    Args:
        chunks: int32 (chunks, n_ctx), the token ids.
        overwrite: whether a file of this name may be replaced.

    Raises:
        OutputError: here and when writing: the name is taken, no right to write, no room.
    """

    def __init__(
        self,
        path: str | Path,
        chunks: NDArray[np.int32],
        vocab_size: int,
        *,
        overwrite: bool = False,
    ) -> None:
        num_chunks, n_ctx = chunks.shape
        self._left = num_chunks * rows_of_chunk(n_ctx)
        head = _HEAD.pack(MAGIC, n_ctx, vocab_size, num_chunks)
        size = len(head) + 4 * chunks.size + 2 * self._left * row_len(vocab_size)
        self._file = OutputFile(path, num_bytes=size, overwrite=overwrite)
        try:
            self._file.write(head + chunks.astype("<i4").tobytes())
        except BaseException:
            self._file.discard()
            raise

    @property
    def num_bytes(self) -> int:
        """Written so far."""
        return self._file.num_bytes

    def write(self, logits: NDArray[np.float32]) -> None:
        """The next rows of logits, float32 (rows, vocab_size)."""
        assert len(logits) <= self._left, "more rows than the chunks have"
        self._left -= len(logits)
        self._file.write(encode_rows(logits).astype("<u2", copy=False))

    def __enter__(self) -> "LogitsWriter":
        """For `with LogitsWriter(...) as writer`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it its name, if every row is there."""
        try:
            if kind is None:
                assert not self._left, f"{self._left} rows are missing"
                self._file.publish()
        finally:
            self._file.discard()


class LogitsFile:
    """Reads one. Every count is checked against the file's size before anything is allocated.

    Attributes:
        chunks: int32 (chunks, n_ctx), the token ids.

    Raises:
        RequestError: it can't be read, or is no such file, or a damaged one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
                raise RequestError(f"{path}: not an ordinary file")
            self._file: BinaryIO = open(path, "rb")
        except OSError as error:
            raise RequestError(f"{path}: can't be read: {error.strerror or error}") from error
        try:
            self._read_head()
        except BaseException:
            self._file.close()
            raise

    def _read_head(self) -> None:
        head = self._file.read(_HEAD.size)
        if head[: len(MAGIC)] != MAGIC:
            raise RequestError(
                f"{self.path}: no file of log-probabilities (it does not begin with _logits_); "
                "`llamba perplexity --save-logits` and llama-perplexity --save-all-logits write "
                "them"
            )
        if len(head) < _HEAD.size:
            raise self._damaged("it ends in its header")
        _, self.n_ctx, self.vocab_size, self.num_chunks = _HEAD.unpack(head)
        for name, value, least in (
            ("n_ctx", self.n_ctx, MIN_CTX),
            ("vocab_size", self.vocab_size, 1),
            ("the number of chunks", self.num_chunks, 1),
        ):
            if value < least:
                raise self._damaged(f"{name} is {value}")
        self._row_bytes = 2 * row_len(self.vocab_size)
        self._start = _HEAD.size + 4 * self.num_chunks * self.n_ctx
        self._rows = rows_of_chunk(self.n_ctx)
        expected = self._start + self.num_chunks * self._rows * self._row_bytes
        size = os.fstat(self._file.fileno()).st_size
        if size != expected:
            raise self._damaged(
                f"{self.num_chunks} chunks of {self.n_ctx} tokens and a vocabulary of "
                f"{self.vocab_size} take {expected:,} bytes, it has {size:,}"
            )
        ids = np.frombuffer(self._file.read(self._start - _HEAD.size), "<i4")
        if len(ids) != self.num_chunks * self.n_ctx:
            raise self._damaged("it ends in its token ids")
        if len(wrong := ids[(ids < 0) | (ids >= self.vocab_size)]):
            raise self._damaged(f"token id {wrong[0]} in a vocabulary of {self.vocab_size}")
        self.chunks = ids.astype(np.int32).reshape(self.num_chunks, self.n_ctx)

    def log_probs(self, chunk: int, start: int, stop: int) -> NDArray[np.float32]:
        """Of a chunk's scored tokens those from start to before stop: float32 (n, vocab_size)."""
        assert 0 <= chunk < self.num_chunks and 0 <= start <= stop <= self._rows
        self._file.seek(self._start + (chunk * self._rows + start) * self._row_bytes)
        data = self._file.read((stop - start) * self._row_bytes)
        if len(data) != (stop - start) * self._row_bytes:
            raise self._damaged("it became shorter while it was read")
        rows = np.frombuffer(data, "<u2").reshape(stop - start, -1)
        ends = np.ascontiguousarray(rows[:, :4]).view("<f4")
        bad = ~(np.isfinite(ends).all(axis=1) & (ends[:, 0] >= 0) & (ends[:, 1] <= 1e-3))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise self._damaged(
                f"row {start + row} of chunk {chunk} has scale {ends[row, 0]} and lowest "
                f"log-probability {ends[row, 1]}"
            )
        return decode_rows(rows, self.vocab_size)

    def _damaged(self, why: str) -> RequestError:
        return RequestError(f"{self.path}: a damaged file of log-probabilities: {why}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "LogitsFile":
        """For `with LogitsFile(...) as file`."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()
