"""Rows of logits that stay on a device: their best tokens are here, the rest comes when asked."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

NUM_CANDIDATES = 64  # tokens of a row that come by themselves


class Fetch(Protocol):
    """Brings logits from the device."""

    def __call__(self, number: int, token: int | None = None, /) -> NDArray[np.float32]:
        """A row without edits, (vocab_size,), or of one of its tokens (1,)."""
        ...


class CandidateRow:
    """One row of logits by its best tokens.

    Attributes:
        ids: int32 (n,), the tokens with the highest logits, ties by the lowest id.
        logits: float32 (n,), theirs, highest first; -inf behind the last that may be chosen.
        log_norm: log-sum-exp of the whole row, at most 2e-5 off.
        finite: the row has no NaN and no +inf.

    These are of the row after the segment's edits, if it had any.
    """

    __slots__ = ("_fetch", "_full", "_number", "finite", "ids", "log_norm", "logits")

    def __init__(
        self,
        ids: NDArray[np.int32],
        logits: NDArray[np.float32],
        log_norm: float,
        finite: bool,
        fetch: Fetch,
        number: int = 0,
    ) -> None:
        self.ids, self.logits = ids, logits
        self.log_norm, self.finite = log_norm, finite
        self._fetch, self._number = fetch, number
        self._full: NDArray[np.float32] | None = None

    @property
    def complete(self) -> bool:
        """No other token may be chosen than these."""
        return len(self.logits) < NUM_CANDIDATES or self.logits[-1] == -np.inf

    def full(self) -> NDArray[np.float32]:
        """The whole row without edits, float32 (vocab_size,); slow, it comes from the device."""
        if self._full is None:
            self._full = self._fetch(self._number)
        return self._full


class CandidateRows:
    """What Runs.run returns in place of an array; valid as long: until the next run.

    Args:
        ids, logits, log_norm, finite: CandidateRow's of all rows, in arrays.
        fetch: brings what isn't here.
    """

    __slots__ = ("_count", "_fetch", "_first", "finite", "ids", "log_norm", "logits")

    def __init__(
        self,
        ids: NDArray[np.int32],  # (rows, n)
        logits: NDArray[np.float32],  # (rows, n)
        log_norm: NDArray[np.floating],  # (rows,)
        finite: NDArray[np.bool_],  # (rows,)
        fetch: Fetch,
        part: tuple[int, int] | None = None,
    ) -> None:
        self.ids, self.logits, self.log_norm, self.finite = ids, logits, log_norm, finite
        self._fetch = fetch
        # A slice has the arrays of all, and is this part of them: the first row, and how many.
        self._first, self._count = (0, len(ids)) if part is None else part

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> CandidateRow: ...
    @overload
    def __getitem__(self, at: slice) -> "CandidateRows": ...

    def __getitem__(self, at: int | slice) -> "CandidateRow | CandidateRows":
        """A row, or consecutive ones."""
        if isinstance(at, slice):
            start, stop, step = at.indices(self._count)
            assert step == 1, "consecutive rows only"
            part = self._first + start, max(0, stop - start)
            return CandidateRows(
                self.ids, self.logits, self.log_norm, self.finite, self._fetch, part
            )
        at = at + self._count if at < 0 else at
        if not 0 <= at < self._count:
            raise IndexError(at)
        at += self._first
        norm, finite = float(self.log_norm[at]), bool(self.finite[at])
        return CandidateRow(self.ids[at], self.logits[at], norm, finite, self._fetch, at)

    def full(self) -> NDArray[np.float32]:
        """All of the rows, at least one, without edits: float32 (rows, vocab_size); slow."""
        return np.stack([self._fetch(self._first + i) for i in range(self._count)])

    def losses(self, targets: NDArray[np.integer]) -> NDArray[np.float64]:
        """-log p of each row's target, float64 (rows,), by log_norm; of rows without edits.

        A logit comes from the device where the target isn't among the candidates. NaN where the
        row isn't finite.
        """
        assert len(targets) == self._count
        part = slice(self._first, self._first + self._count)
        same = self.ids[part] == np.asarray(targets)[:, None]
        found = self.logits[part][np.arange(self._count), same.argmax(1)].astype(np.float64)
        for i in np.flatnonzero(~same.any(1)).tolist():
            found[i] = self._fetch(self._first + i, int(targets[i]))[0]
        return np.where(self.finite[part], self.log_norm[part] - found, np.nan)


# What a program's step gives: rows of logits, (rows, vocab_size), here or on a device.
Rows = NDArray[np.float32] | CandidateRows


def on_host(rows: Rows) -> NDArray[np.float32]:
    """At least one row, as an array, wherever they are."""
    return rows.full() if isinstance(rows, CandidateRows) else rows


_NO_IDS = np.empty(0, np.int32)
_NO_VALUES = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class RowEdits:
    """What is to be done to a row of logits before its best tokens are looked for.

    In this order, in float32, each operation rounded by itself. The arrays are valid during the
    run; the same object again means the same edits.
    """

    bias_ids: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)  # each once
    bias: NDArray[np.float32] = field(default_factory=lambda: _NO_VALUES)  # added
    repeat_ids: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)  # each once
    counts: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    allowed: NDArray[np.uint32] | None = None  # bit i % 32 of word i // 32: token i may follow

    @property
    def empty(self) -> bool:
        """Nothing is to be done."""
        return not (len(self.bias_ids) or len(self.repeat_ids) or self.allowed is not None)

    def apply(self, row: NDArray[np.float32]) -> None:
        """Do it to a row here, in place: what devices are measured by."""
        row[self.bias_ids] += self.bias
        if len(self.repeat_ids):
            values = row[self.repeat_ids]
            penalty = np.float32(self.repeat_penalty)
            values = np.where(values <= 0, values * penalty, values / penalty)
            values -= self.counts.astype(np.float32) * np.float32(self.frequency_penalty)
            row[self.repeat_ids] = values - np.float32(self.presence_penalty)
        if self.allowed is not None:
            words = self.allowed.view(np.uint8)
            bits = np.unpackbits(words, count=len(row), bitorder="little").view(np.bool_)
            row[~bits] = -np.inf


class Guess(NamedTuple):
    """How to choose a token from the candidates as the sampler is going to, nearly always.

    The first `top_k` candidates; of these the first whose probabilities reach `top_p`; of these
    those at least `min_p` times as likely as the best; of these the first at which the running sum
    of exp(logit / temperature) is above the share `point` of the sum. temperature 0: the best one.
    """

    temperature: float
    top_k: int  # 1 to NUM_CANDIDATES
    top_p: float
    min_p: float
    point: float  # 0 <= point < 1
