"""Clients of an engine, all in one asyncio loop: what each request met, and what it comes to."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LlambaError
from .workload import Job

if TYPE_CHECKING:
    from ..runtime.llm import LLM


@dataclass
class Outcome:
    """One request: when its tokens came, in seconds after the start of the measurement."""

    job: Job
    due_s: float  # when it was to be sent: waiting from then on counts
    token_s: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    error: str | None = None

    @property
    def done(self) -> bool:
        """Whether it got all of its tokens."""
        return self.error is None and len(self.token_s) == self.job.output_tokens

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_s[0] - self.due_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.token_s[-1] - self.token_s[0]) / (len(self.token_s) - 1)

    @property
    def gaps_s(self) -> list[float]:
        """From each token to the next."""
        return [b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False)]


async def drive(
    llm: "LLM", jobs: Sequence[Job], *, clients: int | None = None, temperature: float = 0.8
) -> list[Outcome]:
    """Send all requests and wait for their ends; outcomes in the order of `jobs`.

    clients: so many at a time, each sends its next request when the last one ended (closed loop).
        None: each at its arrival time, however many run (open loop).
    """
    prompts = [job.prompt_ids(llm.tokenizer.vocab_size) for job in jobs]
    outcomes = [Outcome(job, job.arrival_s) for job in jobs]
    numbers = iter(range(len(jobs)))
    start = time.perf_counter()

    async def send(number: int) -> None:
        await _follow(llm, outcomes[number], prompts[number], temperature, start)

    async def client() -> None:
        for number in numbers:
            outcomes[number].due_s = time.perf_counter() - start
            await send(number)

    async def arrive(number: int) -> None:
        await asyncio.sleep(jobs[number].arrival_s - (time.perf_counter() - start))
        await send(number)

    if clients is None:
        await asyncio.gather(*map(arrive, numbers))
    else:
        await asyncio.gather(*(client() for _ in range(min(clients, len(jobs)))))
    return outcomes


async def _follow(
    llm: "LLM", outcome: Outcome, prompt_ids: list[int], temperature: float, start: float
) -> None:
    """One request to its end. What fails it is noted, and is no reason to end the others."""
    from ..runtime.params import SamplingParams

    job = outcome.job
    params = SamplingParams(
        max_tokens=job.output_tokens, ignore_eos=True, seed=job.seed, temperature=temperature
    )
    try:
        prompt: Any = {"prompt_token_ids": prompt_ids}
        stream = llm.submit(prompt, params, priority=job.priority)
        try:
            async for output in stream:
                now = time.perf_counter() - start
                new = len(output.outputs[0].token_ids) - len(outcome.token_s)
                outcome.token_s += [now] * new
                outcome.cached_tokens = output.metrics.cached_tokens
        finally:
            stream.close()
    except LlambaError as error:
        outcome.error = str(error)
    except Exception as error:  # a step that failed ends the requests in it
        outcome.error = f"{type(error).__name__}: {error}"
    if outcome.error is None and not outcome.done:
        outcome.error = f"ended after {len(outcome.token_s)} of {job.output_tokens} tokens"


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Throughput and latencies of the requests that were done, in seconds and tokens a second."""
    done = [outcome for outcome in outcomes if outcome.done]
    begin = min((outcome.due_s for outcome in outcomes), default=0.0)
    duration = max((o.token_s[-1] for o in outcomes if o.token_s), default=begin) - begin
    prompt_tokens = sum(outcome.job.prompt_tokens for outcome in done)
    output_tokens = sum(outcome.job.output_tokens for outcome in done)
    gaps = [gap for outcome in done for gap in outcome.gaps_s]
    result: dict[str, Any] = {
        "requests_done": len(done),
        "requests_failed": len(outcomes) - len(done),
        "duration_s": duration,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": sum(outcome.cached_tokens for outcome in done),
        "output_tokens": output_tokens,
        "output_ts": output_tokens / duration if duration else 0.0,
        "prompt_ts": prompt_tokens / duration if duration else 0.0,
    }
    for name, values in (
        ("ttft", [outcome.ttft_s for outcome in done]),
        ("tpot", [outcome.tpot_s for outcome in done if len(outcome.token_s) > 1]),
        ("itl", gaps),
    ):
        for percent in (50, 95):
            at = float(np.percentile(values, percent)) if values else None
            result[f"{name}_p{percent}_s"] = at
    result["longest_stall_s"] = max(gaps, default=None)
    return result
