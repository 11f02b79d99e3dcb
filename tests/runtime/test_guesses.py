"""Running ahead: the answers are those of a plain program, whatever becomes of the guesses."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llamba.runtime.batch import Batch
from llamba.runtime.candidates import Guess
from llamba.runtime.core import EngineCore
from llamba.runtime.outputs import RequestOutput
from llamba.runtime.params import SamplingParams
from llamba.runtime.sampler import Sampler


def spoil_some(seed: int, share: float) -> Callable[[int], int]:
    """Another token in place of a guess, so often."""
    rng = np.random.default_rng(seed)
    return lambda token: (
        (token + 1 + int(rng.integers(255))) % 256 if rng.random() < share else token
    )


def same(found: RequestOutput, expected: RequestOutput) -> None:
    """All that a caller sees; log-probabilities as near as a device's float32."""
    assert found.finished and expected.finished and type(found.error) is type(expected.error)
    for a, b in zip(found.outputs, expected.outputs, strict=True):
        assert (a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason)
        assert (a.stop_reason, a.seed, a.index) == (b.stop_reason, b.seed, b.index)
        assert (a.logprobs is None) == (b.logprobs is None)
        close(a.logprobs or [], b.logprobs or [])
    close(found.prompt_logprobs or [], expected.prompt_logprobs or [])


def close(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if a is None or b is None:
            assert a is b
            continue
        assert list(a) == list(b) and [x.rank for x in a.values()] == [x.rank for x in b.values()]
        values = [x.logprob for x in b.values()]
        assert [x.logprob for x in a.values()] == pytest.approx(values, abs=3e-5)


GUESSED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.9, "seed": 4, "top_k": 0},
    {"temperature": 0.7, "seed": 7, "ignore_eos": True},
    {"temperature": 0.7, "seed": 8, "n": 3},
    {"logprobs": 2, "prompt_logprobs": 70},
    {"stop": ["a", "zz"], "temperature": 1.0, "seed": 11},
    {"stop": ["e"], "temperature": 1.0, "n": 2, "best_of": 3, "seed": 12},
    {"logit_bias": {65: 3.0}, "temperature": 0.6, "seed": 12},
]
OTHERS: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.2, "seed": 6, "repeat_penalty": 1.2, "logprobs": 3},
    {"temperature": 0.7, "seed": 7, "ignore_eos": True, "logprobs": 0},
    {"temperature": 1.0, "seed": 9, "n": 2, "best_of": 4, "xtc_probability": 0.5},
    {"dry_multiplier": 1.0, "temperature": 0.8, "seed": 13},
    {"max_tokens": 1},
]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("pages", [12, 200])
def test_any_mix_of_requests(
    device: ModuleType, fakes: SimpleNamespace, share: float, pages: int
) -> None:
    """Common prefixes, preemptions (with few pages), cancellations, guesses right and wrong."""
    rng = np.random.default_rng(int(share * 10) + pages)
    preemptions = used = edited = 0
    for turn in range(6):
        inner = fakes.Program(num_pages=pages, max_tokens=24)
        program = device.DeviceProgram(inner, spoil_some(turn, share))
        core = fakes.core(program, max_sequences=int(rng.integers(2, 9)))
        asked = []
        for _ in range(int(rng.integers(4, 12))):
            kinds = GUESSED if turn % 2 else GUESSED + OTHERS
            settings = {"max_tokens": int(rng.integers(2, 90))}
            settings |= kinds[int(rng.integers(len(kinds)))]
            prompt = "shared beginning of some prompts " * int(rng.integers(0, 3))
            prompt += chr(97 + int(rng.integers(26)))
            asked.append((prompt, settings, fakes.request(prompt, context=200, **settings)))
        left = [request for _, _, request in asked]
        cancelled = []
        while left or core.has_work:
            if left and rng.random() < 0.3:
                core.submit(left.pop())
            if rng.random() < 0.01:
                cancelled.append(asked[int(rng.integers(len(asked)))][2])
                core.cancel(cancelled[-1])
            core.step()
            core.scheduler.check()
        for prompt, settings, request in asked:
            expected, found = fakes.alone(prompt, **settings), request.output()
            if request not in cancelled:
                same(found, expected)
            elif settings.get("best_of") is None:
                for a, b in zip(found.outputs, expected.outputs, strict=True):
                    assert a.token_ids == b.token_ids[: len(a.token_ids)]
        assert core.stats.pages_used == 0
        preemptions += core.stats.preemptions
        used, edited = used + program.num_used, edited + program.num_edited
    assert edited and (preemptions or pages == 200)
    assert bool(used) == (share < 1.0)


def ran_ahead(
    device: ModuleType, fakes: SimpleNamespace, *requests: Any, **options: Any
) -> tuple[Any, EngineCore]:
    """The program after it answered these."""
    program = device.DeviceProgram(fakes.Program(num_pages=64, max_tokens=512))
    core = fakes.core(program, **options)
    fakes.drive(core, *requests)
    return program, core


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.8},
        {"temperature": 0.8, "ignore_eos": True, "logit_bias": {7: 1.0}},
        {"temperature": 0.8, "top_k": 0, "logprobs": 5},
        {"temperature": 0.8, "top_k": 100, "top_p": 1.0, "min_p": 0.2},
    ],
    ids=str,
)
def test_right_guesses_are_used(
    device: ModuleType, fakes: SimpleNamespace, settings: dict[str, Any]
) -> None:
    """All steps but the prompts' have run ahead, across the pages' ends too."""
    requests = [fakes.request(p, max_tokens=70, **settings) for p in ("ab", "cde", "f" * 30)]
    program, core = ran_ahead(device, fakes, *requests)
    assert core.stats.steps == 70
    assert program.num_ahead >= 69 and program.num_used >= 67


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 0, "top_p": 1.0},  # the draw goes by ids
        {"top_n_sigma": 1.0},
        {"typical_p": 0.9},
        {"xtc_probability": 0.5},
        {"repeat_penalty": 1.1},
        {"dry_multiplier": 1.0},
        {"min_keep": 2},
        {"logprobs": 65},
        {"logit_bias": {7: 1.0}, "logprobs": 1},
    ],
    ids=str,
)
def test_no_guess_where_none_would_do(
    device: ModuleType, fakes: SimpleNamespace, settings: dict[str, Any]
) -> None:
    """Nor does anybody else's, who runs in the same step."""
    assert (
        Sampler.for_request(
            SamplingParams(**settings), fakes.Tokenizer(), seed=0, prompt_ids=[1]
        ).guess()
        is None
    )
    slow = fakes.request("ab", max_tokens=9, **{"temperature": 0.8, **settings})
    program, _ = ran_ahead(device, fakes, slow, fakes.request("cd", max_tokens=9))
    assert program.num_ahead == 0


def test_a_guess_keeps_its_point() -> None:
    sampler = Sampler(SamplingParams(top_p=0.9, seed=1), seed=1)
    guess = sampler.guess()
    assert guess == Guess(0.8, 40, 0.9, 0.05, np.random.Generator(np.random.PCG64(1)).random())
    assert sampler.guess() == guess
    sampler.sample(np.zeros(9, np.float32))
    later = sampler.guess()
    assert later is not None and guess is not None and later.point != guess.point
    assert Sampler(SamplingParams(temperature=0), seed=1).guess() == Guess(0.0, 1, 1.0, 0.0, 0.0)


def test_an_end_by_surprise_leaves_a_subset(device: ModuleType, fakes: SimpleNamespace) -> None:
    """What ran ahead for the others is used all the same."""
    prompts = ("ab", "cde", "f" * 30)
    whole = [fakes.alone(p, max_tokens=40).outputs[0].token_ids for p in prompts]
    stops = [{"stop_token_ids": [whole[0][9]]}, {"stop_token_ids": [whole[1][20]]}, {}]
    requests = [fakes.request(p, max_tokens=40, **s) for p, s in zip(prompts, stops, strict=True)]
    program, core = ran_ahead(device, fakes, *requests)
    ends = sorted(r.num_new_tokens for r in requests)
    assert ends[2] == 40 and program.num_used >= 38
    assert program.num_subsets == len({*ends} - {40}) > 0
    for request, prompt, stop in zip(requests, prompts, stops, strict=True):
        same(request.output(), fakes.alone(prompt, max_tokens=40, **stop))


def test_a_cancelled_one_leaves_a_subset(device: ModuleType, fakes: SimpleNamespace) -> None:
    program = device.DeviceProgram(fakes.Program())
    core = fakes.core(program)
    first, second = (fakes.request(p, max_tokens=30) for p in ("a", "b"))
    core.submit(first)
    core.submit(second)
    for _ in range(5):
        core.step()
    core.cancel(first)
    fakes.drive(core)
    assert program.num_subsets == 1
    same(second.output(), fakes.alone("b", max_tokens=30))


def guesses_of(core: EngineCore, program: Any) -> list[list[bool]]:
    """Which segments of the steps had one, until nothing is left."""
    seen = []

    def note(batch: Batch) -> None:
        if batch.segments[0].guess is not None or batch.segments[0].sequence_id >= 0:
            seen.append([s.guess is not None for s in batch.segments])

    class Noting:
        gives_candidates = True

        def __getattr__(self, name: str) -> Any:
            return getattr(program, name)

        def run(self, batch: Batch) -> Any:
            note(batch)
            return program.run(batch)

    core.program = Noting()  # type: ignore[assignment]
    while core.has_work:
        core.step()
    return seen


def test_who_ends_has_no_guess(device: ModuleType, fakes: SimpleNamespace) -> None:
    program = device.DeviceProgram(fakes.Program())
    core = fakes.core(program)
    for count in (2, 4):
        core.submit(fakes.request("a" * count, max_tokens=count))
    assert guesses_of(core, program) == [[True, True], [False, True], [True], [False]]


def test_no_guess_while_somebody_waits_for_a_place(
    device: ModuleType, fakes: SimpleNamespace
) -> None:
    """One that runs in a full house is guessed; not in a step after which a place is free."""
    program = device.DeviceProgram(fakes.Program())
    core = fakes.core(program, max_sequences=1)
    for prompt in ("a", "b"):
        core.submit(fakes.request(prompt, max_tokens=3))
    assert guesses_of(core, program) == [[True], [True], [False]] * 2


def test_no_guess_beside_a_prompt(device: ModuleType, fakes: SimpleNamespace) -> None:
    program = device.DeviceProgram(fakes.Program(max_tokens=16))
    core = fakes.core(program)
    core.submit(fakes.request("a", max_tokens=6))
    core.step()
    core.submit(fakes.request("b" * 30, max_tokens=2))
    seen = guesses_of(core, program)
    assert seen[0] == [False, False] and seen[-1] == [False]
    assert [True, True] in seen or [True, False] in seen or [False, True] in seen


def test_no_guess_without_a_page_for_it(device: ModuleType, fakes: SimpleNamespace) -> None:
    """The last page is full and there is no other: the next step preempts somebody."""
    program = device.DeviceProgram(fakes.Program(num_pages=3))
    core = fakes.core(program, prefix_cache=False)
    requests = [fakes.request("x" * 29, max_tokens=9, context=60) for _ in range(2)]
    outputs = fakes.drive(core, *requests)
    assert core.stats.preemptions
    for output in outputs:
        same(output, fakes.alone("x" * 29, max_tokens=9))


def test_a_failing_step_forgets_what_ran_ahead(device: ModuleType, fakes: SimpleNamespace) -> None:
    inner = fakes.Program()
    core = fakes.core(device.DeviceProgram(inner))
    first = fakes.request("ab", max_tokens=9)
    core.submit(first)
    core.step()
    inner.before = lambda batch: 1 / 0
    while core.has_work:
        core.step()
    assert isinstance(first.error, ZeroDivisionError)
    inner.before = None
    [output] = fakes.drive(core, fakes.request("ab", max_tokens=9))
    same(output, fakes.alone("ab", max_tokens=9))
