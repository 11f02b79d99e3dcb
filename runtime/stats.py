"""Figures of the engine: of one step, and of all since it was made."""

from dataclasses import dataclass
from typing import NamedTuple


class StepStats(NamedTuple):
    """One step: how long it took and what ran in it."""

    seconds: float  # from scheduling to the last token chosen
    num_decode: int  # tokens of sequences that are being answered
    num_prefill: int  # tokens of prompts, and of sequences that are computed again
    num_sequences: int


@dataclass(slots=True)
class Counters:
    """What the engine counts; it alone changes them."""

    steps: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    cancellations: int = 0
    expirations: int = 0
    failures: int = 0
    finished: int = 0
    last_step: StepStats | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics. The counts only ever grow; the others are the state right now."""

    steps: int
    decode_tokens: int  # run after prefill, one a sequence and step
    prefill_tokens: int  # run of prompts, and again after preemptions
    cached_tokens: int  # of prompts, found in the prefix cache instead
    queried_tokens: int  # of prompts that looked there
    evictions: int  # findable pages that were forgotten because others needed the place
    preemptions: int
    cancellations: int  # requests cancelled
    expirations: int  # requests whose time was up
    failures: int  # requests ended by an error
    finished: int  # requests that came to their own end
    running: int  # sequences that hold pages
    waiting: int  # sequences that do not
    pages_used: int
    pages_cached: int  # held by nobody, but findable by their tokens
    pages_free: int
    last_step: StepStats | None
