"""Workloads of `llamba bench`: which requests come when, and the tokens they are made of."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InvalidParameterError

MAX_TOKENS = 1 << 24
MAX_REQUESTS = 100_000
_MAX_BYTES = 1 << 25
_MAX_ARRIVAL_S = 1_000_000
_OWN, _PREFIX = 0, 1  # generators apart, so that no prompt begins like a prefix by its seed


@dataclass(frozen=True, slots=True)
class Job:
    """One request to come. Its lengths are exact: the end of the answer is ignored."""

    prompt_tokens: int  # the prefix included
    output_tokens: int
    arrival_s: float = 0.0  # after the start
    prefix: str | None = None  # name of what it shares with others
    prefix_tokens: int = 0
    priority: int = 0  # 0 interactive, 1 background
    seed: int = 0  # of the prompt's own tokens and of the sampler
    origin: str = field(default="", compare=False)  # where it was written, for messages

    def prompt_ids(self, vocab_size: int) -> list[int]:
        """Random tokens: those of the prefix by its name, then its own by its seed."""
        import numpy as np

        shared = np.random.default_rng([_PREFIX, *(self.prefix or "").encode()])
        own = np.random.default_rng([_OWN, self.seed])
        first = shared.integers(0, vocab_size, self.prefix_tokens)
        rest = own.integers(0, vocab_size, self.prompt_tokens - self.prefix_tokens)
        return [*first.tolist(), *rest.tolist()]


def uniform(
    count: int, *, prompt_tokens: int, output_tokens: int, shared_prefix: int = 0, seed: int = 0
) -> list[Job]:
    """Requests that differ only in their tokens; the first `shared_prefix` of those are common."""
    prefix = "shared" if shared_prefix else None
    return [
        Job(prompt_tokens, output_tokens, 0.0, prefix, shared_prefix, seed=seed + i)
        for i in range(count)
    ]


def read_workload(file: Path) -> list[Job]:
    """The requests of a JSONL file in the order of their arrival.

    A line is an object with the fields of Job: arrival_s, prompt_tokens and output_tokens, and as
    one likes prefix with prefix_tokens, priority, seed [the line's number]. Empty lines are left
    out. Raises InvalidParameterError naming the file, the line and the field.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)  # it may be a device that never ends
        if len(data) > _MAX_BYTES:
            raise InvalidParameterError(f"--workload {file}: it has more than {_MAX_BYTES:,} bytes")
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror
        raise InvalidParameterError(f"--workload {file}: {why}") from error
    jobs = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                jobs.append(_parse(line, file, number))
            except ValueError as error:
                raise InvalidParameterError(f"{file}, line {number}: {error}") from None
    if not jobs:
        raise InvalidParameterError(f"{file}: no requests: write one JSON object a line")
    return sorted(jobs, key=lambda job: job.arrival_s)


def _parse(line: str, file: Path, number: int) -> Job:
    """One line; ValueError says what is wrong with it."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError('not an object such as {"arrival_s": 0, "prompt_tokens": 100, ...}')
    for name in values:
        if name not in _FIELDS:
            raise ValueError(f"{name}: no such field; there are {', '.join(_FIELDS)}")
    for name in _REQUIRED:
        if name not in values:
            raise ValueError(f"{name}: is missing")
    for name, value in values.items():
        says, allowed = _FIELDS[name]
        if not allowed(value):
            raise ValueError(f"{name}: {json.dumps(value)[:60]} must be {says}")
    if ("prefix" in values) != ("prefix_tokens" in values):
        raise ValueError("prefix_tokens: prefix and prefix_tokens are given together")
    if values.get("prefix_tokens", 0) > values["prompt_tokens"]:
        raise ValueError(
            f"prefix_tokens: {values['prefix_tokens']} must not be more than prompt_tokens "
            f"({values['prompt_tokens']}), which counts the prefix too"
        )
    return Job(**{"seed": number, **values}, origin=f"{file}, line {number}")


def _whole(low: int, high: int) -> tuple[str, Callable[[Any], bool]]:
    return (
        f"a whole number from {low} to {high}",
        lambda value: (
            isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        ),
    )


def _is_time(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value <= _MAX_ARRIVAL_S


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()  # lone surrogates aren't


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "arrival_s": (f"seconds after the start, from 0 to {_MAX_ARRIVAL_S}", _is_time),
    "prompt_tokens": _whole(1, MAX_TOKENS),
    "output_tokens": _whole(1, MAX_TOKENS),
    "prefix": ("a name", _is_name),
    "prefix_tokens": _whole(0, MAX_TOKENS),
    "priority": _whole(0, 1),
    "seed": _whole(0, (1 << 32) - 1),
}
_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
