"""From a row's best tokens comes the token that the whole row gives, or the row is asked for."""

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import ConstraintError, InvalidParameterError, LlambaError
from llamba.runtime.candidates import CandidateRow, CandidateRows, RowEdits, on_host
from llamba.runtime.logprobs import token_logprob, top_logprobs
from llamba.runtime.params import SamplingParams
from llamba.runtime.penalties import Breakers
from llamba.runtime.perplexity import token_losses
from llamba.runtime.row_groups import choose_tokens
from llamba.runtime.sampler import Sampler

SIZES = (40, 64, 300, 1500, 5000)
BREAKERS = Breakers({7: [()]}, np.arange(5000) == 7)


class Masks:
    """A constraint that allows whatever it was drawn, another mask for each token."""

    def __init__(self, seed: int, size: int, share: float) -> None:
        self.rng, self.size, self.share = np.random.default_rng(seed), size, share
        self.finished, self.tokens = False, []
        self.accept(-1)

    def accept(self, token_id: int) -> None:
        self.tokens.append(token_id)
        bits = self.rng.random(self.size) < self.share
        bits[self.rng.integers(self.size)] = True
        packed = np.packbits(bits, bitorder="little")
        self.mask = np.zeros(-(-self.size // 32) * 4, np.uint8)
        self.mask[: len(packed)] = packed

    def allowed(self) -> NDArray[np.uint32]:
        return self.mask.view(np.uint32)


def draw_rows(rng: np.random.Generator, size: int, count: int) -> NDArray[np.float32]:
    """Peaked, flat, with ties, with tokens that can't be chosen."""
    scale = rng.choice([0.05, 1.0, 3.0, 8.0])
    rows = rng.normal(0, scale, (count, size)).astype(np.float32)
    if rng.random() < 0.3:
        rows = (np.round(rows * 2) / 2).astype(np.float32)
    if rng.random() < 0.2:
        rows[rng.random(rows.shape) < rng.choice([0.2, 0.97])] = -np.inf
        rows[:, rng.integers(size)] = 1.0
    return rows


def draw_settings(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Any combination of what the chain knows; each filter is off as often as not."""

    def pick(off: float, *others: float) -> Any:
        return off if rng.random() < 0.5 else others[rng.integers(len(others))]

    chosen: dict[str, Any] = {
        "temperature": pick(0.8, 0.0, 1e-40, 0.3, 1.0, 2.0),
        "top_k": pick(40, 0, 0, 1, 5, 64, 65, 100, 2000),
        "top_p": pick(1.0, 0.95, 0.95, 0.5, 0.999),
        "min_p": pick(0.05, 0.0, 0.3, 1.0),
        "min_keep": pick(0, 1, 3, 70) if rng.random() < 0.3 else 0,
    }
    if rng.random() < 0.1:
        chosen["typical_p"] = 0.7
    if rng.random() < 0.1:
        chosen["top_n_sigma"] = 1.5
    if rng.random() < 0.2:
        chosen |= {"xtc_probability": 0.5, "xtc_threshold": 0.1}
    if rng.random() < 0.2:
        chosen |= {"repeat_penalty": 1.3, "presence_penalty": 0.1, "frequency_penalty": 0.07}
    if rng.random() < 0.2:
        chosen |= {"dry_multiplier": 0.8, "dry_allowed_length": 1}
    if rng.random() < 0.2:
        ids = rng.choice(size, 3, replace=False).tolist()
        chosen["logit_bias"] = dict(zip(ids, [-100, 1.7, -0.3], strict=True))
    return chosen


def make_pair(rng: np.random.Generator, settings: dict[str, Any], size: int) -> list[Sampler]:
    """Two samplers that know nothing of each other but are equal."""
    share, seed = rng.choice([0.0, 0.001, 0.1, 0.9]), int(rng.integers(1000))
    constrained = rng.random() < 0.2
    prompt = rng.integers(0, 12, 30).tolist()
    banned = [3] if rng.random() < 0.2 else []
    return [
        Sampler(
            SamplingParams(**settings),
            seed=seed,
            prompt_ids=prompt,
            banned_ids=banned,
            breakers=BREAKERS,
            constraint=Masks(seed, size, share) if constrained else None,  # type: ignore[arg-type]
        )
        for _ in range(2)
    ]


def edited_row(device: ModuleType, row: NDArray[np.float32], sampler: Sampler) -> CandidateRow:
    """What a device gives after the sampler's edits."""
    edits, edited = sampler.edits(), row.copy()
    if edits is not None:
        edits.apply(edited)
    return device.candidates(row[None], edited[None])[0]


@pytest.mark.parametrize("part", range(6))
def test_the_same_tokens_as_from_whole_rows(device: ModuleType, part: int) -> None:
    """Random rows and settings, with every edit; guesses taken or not."""
    rng = np.random.default_rng(part)
    for _ in range(250):
        size = int(rng.choice(SIZES))
        settings = draw_settings(rng, size)
        whole, best = make_pair(rng, settings, size)
        for row in draw_rows(rng, size, 6):
            try:
                expected = whole.sample(row)
            except LlambaError as error:
                with pytest.raises(type(error), match=str(error)[:40]):
                    best.sample(edited_row(device, row, best))
                break
            candidates = edited_row(device, row, best)
            if rng.random() < 0.5:
                best.guess()
            assert best.sample(candidates) == expected, settings
        point = best.guess()
        if point is not None and point.temperature:
            assert whole._generator.random() == point.point
        else:
            assert whole._generator.random() == best._generator.random()


@pytest.mark.parametrize("count", [1, 3, 9, 40])
def test_many_rows_at_once(device: ModuleType, count: int) -> None:
    """Rows of several settings in one batch; what is left over is for sample()."""
    rng = np.random.default_rng(count)
    for _ in range(60 // count + 20):
        size = int(rng.choice(SIZES))
        kinds = [draw_settings(rng, size) for _ in range(4)]
        pairs = [make_pair(rng, kinds[int(rng.integers(4))], size) for _ in range(count)]
        rows = np.concatenate([draw_rows(rng, size, 1) for _ in range(count)])
        if rng.random() < 0.2:
            rows[rng.integers(count), rng.integers(size)] = math.nan
        edited = rows.copy()
        places = rng.permutation(count).tolist()
        for place, (_, best) in zip(places, pairs, strict=True):
            edits = best.edits()
            if edits is not None:
                edits.apply(edited[place])
        candidates = device.candidates(rows, edited)
        tokens = choose_tokens(candidates, places, [best for _, best in pairs])
        for token, place, (whole, best) in zip(tokens, places, pairs, strict=True):
            if token is None:
                try:
                    token = best.sample(candidates[place])
                except LlambaError as error:
                    with pytest.raises(type(error)):
                        whole.sample(rows[place])
                    continue
            else:
                best.chose(token)
            assert token == whole.sample(rows[place])
            assert whole.random() == best.random()


def test_ordinary_rows_are_chosen_at_once(device: ModuleType) -> None:
    rows = np.random.default_rng(0).normal(0, 2, (8, 900)).astype(np.float32)
    samplers = [Sampler(SamplingParams(temperature=i % 3 / 2), seed=i) for i in range(8)]
    assert None not in choose_tokens(device.candidates(rows), range(8), samplers)


class Counted(CandidateRow):
    """Says how often the row was asked for."""

    fetched = 0

    def full(self) -> NDArray[np.float32]:
        self.fetched += 1
        return super().full()


CHEAP: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0, "top_n_sigma": 1.0, "top_k": 0},
    {"typical_p": 0.8, "top_k": 64},
    {"xtc_probability": 0.7},
    {"top_k": 0, "top_p": 0.9, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.05},
    {"top_k": 200, "top_p": 0.9, "min_p": 0.0},
    {"repeat_penalty": 1.2, "logit_bias": {3: -100}},
    {"dry_multiplier": 1.0, "logit_bias": {3: 1.0}},
]
DEAR: list[dict[str, Any]] = [
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_n_sigma": 1.0},
    {"top_k": 0, "typical_p": 0.8},
    {"top_k": 65, "top_p": 1.0, "min_p": 0.0},
    {"min_keep": 65, "top_k": 0},
]


@pytest.mark.parametrize("settings", [*CHEAP, *DEAR], ids=str)
def test_rows_come_only_where_they_must(device: ModuleType, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    row = rng.normal(0, 2, 3000).astype(np.float32)
    row[rng.integers(0, 3000, 6)] += 12
    sampler = Sampler(SamplingParams(**settings), seed=0, prompt_ids=[1, 2, 9], breakers=BREAKERS)
    candidates = edited_row(device, row, sampler)
    counted = Counted(
        candidates.ids, candidates.logits, candidates.log_norm, True, lambda *_: row.copy()
    )
    sampler.sample(counted)
    assert counted.fetched == (settings in DEAR)


def test_a_flat_row_is_asked_for(device: ModuleType) -> None:
    """What min_p and top_p leave reaches beyond the candidates."""
    row = np.zeros(500, np.float32)
    chains: list[dict[str, Any]] = [
        {"top_k": 0, "top_p": 1.0},
        {"top_k": 0, "min_p": 0.0},
        {"top_k": 100},
    ]
    for settings in chains:
        for seed in range(50):
            whole, best = (Sampler(SamplingParams(**settings), seed=seed) for _ in range(2))
            assert best.sample(device.candidates(row[None])[0]) == whole.sample(row)


def test_a_cut_that_rounding_decides_is_left_to_the_row(device: ModuleType) -> None:
    row = np.full(1000, -30, np.float32)
    row[:2] = math.log(0.9), math.log(0.1)
    sampler = Sampler(SamplingParams(top_k=0, top_p=0.9, temperature=1.0), seed=0)
    candidates = device.candidates(row[None])[0]
    counted = Counted(
        candidates.ids, candidates.logits, candidates.log_norm, True, lambda *_: row.copy()
    )
    sampler.sample(counted)
    assert counted.fetched == 1


def test_without_its_edits_a_row_is_asked_for(device: ModuleType) -> None:
    """Rows of several tokens of a prompt come as the model made them."""
    row = np.array([1, 5, 2, 3], np.float32)
    sampler = Sampler(SamplingParams(temperature=0, logit_bias={1: -100}), seed=0)
    assert sampler.sample(device.candidates(row[None])[0]) == 3
    assert sampler.sample(edited_row(device, row, sampler)) == 3
    assert sampler.sample(device.candidates(row[None])[0]) == 3  # what was given is used up


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_k": 0, "top_p": 0.5}])
def test_bad_rows_are_the_same_errors(device: ModuleType, settings: dict[str, Any]) -> None:
    for bad in (math.nan, math.inf):
        row = np.zeros(900, np.float32)
        row[700] = bad
        with pytest.raises(LlambaError, match="no finite numbers"):
            Sampler(SamplingParams(**settings), seed=0).sample(device.candidates(row[None])[0])
    banned = np.full((1, 900), -np.inf, np.float32)
    with pytest.raises(InvalidParameterError, match="every token is banned"):
        Sampler(SamplingParams(**settings), seed=0).sample(device.candidates(banned)[0])


def test_errors_of_a_constraint_come_when_a_token_is_chosen(device: ModuleType) -> None:
    class Stuck(Masks):
        def allowed(self) -> NDArray[np.uint32]:
            raise ConstraintError("too complex")

    row = np.zeros(900, np.float32)
    stuck: Any = Stuck(0, 900, 0.5)
    sampler = Sampler(SamplingParams(), seed=0, constraint=stuck)
    candidates = edited_row(device, row, sampler)
    with pytest.raises(ConstraintError, match="too complex"):
        sampler.sample(candidates)
    nothing: Any = Masks(0, 900, 0.5)
    nothing.mask[:] = 0
    sampler = Sampler(SamplingParams(), seed=0, constraint=nothing)
    with pytest.raises(ConstraintError, match="no token may follow"):
        sampler.sample(edited_row(device, row, sampler))


def test_edits() -> None:
    """Static ones stay the same object; penalties follow what was written."""
    assert Sampler(SamplingParams(), seed=0).edits() is None
    sampler = Sampler(SamplingParams(logit_bias={4: 2.0, 9: -1.0}), seed=0, banned_ids=[9, 5])
    edits = sampler.edits()
    assert edits is not None and edits is sampler.edits()
    assert dict(zip(edits.bias_ids.tolist(), edits.bias.tolist(), strict=True)) == {
        4: 2.0,
        9: -math.inf,
        5: -math.inf,
    }
    sampler = Sampler(
        SamplingParams(repeat_penalty=1.5, repeat_last_n=4), seed=0, prompt_ids=[8, 8]
    )
    sampler.chose(6)
    edits = sampler.edits()
    assert edits is not None and edits.repeat_penalty == 1.5
    assert (edits.repeat_ids.tolist(), edits.counts.tolist()) == ([6, 8], [1, 2])
    row = np.array([1] * 6 + [3, 1, -2], np.float32)
    edits.apply(row)
    assert row.tolist() == [1] * 6 + [2, 1, -3]
    mask = RowEdits(allowed=np.array([5], np.uint32))
    mask.apply(row)
    assert np.flatnonzero(row > -np.inf).tolist() == [0, 2]


def test_whole_rows_need_no_edits() -> None:
    """A mask that nobody will use is not computed."""
    constraint: Any = Masks(0, 900, 0.5)
    params = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)
    assert Sampler(params, seed=0, constraint=constraint).edits() is None


def test_rows_and_slices(device: ModuleType) -> None:
    rows = np.random.default_rng(0).normal(0, 1, (5, 100)).astype(np.float32)
    all_rows = device.candidates(rows)
    part = all_rows[1:4]
    assert (len(all_rows), len(part), len(part[1:1]), len(all_rows[3:9])) == (5, 3, 0, 2)
    for row, number in ((part[0], 1), (part[-1], 3), (part[1:][1], 3), (all_rows[-1], 4)):
        assert (row.full() == rows[number]).all() and row.full() is row.full()
        assert row.ids[0] == rows[number].argmax() and row.logits[0] == rows[number].max()


def test_logprobs(device: ModuleType, fakes: SimpleNamespace) -> None:
    """Of the candidates as far as they reach, else of the row."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, fakes.VOCAB).astype(np.float32)
    logits[rng.choice(fakes.VOCAB, 30)] = logits.max() - 1  # ties among the best
    row = device.candidates(logits[None])[0]
    order = np.argsort(-logits, kind="stable").tolist()
    for chosen in (order[0], order[9], order[25], order[63], order[64], order[-1]):
        for count in (0, 1, 5, 30, 64, 65, 100):
            expected = top_logprobs(logits, chosen, count, fakes.Tokenizer())
            found = top_logprobs(row, chosen, count, fakes.Tokenizer())
            assert list(found) == list(expected)
            for token, item in found.items():
                assert item.rank == expected[token].rank
                assert item.decoded_token == expected[token].decoded_token
                assert item.logprob == pytest.approx(expected[token].logprob, abs=2e-5)
            one = token_logprob(row, chosen)
            assert one == pytest.approx(token_logprob(logits, chosen), abs=2e-5)


def test_losses_of_rows_on_a_device(device: ModuleType) -> None:
    """Of a slice too; only what isn't among the candidates is brought, and whole rows never."""
    rng = np.random.default_rng(3)
    rows = rng.normal(0, 3, (9, 700)).astype(np.float32)
    rows[6, 5], rows[7, 5] = np.nan, np.inf
    targets = rng.integers(0, 700, 9)
    targets[:3] = rows[:3].argmax(1)
    given, asked = device.candidates(rows), []

    def fetch(number: int, token: int | None = None) -> NDArray[np.float32]:
        assert token is not None
        asked.append((number, token))
        return rows[number, token : token + 1]

    found = CandidateRows(given.ids, given.logits, given.log_norm, given.finite, fetch)
    exact = rows.astype(np.float64)
    highest = exact.max(1)
    with np.errstate(invalid="ignore"):
        norms = highest + np.log(np.exp(exact - highest[:, None]).sum(1))
        expected = norms - exact[np.arange(9), targets]
    assert np.isnan(expected[6:8]).all()
    np.testing.assert_allclose(token_losses(found, targets), expected, atol=2e-6)
    missing = [i for i in range(9) if targets[i] not in given.ids[i]]
    assert set(missing) >= {3, 4} and asked == [(i, targets[i]) for i in missing]
    np.testing.assert_allclose(found[4:9][:2].losses(targets[4:6]), expected[4:6], atol=2e-6)
    np.testing.assert_array_equal(on_host(given[2:5]), rows[2:5])
    assert on_host(rows) is rows
