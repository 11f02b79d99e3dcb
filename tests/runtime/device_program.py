"""A program as one on a device is: candidates, edits made there, and steps run ahead of time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.candidates import NUM_CANDIDATES, CandidateRow, CandidateRows, Guess

Key = tuple[int, int, tuple[int, ...]]


def best_tokens(row: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, bool]:
    """CandidateRow's ids, logits, log_norm and finite, by their definitions."""
    finite = not (np.isnan(row).any() or (row == np.inf).any())
    ids = np.argsort(-row, kind="stable")[:NUM_CANDIDATES].astype(np.int32)
    highest = float(row.max())
    if not np.isfinite(highest):
        return ids, row[ids], -np.inf, finite
    total = np.exp(row.astype(np.float64) - highest).sum()
    return ids, row[ids], float(np.float32(highest + np.log(total))), finite


def candidates(rows: np.ndarray, edited: np.ndarray | None = None) -> CandidateRows:
    """Rows as they come from a device."""
    best = [best_tokens(row) for row in (rows if edited is None else edited)]
    width = min(NUM_CANDIDATES, rows.shape[1])
    return CandidateRows(
        np.array([b[0] for b in best], np.int32).reshape(len(rows), width),
        np.array([b[1] for b in best], np.float32).reshape(len(rows), width),
        np.array([b[2] for b in best]),
        np.array([b[3] for b in best], np.bool_),
        lambda i, token=None: rows[i].copy() if token is None else rows[i, token : token + 1],
    )


def choose(row: CandidateRow, guess: Guess) -> int:
    """The token that a device takes, by sums of its own."""
    if guess.temperature <= 0:
        return int(row.ids[0])
    logits = row.logits[: guess.top_k].astype(np.float64)
    weights = np.exp(logits - logits[0])
    count = int((np.cumsum(weights) < guess.top_p * weights.sum()).sum()) + 1
    count = min(count, int((weights >= guess.min_p).sum()))
    shares = np.cumsum(np.exp((logits[:count] - logits[0]) / guess.temperature))
    return int(row.ids[min(count - 1, int((shares <= guess.point * shares[-1]).sum()))])


class DeviceProgram:
    """Runs the batches of another program, which gives rows, and the next one ahead of time.

    `spoil` may put another token in place of a guess. What comes of a batch that ran ahead is used
    if it is the next one or holds it.
    """

    gives_candidates = True

    def __init__(self, inner: Any, spoil: Callable[[int], int] = lambda token: token) -> None:
        self.inner, self.spoil = inner, spoil
        self.num_pages, self.max_tokens = inner.num_pages, inner.max_tokens
        self.max_logits = inner.max_logits
        self.copy_page, self.hidden_states = inner.copy_page, inner.hidden_states
        self.num_ahead = self.num_used = self.num_subsets = self.num_edited = 0
        self._ahead: dict[Key, tuple[np.ndarray, Segment]] = {}

    def run(self, batch: Batch) -> CandidateRows:
        ahead, self._ahead = self._ahead, {}
        raw = self._use(batch, ahead)
        if raw is None:
            raw = self.inner.run(batch).copy()  # a view, which running ahead writes over
        edited = raw.copy()
        at = 0
        for s in batch.segments:
            if s.edits is not None:
                assert s.logits is Logits.LAST and not s.edits.empty
                s.edits.apply(edited[at])
                self.num_edited += 1
            at += {Logits.LAST: 1, Logits.ALL: s.num_tokens}.get(s.logits, 0)
        rows = candidates(raw, edited)
        self._run_ahead(batch, rows)
        return rows

    def _use(self, batch: Batch, ahead: dict[Key, tuple[np.ndarray, Segment]]) -> Any:
        """The rows of a batch that ran ahead, if it is this one or more."""
        for s in batch.segments:
            there = ahead.get(key_of(s))
            if there is None or s.logits is not Logits.LAST:
                return None
            assert s.edits is there[1].edits and s.adapters == there[1].adapters
        self.num_used += 1
        self.num_subsets += len(batch.segments) < len(ahead)
        return np.array([ahead[key_of(s)][0] for s in batch.segments])

    def _run_ahead(self, batch: Batch, rows: CandidateRows) -> None:
        segments = []
        for i, s in enumerate(batch.segments):
            if s.guess is None:
                continue
            assert all(each.logits is Logits.LAST for each in batch.segments)
            end = s.start + s.num_tokens
            assert len(s.block_table) * PAGE_SIZE > end, "no place for the guessed token"
            token = self.spoil(choose(rows[i], s.guess))
            ids = np.array([token], np.int32)
            segments.append(replace(s, token_ids=ids, start=end, guess=None))
        if segments:
            self.num_ahead += 1
            raw = self.inner.run(Batch(tuple(segments))).copy()
            self._ahead = {key_of(s): (r, s) for s, r in zip(segments, raw, strict=True)}


def key_of(segment: Segment) -> Key:
    """What a segment that ran ahead is compared by."""
    assert segment.sequence_id >= 0
    return segment.sequence_id, segment.start, tuple(segment.token_ids.tolist())
