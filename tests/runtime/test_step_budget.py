"""StepBudget over machines that are formulas: it meets the time, and follows what changes."""

from collections.abc import Callable

import pytest

from llamba.runtime.step_budget import StepBudget

# seconds of a step: (decoding sequences, prompt tokens, depth) -> seconds
Machine = Callable[[int, int, int], float]


def blocks(decode: int, prefill: int) -> int:
    return -(-(decode + prefill) // 16)


def laptop(decode: int, prefill: int, depth: int) -> float:
    """Memory-bound decode; a step with a prompt costs whole blocks, attention grows with depth."""
    if not prefill:
        return 0.016 + 0.001 * decode
    return 0.008 + blocks(decode, prefill) * (0.014 + 2e-6 * depth)


def server(decode: int, prefill: int, depth: int) -> float:
    return 0.003 + 0.0002 * decode + blocks(decode, prefill) * (4e-4 + 1e-8 * depth)


def hopeless(decode: int, prefill: int, depth: int) -> float:
    return 2.0 * decode + 1.0 * blocks(decode, prefill)


def busy(decode: int, prefill: int, depth: int) -> float:
    return 2 * laptop(decode, prefill, depth)


def prefill_run(
    budget: StepBudget, machine: Machine, *, decode: int, length: int
) -> list[tuple[int, float]]:
    """A prompt beside sequences that decode: (tokens, seconds) of its steps."""
    steps, depth = [], 0
    while depth < length:
        tokens = budget.prefill_tokens(num_decode=decode)
        assert (tokens + decode) % 16 == 0 and 1 <= tokens <= 512
        tokens = min(tokens, length - depth)
        depth += tokens
        seconds = machine(decode, tokens, depth)
        budget.observe(seconds, num_decode=decode, num_prefill=tokens, depth=depth)
        steps.append((tokens, seconds))
    return steps


def decode_run(budget: StepBudget, machine: Machine, *, decode: int, count: int = 20) -> None:
    for _ in range(count):
        budget.observe(machine(decode, 0, 0), num_decode=decode, num_prefill=0, depth=0)


@pytest.mark.parametrize("decode", [1, 4, 15, 16, 20])
@pytest.mark.parametrize("alone_first", [False, True])
@pytest.mark.parametrize("machine", [laptop, server])
def test_a_step_takes_about_twice_the_time(
    machine: Machine, alone_first: bool, decode: int
) -> None:
    budget = StepBudget(512)
    steps: list[tuple[int, float]] = []
    seconds: list[float] = []
    if alone_first:
        budget.observe(machine(0, 512, 512), num_decode=0, num_prefill=512, depth=512)
    decode_run(budget, machine, decode=decode)
    allowed = max(2.2 * machine(decode, 0, 0), 0.025, machine(decode, 1, 4000))
    for _ in range(3):
        steps = prefill_run(budget, machine, decode=decode, length=4000)
        seconds = sorted(s for _, s in steps)
        assert seconds[int(0.95 * len(seconds))] <= 1.15 * allowed
        assert max(seconds) <= 2 * allowed
    # And it uses what is allowed: not less than half of what one more block would cost.
    block = machine(decode, 500, 4000) - machine(decode, 484, 4000)
    most = max(tokens for tokens, _ in steps)
    assert most + decode >= 480 or sum(seconds) / len(seconds) > allowed - 1.6 * block


def test_alone_a_prompt_gets_everything() -> None:
    budget = StepBudget(512)
    assert budget.prefill_tokens(num_decode=0) == 512
    decode_run(budget, laptop, decode=2)
    assert budget.prefill_tokens(num_decode=0) == 512
    assert StepBudget(100).prefill_tokens(num_decode=0) == 100


def test_a_hopeless_machine_still_moves_on() -> None:
    budget = StepBudget(512)
    decode_run(budget, hopeless, decode=1)
    steps = prefill_run(budget, hopeless, decode=1, length=500)
    assert steps[-2][0] >= 15 and steps[-2][1] <= 2.2 * hopeless(1, 0, 0)


def test_it_follows_a_change_of_speed() -> None:
    budget = StepBudget(512)
    decode_run(budget, laptop, decode=4)
    before = prefill_run(budget, laptop, decode=4, length=2000)[-2][0]
    decode_run(budget, busy, decode=4)
    steps = prefill_run(budget, busy, decode=4, length=2000)
    assert steps[-2][1] <= 1.2 * 2.2 * busy(4, 0, 0)
    assert abs(steps[-2][0] - before) <= 16


def test_one_interrupted_step_does_not_open_the_gates() -> None:
    budget = StepBudget(512)
    decode_run(budget, laptop, decode=4)
    prefill_run(budget, laptop, decode=4, length=2000)
    budget.observe(3.0, num_decode=4, num_prefill=0, depth=0)
    tokens = budget.prefill_tokens(num_decode=4)
    assert laptop(4, tokens, 2000) <= 3.5 * laptop(4, 0, 0)
