"""Random batches on a device program, against the reference: whoever is beside whom, and when.

Singles and chunks mixed, more of them than are handled in pieces, steps without rows, sequences
that come and go (their pages and rows of page tables are others' at once), pages that are copied
and exchanged, edits, and guesses, most of them wrong.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rig import SIZES
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.candidates import CandidateRows, Guess, RowEdits
from llamba.runtime.cuda.build import build_program
from llamba.runtime.cuda.forms import Forms
from llamba.runtime.kernels.reference import Reference

# The largest error, relative to the largest logit: of other sums; of keys and values in float16.
TOLERANCES = {"f32": 1e-4, "f16": 4e-3}
LENGTH, PAGES, MOST = 75, 14, 5


class Text:
    """A sequence: its tokens, those of them that were run, its pages."""

    def __init__(self, number: int, tokens: list[int]) -> None:
        self.number, self.tokens, self.done, self.version = number, tokens, 0, 0
        self.pages: list[int] = []
        self.rows: dict[int, NDArray[np.float32]] = {}  # logits by position
        self.edits: RowEdits | None = None


class Fuzz:
    """Makes batches, and looks at what comes of them."""

    def __init__(self, program: Any, vocab: int, head: NDArray[np.float32], seed: int) -> None:
        self.program, self.vocab, self.head = program, vocab, head
        self.random = np.random.default_rng(seed)
        self.free = list(range(PAGES))
        self.live: list[Text] = []
        self.ended: list[Text] = []
        self.count = 0

    def draw(self, limit: int) -> int:
        return int(self.random.integers(limit))

    def begin(self) -> None:
        self.count += 1
        self.live.append(
            Text(self.count, self.random.integers(0, self.vocab, 1 + self.draw(40)).tolist())
        )

    def end(self, text: Text) -> None:
        self.live.remove(text)
        self.ended.append(text)
        self.free += text.pages

    def make_edits(self) -> RowEdits | None:
        kind = self.draw(6)
        if kind > 2:
            return None
        some = self.random.choice(self.vocab, 9, replace=False).astype(np.int32)
        bias = self.random.standard_normal(9).astype(np.float32)
        if kind == 0:
            return RowEdits(bias_ids=some, bias=bias)
        if kind == 1:
            counts = np.arange(1, 10, dtype=np.int32)
            return RowEdits(some[:4], bias[:4], some, counts, 1.3, 0.25, 0.5)
        words = self.random.integers(0, 1 << 32, -(-self.vocab // 32), dtype=np.uint64)
        return RowEdits(allowed=words.astype(np.uint32))

    def segment(self, text: Text, count: int, logits: Logits, guess: Guess | None) -> Segment:
        end = text.done + count
        while len(text.pages) * PAGE_SIZE < end + (guess is not None):
            text.pages.append(self.free.pop(self.draw(len(self.free))))
        return Segment(
            np.array(text.tokens[text.done : end], np.int32),
            text.done,
            np.array(text.pages, np.int32),
            logits,
            sequence_id=text.number,
            table_version=text.version,
            edits=text.edits if logits is Logits.LAST else None,
            guess=guess,
        )

    def run(self, segments: list[Segment], texts: list[Text]) -> CandidateRows:
        rows = self.program.run(Batch(tuple(segments)))
        at = 0
        for number, (segment, text) in enumerate(zip(segments, texts, strict=True)):
            count = segment.num_tokens
            if segment.logits is Logits.HIDDEN:
                states = self.program.hidden_states(number)
                assert states.shape == (count, self.head.shape[1])
                found = list(states @ self.head.T)
            else:
                wanted = {Logits.NONE: 0, Logits.LAST: 1, Logits.ALL: count}[segment.logits]
                found = [rows[i].full() for i in range(at, at + wanted)]
                for i in range(at, at + wanted):
                    self.check(rows[i], found[i - at], segment.edits)
                at += wanted
            first = segment.start + count - len(found)
            text.rows |= {first + i: row for i, row in enumerate(found)}
            text.done = segment.start + count
        assert at == len(rows)
        return rows

    def check(self, row: Any, full: NDArray[np.float32], edits: RowEdits | None) -> None:
        """The candidates are the best of the row as it is after the edits."""
        edited = full.copy()
        if edits is not None:
            edits.apply(edited)
        order = np.argsort(-edited, kind="stable")[: len(row.ids)]
        allowed = edited[order] > -np.inf
        assert np.array_equal(row.ids[allowed], order[allowed])
        assert np.array_equal(row.logits[allowed], edited[order][allowed])
        assert (row.logits[~allowed] == -np.inf).all()

    def mixed_step(self) -> None:
        """Anything beside anything."""
        chosen = [t for t in self.live if t.done < len(t.tokens)][:MOST]
        self.random.shuffle(chosen)
        segments, texts, room, logits_left = [], [], 30, 16
        for text in chosen:
            count = min(1 + self.draw(3) * self.draw(14), len(text.tokens) - text.done, room)
            kind = list(Logits)[self.draw(4)]
            if kind is Logits.ALL and count > logits_left:
                kind = Logits.LAST
            if count:
                text.edits = self.make_edits()
                segments.append(self.segment(text, count, kind, None))
                texts.append(text)
                room -= count
                logits_left -= count
        if segments:
            self.run(segments, texts)

    def decode(self, steps: int) -> None:
        """Texts that have been run go on together, with guesses; some leave on the way."""
        texts = [t for t in self.live if t.done == len(t.tokens) and t.done < LENGTH - steps - 1]
        texts = texts[:MOST]
        for text in texts:
            text.edits = self.make_edits()
            text.tokens.append(self.draw(self.vocab))
        for _ in range(steps):
            if not texts:
                return
            guess = Guess(float(self.draw(2)), 20, 0.95, 0.01, float(self.random.random()) * 0.99)
            segments = [
                self.segment(t, 1, Logits.LAST, guess if self.draw(9) else None) for t in texts
            ]
            rows = self.run(segments, texts)
            for i, (text, segment) in enumerate(zip(texts, segments, strict=True)):
                right = self.draw(3) > 0
                token = int(rows[i].ids[0]) if right else self.draw(self.vocab)
                if segment.guess is not None and right:
                    token = self.guessed(text, token)
                text.tokens.append(token)
            pairs = zip(texts, segments, strict=True)
            texts = [t for t, s in pairs if s.guess is not None and self.draw(9)]
            if not self.draw(4):
                self.random.shuffle(texts)
            self.exchange()

    def guessed(self, text: Text, token: int) -> int:
        """What the device chose, if it ran ahead."""
        ahead = self.program._ahead
        if ahead is None:
            return token
        ahead.arrived.wait()
        for segment, row in zip(ahead.batch.segments, ahead.placed.rows, strict=True):
            if segment.sequence_id == text.number:
                return int(ahead.tokens[row])
        return token

    def exchange(self) -> None:
        """A full page for an equal one."""
        full = [t for t in self.live if t.done >= PAGE_SIZE]
        if full and len(self.free) > 6:
            text = full[self.draw(len(full))]
            at = self.draw(text.done // PAGE_SIZE)
            page = self.free.pop(0)
            self.program.copy_page(text.pages[at], page)
            self.free.append(text.pages[at])
            text.pages[at] = page
            text.version += 1


@pytest.fixture(scope="module")
def weights(tiny_gguf: Callable[..., Path]) -> Weights:
    found = Weights.open(GGUFFile.open(tiny_gguf(weights="F32", **{**SIZES, "num_layers": 1})))
    numbers = found.hyperparameters.for_context(128)
    return replace(found, hyperparameters=replace(numbers, context_length=128))


@pytest.mark.parametrize(
    ("cache_type", "seed"),
    [("f32", 1), ("f16", 0), *(pytest.param("f16", n, marks=pytest.mark.slow) for n in (2, 3))],
)
def test_random_batches_equal_the_reference(
    late_device: Any,
    weights: Weights,
    cache_type: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = build_program(
        weights,
        late_device,
        num_pages=PAGES,
        max_tokens=32,
        max_sequences=4,
        forms=Forms(tiles=cache_type == "f16", half=cache_type == "f16"),
        activations="float32",
        cache_type=cache_type,
        context_length=128,
    )
    monkeypatch.setattr(program, "_max_singles", 2 + seed)
    tables: Any = program._tables
    monkeypatch.setattr(tables, "_free", tables._free[-2 * MOST :])
    head = weights.f32("output.weight").reshape(weights.hyperparameters.vocab_size, -1)
    fuzz = Fuzz(program, weights.hyperparameters.vocab_size, head, seed)
    for turn in range(9):
        while len(fuzz.live) < 3 + turn % 3 and len(fuzz.free) > 8:
            fuzz.begin()
        for _ in range(3):
            fuzz.mixed_step()
        fuzz.decode(5)
        for text in list(fuzz.live):
            if len(text.tokens) > LENGTH - 8 or len(fuzz.free) < 9:
                fuzz.end(text)
    program.close()
    seen = 0
    for text in [*fuzz.live, *fuzz.ended]:
        if not text.rows:
            continue
        expected = Reference(weights, keep=True).run(np.array(text.tokens[: text.done], np.int32))
        for position, row in text.rows.items():
            error = np.abs(row - expected[position]).max() / np.abs(expected[position]).max()
            assert error < TOLERANCES[cache_type], (text.number, position, error)
            seen += 1
    assert seen > 60


def test_a_step_that_ran_ahead_on_another_page_is_run_again(
    late_device: Any, weights: Weights
) -> None:
    """A sequence that lost its pages and came back at once has its next token on a new one."""
    program = build_program(
        weights,
        late_device,
        num_pages=4,
        max_tokens=32,
        max_sequences=4,
        forms=Forms(),
        activations="float32",
        cache_type="f32",
        context_length=128,
    )
    ids = np.arange(3, 3 + PAGE_SIZE, dtype=np.int32)
    prompt = Segment(
        ids, 0, np.array([0, 1], np.int32), sequence_id=1, guess=Guess(0.0, 0, 1.0, 0.0, 0.0)
    )
    best = int(program.run(Batch((prompt,)))[0].ids[0])
    token = np.array([best], np.int32)
    further = Segment(token, len(ids), np.array([0, 2], np.int32), sequence_id=1, table_version=1)
    row = program.run(Batch((further,)))[0].full()
    assert any(program.read_page(1)) and any(program.read_page(2))
    expected = Reference(weights, keep=True).run(np.append(ids, token))[-1]
    assert np.abs(row - expected).max() / np.abs(expected).max() < TOLERANCES["f32"]
    program.close()
