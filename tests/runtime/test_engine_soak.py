"""EngineCore under load: many requests on few pages, cancels in every state, failures."""

import random
from types import SimpleNamespace

import pytest

from llamba.runtime.sequence import SequenceState


def test_a_thousand_cancels_leave_no_page_used(fakes: SimpleNamespace) -> None:
    """PAINS P61: in every state, with several answers, priorities and shared prefixes."""
    rng = random.Random(7)
    core = fakes.core(fakes.Program(num_pages=16, max_tokens=24, max_logits=8), max_sequences=5)
    live, states, cancels = [], set(), 0
    while cancels < 1000:
        while len(live) < 12:
            prompt = rng.choice("abc") * rng.choice([1, 20, 40, 70]) + rng.choice("xyz")
            request = fakes.request(
                prompt,
                n=rng.choice([1, 1, 1, 2, 3]),
                max_tokens=rng.choice([0, 1, 40, 200]),
                context=16 * 32,
                priority=rng.choice([0, 0, 1]),
                prompt_logprobs=rng.choice([None, None, 1]),
            )
            core.submit(request)
            live.append(request)
        for _ in range(rng.choice([0, 0, 1, 1, 2, 6])):
            core.step()
            core.scheduler.check()
        for request in rng.sample(live, rng.randrange(0, 4)):
            if not request.finished and not request.cancelled:
                states |= {c.sequence.state for c in request.completions}
                core.cancel(request)
                cancels += 1
        core.step()
        assert all(r.finished for r in live if r.cancelled)  # within one step
        live = [r for r in live if not r.finished]
    assert states >= {SequenceState.WAITING, SequenceState.RUNNING, SequenceState.PREEMPTED}
    for request in live:
        core.cancel(request)
    core.step()
    core.scheduler.check()
    stats = core.stats
    assert (stats.pages_used, stats.running, stats.waiting) == (0, 0, 0)
    assert stats.pages_free + stats.pages_cached == 16
    assert stats.cancellations >= 1000 and not stats.failures and not core.has_work


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_more_than_fits_at_once(fakes: SimpleNamespace, prefix_cache: bool) -> None:
    """64 requests of mixed length on 24 pages: all complete, with the same text as alone."""
    rng = random.Random(3)
    core = fakes.core(
        fakes.Program(num_pages=24, max_tokens=64), max_sequences=16, prefix_cache=prefix_cache
    )
    asked = []
    for i in range(64):
        prompt = rng.choice(["shared " * 12, ""]) + f"{i} " * rng.randrange(1, 60)
        params = {
            "max_tokens": rng.randrange(1, 120),
            "context": 24 * 32,
            "temperature": rng.choice([0.0, 1.0]),
            "seed": i,
        }
        request = fakes.request(prompt, priority=i % 3 // 2, **params)
        core.submit(request)
        asked.append((prompt, params, request))
        if i % 4 == 0:
            core.step()
    fakes.drive(core)
    for prompt, params, request in asked:
        assert request.output().outputs == fakes.alone(prompt, **params).outputs
    stats = core.stats
    assert stats.preemptions > 0 and stats.finished == 64 and stats.pages_used == 0
    assert (stats.cached_tokens > 0) == prefix_cache


def test_failures_among_others(fakes: SimpleNamespace) -> None:
    """Steps fail now and then; whoever was not in one of them gets the right answer."""
    rng = random.Random(5)
    program = fakes.Program(num_pages=16, max_tokens=24)
    core = fakes.core(program, max_sequences=4)
    requests = {f"{i} " * rng.randrange(1, 40): None for i in range(60)}

    def before(_: object) -> None:
        if rng.random() < 0.02:
            raise RuntimeError("kernel failed")

    program.before = before
    asked = [(p, fakes.request(p, max_tokens=20, context=16 * 32)) for p in requests]
    fakes.drive(core, *(request for _, request in asked))
    failed = [request for _, request in asked if request.error is not None]
    for prompt, request in asked:
        if request.error is None:
            expected = fakes.alone(prompt, max_tokens=20, context=16 * 32)
            assert request.output().outputs == expected.outputs
    assert 0 < len(failed) < len(asked)
    assert core.stats.failures == len(failed) and core.stats.pages_used == 0
