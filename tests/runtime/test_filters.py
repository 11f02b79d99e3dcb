"""Each filter and penalty against its slow twin, over random logits with -inf and ties."""

import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llamba.runtime import filters
from llamba.runtime.filters import Candidates
from llamba.runtime.params import SamplingParams
from llamba.runtime.penalties import (
    Breakers,
    breakers_of,
    penalize_repeats,
    penalize_sequences,
)

Logits = NDArray[np.float32]
Tokens = list[tuple[int, float]]
patient = settings(deadline=None)  # the machine may be busy
EPSILON = 2e-4  # float32 against float64: which side of a limit so near to it is not defined


@st.composite
def logits_of(draw: st.DrawFn) -> Logits:
    """A few tokens or thousands; at least one can be chosen."""
    seed = draw(st.integers(0, 2**32 - 1))
    size = draw(st.sampled_from([1, 2, 3, 7, 40, 300, 1500, 5000]))
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, draw(st.sampled_from([0.0, 0.1, 1.0, 4.0])), size).astype(np.float32)
    if draw(st.booleans()):
        logits = (np.round(logits * 4) / 4).astype(np.float32)  # ties
    if draw(st.booleans()):
        logits[rng.random(size) < draw(st.sampled_from([0.1, 0.9]))] = -np.inf
    assume(bool((logits > -np.inf).any()))
    return logits


def tokens(logits: Logits) -> Tokens:
    return list(enumerate(logits.tolist()))


def start(logits: Logits, ordered: bool) -> Candidates:
    whole = Candidates(None, logits)
    return filters.sort(whole) if ordered else whole


def kept(c: Candidates) -> set[int]:
    """The tokens that can still be chosen."""
    ids = np.arange(len(c.logits)) if c.ids is None else c.ids
    assert len(set(ids.tolist())) == len(ids)
    return set(ids[c.logits > -np.inf].tolist())


def can(result: Tokens) -> set[int]:
    return {token for token, logit in result if logit > -math.inf}


def compare(
    fast: Candidates, slow: Callable[[float], Tokens], limit: float, spread: float = EPSILON
) -> None:
    """Equal to the slow twin at this limit, or at one that is nearer than float32 can tell."""
    below, above = can(slow(limit - spread)), can(slow(limit + spread))
    got = kept(fast)
    if below == above:
        assert got == below
    else:
        assert min(below, above, key=len) <= got <= max(below, above, key=len)
    if fast.is_sorted:
        assert (np.diff(fast.logits) <= 0).all()


fraction = st.floats(0.01, 0.99)
keep = st.sampled_from([0, 1, 3, 400])


@patient
@given(logits=logits_of(), k=st.sampled_from([1, 2, 40, 300, 100_000]))
def test_top_k(slow: ModuleType, logits: Logits, k: int) -> None:
    expected = [token for token, _ in slow.top_k(tokens(logits), k)]
    for ordered in (False, True):
        c = filters.top_k(start(logits, ordered), k)
        assert c.ids is not None and c.ids.tolist() == expected  # in order, ties by id
    assert filters.top_k(Candidates(None, logits), 0).ids is None


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("size", [151_936, 262_144, 32_000, 49_152])
def test_top_k_of_a_real_vocabulary(size: int, ties: bool) -> None:
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 3, size).astype(np.float32)
    logits = (np.round(logits * 2) / 2).astype(np.float32) if ties else logits
    expected = np.lexsort((np.arange(size), -logits))
    for k in (1, 40, 1000, 20_000):
        assert (filters.top_indices(logits, k) == expected[:k]).all()
    assert filters.top_indices(np.zeros(size, np.float32), 5).tolist() == [0, 1, 2, 3, 4]


@patient
@given(logits=logits_of(), p=fraction, min_keep=keep, ordered=st.booleans())
def test_top_p(slow: ModuleType, logits: Logits, p: float, min_keep: int, ordered: bool) -> None:
    c = filters.top_p(start(logits, ordered), p, min_keep)
    compare(c, lambda limit: slow.top_p(tokens(logits), limit, min_keep), p)


@patient
@given(logits=logits_of(), p=fraction, min_keep=keep, ordered=st.booleans())
def test_min_p(slow: ModuleType, logits: Logits, p: float, min_keep: int, ordered: bool) -> None:
    c = filters.min_p(start(logits, ordered), p, min_keep)
    compare(c, lambda limit: slow.min_p(tokens(logits), limit, min_keep), p)


@patient
@given(logits=logits_of(), p=fraction, min_keep=keep, ordered=st.booleans())
def test_typical(slow: ModuleType, logits: Logits, p: float, min_keep: int, ordered: bool) -> None:
    c = filters.typical(start(logits, ordered), p, min_keep)
    got, expected = kept(c), can(slow.typical(tokens(logits), p, min_keep))
    if got != expected:  # only among tokens whose surprise is as far from the entropy
        probs = dict(zip(can(tokens(logits)), slow.probs(finite(logits)), strict=True))
        entropy = -sum(q * math.log(q) for q in probs.values() if q > 0)
        far = {t: abs(-math.log(probs[t]) - entropy) for t in got ^ expected}
        assert max(far.values()) - min(far.values()) < 1e-3
        assert abs(sum(probs[t] for t in got) - sum(probs[t] for t in expected)) < 0.02 or (
            abs(len(got) - len(expected)) <= 1
        )


def finite(logits: Logits) -> Tokens:
    return [t for t in tokens(logits) if t[1] > -math.inf]


@patient
@given(logits=logits_of(), n=st.floats(0.05, 4), ordered=st.booleans())
def test_top_n_sigma(slow: ModuleType, logits: Logits, n: float, ordered: bool) -> None:
    assume(float(logits[logits > -np.inf].std()) > 1e-3 or len(set(logits.tolist())) == 1)
    c = filters.top_n_sigma(start(logits, ordered), n)
    compare(c, lambda limit: slow.top_n_sigma(tokens(logits), limit), n, spread=1e-3)


@patient
@given(logits=logits_of(), threshold=st.floats(0.01, 0.6), min_keep=keep, ordered=st.booleans())
def test_xtc(
    slow: ModuleType, logits: Logits, threshold: float, min_keep: int, ordered: bool
) -> None:
    c = filters.xtc(start(logits, ordered), threshold, min_keep)
    compare(c, lambda limit: slow.xtc(tokens(logits), limit, min_keep), threshold)


ids = st.lists(st.integers(0, 6), max_size=40)


@patient
@given(
    history=ids,
    repeat=st.floats(0.5, 2),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    seed=st.integers(0, 99),
)
def test_penalties(
    slow: ModuleType,
    history: list[int],
    repeat: float,
    frequency: float,
    presence: float,
    seed: int,
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, 9).astype(np.float32)
    expected = slow.penalties(tokens(logits), history, repeat, frequency, presence)
    params = SamplingParams(
        repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence
    )
    penalize_repeats(logits, np.array(history, np.int32), params)
    assert logits == pytest.approx([logit for _, logit in expected], abs=1e-4)


@settings(max_examples=400, deadline=None)
@given(
    history=st.lists(st.integers(0, 3), max_size=40) | ids,
    allowed=st.integers(0, 4),
    base=st.sampled_from([1.0, 1.75, 60.0]),
    breakers=st.dictionaries(
        st.integers(0, 6),
        st.lists(st.lists(st.integers(0, 6), max_size=2).map(tuple), min_size=1, max_size=2),
        max_size=2,
    ),
)
def test_dry(
    slow: ModuleType,
    history: list[int],
    allowed: int,
    base: float,
    breakers: dict[int, list[tuple[int, ...]]],
) -> None:
    logits = np.zeros(9, np.float32)
    expected = slow.dry(tokens(logits), history, 0.8, base, allowed, breakers)
    params = SamplingParams(dry_multiplier=0.8, dry_base=base, dry_allowed_length=allowed)
    heads = np.zeros(9, bool)
    heads[list(breakers)] = True
    penalize_sequences(logits, np.array(history, np.int32), params, Breakers(breakers, heads))
    assert logits == pytest.approx([logit for _, logit in expected], rel=1e-5)


class Words:
    """A tokenizer of whole words; encodes with the longest token first."""

    words = [b"a", b"b", b"ab", b"\n", b"x\n", b"xa", b"c", b""]
    vocab_size = len(words)

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id]

    def token_text(self, token_id: int) -> str:
        return "<ctl\n>"

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        assert not add_special
        result = []
        while text:
            best = max((w for w in self.words if w and text.encode().startswith(w)), key=len)
            result.append(self.words.index(best))
            text = text.encode()[len(best) :].decode()
        return result


def test_breakers_of() -> None:
    words = Words()
    found = breakers_of(words, ("\n", "abc"))  # type: ignore[arg-type]
    assert {k: set(v) for k, v in found.tails.items()} == {
        3: {()},
        4: {()},
        7: {()},  # control tokens by their names
        0: {(1, 6)},  # "a" + "bc"
        5: {(1, 6)},
        2: {(6,)},  # "ab" + "c"
    }
    assert np.flatnonzero(found.heads).tolist() == [0, 2, 3, 4, 5, 7]
    assert breakers_of(words, ("\n", "abc")) is found  # type: ignore[arg-type]
