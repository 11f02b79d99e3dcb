"""The whole chain against its slow twin, the draws' distribution, seeds, and bad logits."""

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidParameterError, LlambaError
from llamba.runtime.logprobs import top_logprobs
from llamba.runtime.params import SamplingParams
from llamba.runtime.sampler import Sampler, draw

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


class Points:
    """A generator whose numbers are known."""

    def __init__(self, *points: float) -> None:
        self.points = list(points)

    def random(self) -> float:
        return self.points.pop(0)


def slow_chain(
    slow: ModuleType, logits: np.ndarray, p: SamplingParams, prompt: list[int]
) -> dict[int, float]:
    """Each token's probability, by llama.cpp's order; XTC as if its coin always fell."""
    bias = dict(zip(p.bias_ids, p.bias_values, strict=True))
    t = [(i, x + bias.get(i, 0.0)) for i, x in enumerate(logits.tolist())]
    if p.repeat_last_n:
        recent = prompt if p.repeat_last_n < 0 else prompt[-p.repeat_last_n :]
        t = slow.penalties(t, recent, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
    t = slow.top_n_sigma(t, p.top_n_sigma)
    t = slow.top_k(t, p.top_k)
    t = slow.typical(t, p.typical_p, p.min_keep)
    t = slow.top_p(t, p.top_p, p.min_keep)
    t = slow.min_p(t, p.min_p, p.min_keep)
    if p.xtc_probability:
        t = slow.xtc(t, p.xtc_threshold, p.min_keep)
    t = [(i, x / p.temperature) for i, x in t]
    return dict(zip([i for i, _ in t], slow.probs(t), strict=True))


CHAINS: list[dict[str, Any]] = [
    {},
    OFF,
    {"temperature": 1.5, "top_k": 0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.1},
    {"top_k": 0, "top_p": 0.5, "min_p": 0.0, "temperature": 0.3},
    {"typical_p": 0.7},
    {"typical_p": 0.7, "top_k": 0},
    {"top_n_sigma": 1.0, "top_k": 0},
    {"top_n_sigma": 2.0, "top_p": 0.8, "temperature": 2.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05, "min_keep": 3, **OFF},
    {"repeat_penalty": 1.3, "repeat_last_n": 5},
    {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "repeat_last_n": -1},
    {"logit_bias": {3: -100, 4: 5.0, 5: False}},
    {"min_keep": 30, "top_p": 0.1, "min_p": 0.9},
]


@pytest.mark.parametrize("size", [60, 3000])
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_chain(slow: ModuleType, chain: dict[str, Any], size: int) -> None:
    """Evenly spread points hit every token as often as its probability says."""
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 2.5, size).astype(np.float32)
    prompt = rng.integers(0, size, 30).tolist() + [int(logits.argmax())]
    params = SamplingParams(**chain)
    expected = slow_chain(slow, logits, params, prompt)
    count = 2000
    found: dict[int, int] = {}
    for i in range(count):
        sampler = Sampler(params, seed=0, prompt_ids=prompt)
        point = (i + 0.5) / count
        sampler._generator = Points(*[0.0] * bool(params.xtc_probability), point)  # type: ignore[assignment]
        token = sampler.sample(logits)
        found[token] = found.get(token, 0) + 1
    assert found.keys() <= expected.keys()
    for token, probability in expected.items():
        assert found.get(token, 0) == pytest.approx(probability * count, abs=1.1)


def test_dry_in_the_chain() -> None:
    from llamba.runtime.penalties import Breakers

    logits = np.zeros(10, np.float32)
    logits[2] = 1.0
    params = SamplingParams(temperature=0, dry_multiplier=1.0)
    none = Breakers({}, np.zeros(10, bool))
    sampler = Sampler(params, seed=0, prompt_ids=[5, 6, 2, 7, 5, 6], breakers=none)
    assert sampler.sample(logits) == 0  # 2 would prolong "5 6": it costs 1, ties go to the lowest


def test_draws_are_distributed_as_the_probabilities() -> None:
    """Chi-square over 20,000 draws with a fixed seed; 0.999 quantile of 9 degrees of freedom."""
    logits = np.log(np.arange(1, 11, dtype=np.float32) / 55)
    sampler = Sampler(SamplingParams(temperature=1.0, **OFF), seed=1234)
    counts = np.bincount([sampler.sample(logits) for _ in range(20_000)], minlength=10)
    expected = np.arange(1, 11) / 55 * 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 27.88


def test_xtc_probability() -> None:
    logits = np.array([3.0, 2.9, 0.0], np.float32)
    params = SamplingParams(temperature=0, xtc_probability=0.25, **OFF)
    sampler = Sampler(params, seed=5)
    share = np.mean([sampler.sample(logits) == 1 for _ in range(4000)])
    assert share == pytest.approx(0.25, abs=0.03)


def test_seeds() -> None:
    """PAINS P38: the same seed, the same tokens; another seed, others."""
    rows = np.random.default_rng(0).normal(0, 2, (50, 1000)).astype(np.float32)

    def run(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.5), seed=seed)
        np.random.seed(seed + 7)  # global state has no part in it
        return [sampler.sample(row) for row in rows]

    assert run(42) == run(42) != run(43)


def test_greedy() -> None:
    logits = np.array([1, 5, -2, 5, 5], np.float32)
    assert Sampler(SamplingParams(temperature=0), seed=0).sample(logits) == 1
    assert Sampler(SamplingParams(temperature=0, typical_p=0.9), seed=0).sample(logits) == 1
    biased = SamplingParams(temperature=0, logit_bias={1: False, 4: 1})
    before = logits.copy()
    assert Sampler(biased, seed=0).sample(logits) == 4
    assert (logits == before).all()  # a view of the program's memory: never written


def test_repeat_penalty_follows_what_was_sampled() -> None:
    logits = np.array([3.0, 2.9, 2.8], np.float32)
    params = SamplingParams(temperature=0, presence_penalty=0.5, repeat_last_n=2)
    sampler = Sampler(params, seed=0)
    assert [sampler.sample(logits) for _ in range(5)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("chain", [{"temperature": 0}, {}, {"top_k": 0}, {"top_n_sigma": 1}, OFF])
def test_bad_logits_are_an_error(chain: dict[str, Any]) -> None:
    for bad in (math.nan, math.inf):
        logits = np.zeros(2000, np.float32)
        logits[7] = bad
        with pytest.raises(LlambaError, match="no finite numbers"):
            Sampler(SamplingParams(**chain), seed=0).sample(logits)
    with pytest.raises(InvalidParameterError, match="every token is banned"):
        Sampler(SamplingParams(**chain), seed=0).sample(np.full(2000, -np.inf, np.float32))


def test_draw_at_the_edges() -> None:
    weights = np.zeros(5000, np.float32)
    weights[[1500, 4200]] = [1.0, 3.0]
    below_one = np.nextafter(1.0, 0.0)
    assert draw(weights, 0.0) == 1500 and draw(weights, 0.2499) == 1500
    assert draw(weights, 0.25) == 4200 and draw(weights, float(below_one)) == 4200
    assert draw(np.array([0, 1, 0], np.float32), 0.0) == 1
    assert draw(np.array([0, 1, 0], np.float32), float(below_one)) == 1


def test_logprobs(fakes: SimpleNamespace) -> None:
    logits = np.random.default_rng(3).normal(0, 3, fakes.VOCAB).astype(np.float32)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    order = np.argsort(-logits)
    chosen = int(order[9])
    found = top_logprobs(logits, chosen, 5, fakes.Tokenizer())
    assert list(found) == [*order[:5].tolist(), chosen]
    assert [p.rank for p in found.values()] == [1, 2, 3, 4, 5, 10]
    for token, item in found.items():
        assert item.token_id == token and item.logprob == pytest.approx(exact[token], abs=1e-5)
    assert list(top_logprobs(logits, chosen, 0, fakes.Tokenizer())) == [chosen]
    shown = top_logprobs(logits, fakes.EOS, 0, fakes.Tokenizer())[fakes.EOS].decoded_token
    assert shown == "<eos>"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-308, 1e-45, 1e-39, 1e-30])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = np.array([1.0, 3.0, 2.0, -40.0], np.float32)
    sampler = Sampler(SamplingParams(temperature=temperature, **OFF), seed=1)
    assert sampler.sample(logits) == 1
