"""`llamba bench --concurrency N` and `--workload FILE`: many requests on the real engine."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import InvalidParameterError
from . import loading
from .bench_output import WRITERS, Writer
from .console import note, warn
from .lora import lora_from
from .options import EngineOptions, cache_from, cache_options, parallel_option
from .workload import MAX_REQUESTS, MAX_TOKENS, Job, read_workload, uniform

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from .concurrency_clients import Outcome

_F = TypeVar("_F", bound=Callable[..., Any])
_SHAPE = ("requests", "prompt_tokens", "output_tokens", "shared_prefix")
_CACHE = ("cache_type", "kv_tokens", "no_prefix_cache", "deterministic")


def concurrency_options(command: _F) -> _F:
    """Adds the options of this mode; the command gets them as **load for `wanted` and `bench`."""
    for option in reversed(
        (
            click.option(
                "--concurrency", type=int, metavar="N", help="N clients, one request each."
            ),
            click.option("--requests", type=int, help="Requests of all clients [4 x N]."),
            click.option("--prompt-tokens", type=int, help="Of each request [128]."),
            click.option("--output-tokens", type=int, help="Of each request [64]."),
            click.option(
                "--shared-prefix", type=int, metavar="N", help="Prompt tokens that all share [0]."
            ),
            click.option(
                "--workload",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Requests at their arrival times, JSONL (see above).",
            ),
            click.option("--temp", type=float, help="Sampling temperature [0.8]."),
            click.option("-c", "--ctx-size", type=int, help="Tokens of context, as in `run`."),
            parallel_option,
        )
    ):
        command = option(command)
    return cache_options(command)


def wanted(load: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether requests are to be sent. Raises if options of both kinds of bench are given."""
    if load["concurrency"] is None and load["workload"] is None:
        engine = ("kv_tokens", "no_prefix_cache", "ctx_size", "max_sequences")
        for name in (*_SHAPE, "temp", *engine):
            if load[name] is not None:
                flag = "--" + name.replace("_", "-").replace("max-sequences", "parallel")
                raise InvalidParameterError(f"{flag} needs --concurrency N or --workload FILE")
        return False
    for name in ("concurrency", *_SHAPE[:3]):
        most = MAX_TOKENS if name.endswith("tokens") else MAX_REQUESTS
        if load[name] is not None and not 1 <= load[name] <= most:
            flag = "--" + name.replace("_", "-")
            raise InvalidParameterError(f"{flag} {load[name]}: must be from 1 to {most}")
    mode = "--workload" if load["workload"] else "--concurrency"
    for flag, value in others.items():
        if value not in (None, ()):
            raise InvalidParameterError(
                f"{flag} does not go with {mode}; lengths are --prompt-tokens and --output-tokens"
            )
    return True


def bench(
    models: tuple[str, ...],
    threads: list[int] | None,
    activations: str,
    output: str,
    warmup: bool,
    load: dict[str, Any],
    memory: dict[str, Any],
    plot: Path | None = None,
) -> None:
    """Measure each model with each number of threads, and write a row for each."""
    from ..runtime.config import DEFAULT_MAX_SEQUENCES, MAX_SEQUENCES
    from ..runtime.params import SamplingParams

    jobs = _jobs(load)
    clients = load["concurrency"]
    temperature = 0.8 if load["temp"] is None else load["temp"]
    SamplingParams(temperature=temperature)  # refused before a model is loaded
    # As many at once as there are clients: how long requests wait is the engine's own affair.
    limit = load["max_sequences"]
    if limit is None:
        limit = min(max(clients or 0, DEFAULT_MAX_SEQUENCES), MAX_SEQUENCES)
    cache = cache_from({name: load[name] for name in _CACHE})
    writer: Writer = Report() if output == "md" else WRITERS[output]()
    failed, rows = False, []
    for model in models:
        for num_threads in threads or [None]:
            options = EngineOptions(
                num_threads,
                load["ctx_size"],
                activations,
                lora=lora_from(load["lora"]),
                **cache,
                **memory,
            )
            with closing(loading.open_llm(model, options, max_sequences=limit)) as llm:
                _check_lengths(llm, jobs)
                outcomes, preemptions = asyncio.run(
                    _measure(llm, jobs, clients, temperature, warmup)
                )
                row = _row(llm, outcomes, preemptions, load)
            rows.append(row)
            writer.write(row, "")
            errors = [outcome.error for outcome in outcomes if outcome.error]
            if errors:
                warn(f"{len(errors)} of {len(outcomes)} requests failed, the first: {errors[0]}")
            failed = failed or bool(errors)
    writer.close()
    if plot is not None:
        from .plots import plot_requests

        plot_requests(plot, rows)
    if failed:
        raise SystemExit(1)


def _jobs(load: dict[str, Any]) -> list[Job]:
    """The requests, by the file or by the options."""
    clients, file = load["concurrency"], load["workload"]
    if file is not None:
        if clients is not None:
            raise InvalidParameterError(
                "--workload has arrival times of its own: leave --concurrency out"
            )
        for name in _SHAPE:
            if load[name] is not None:
                flag = name.replace("_", "-")
                raise InvalidParameterError(f"--{flag}: the lines of --workload say it")
        return read_workload(file)
    prompt, shared = load["prompt_tokens"] or 128, load["shared_prefix"] or 0
    if not 0 <= shared <= prompt:
        raise InvalidParameterError(
            f"--shared-prefix {shared}: must be from 0 to --prompt-tokens ({prompt})"
        )
    return uniform(
        load["requests"] or 4 * clients,
        prompt_tokens=prompt,
        output_tokens=load["output_tokens"] or 64,
        shared_prefix=shared,
    )


def _check_lengths(llm: "LLM", jobs: list[Job]) -> None:
    """Refuse what would be cut short: the lengths are exact or the figures mean nothing."""
    limit = llm.config.max_sequence_length
    for job in jobs:
        if job.prompt_tokens + job.output_tokens > limit:
            raise InvalidParameterError(
                f"{job.origin + ': ' if job.origin else ''}prompt_tokens and output_tokens are "
                f"{job.prompt_tokens} + {job.output_tokens}, but a sequence has at most {limit} "
                "(-c, --kv-tokens)"
            )


async def _measure(
    llm: "LLM", jobs: list[Job], clients: int | None, temperature: float, warmup: bool
) -> "tuple[list[Outcome], int]":
    """What the requests met, and how often one had to give its pages to another."""
    from .concurrency_clients import drive

    if warmup:  # threads started, memory touched; its tokens are like no other's
        first = Job(min(jobs[0].prompt_tokens, 32), 2, prefix="warm-up", prefix_tokens=1)
        await drive(llm, [first], clients=1, temperature=temperature)
    how = "at their times" if clients is None else f"{min(clients, len(jobs))} at a time"
    note(f"{len(jobs)} requests, {how}")
    before = llm.stats.preemptions
    outcomes = await drive(llm, jobs, clients=clients, temperature=temperature)
    return outcomes, llm.stats.preemptions - before


def _row(
    llm: "LLM", outcomes: "list[Outcome]", preemptions: int, load: dict[str, Any]
) -> dict[str, Any]:
    """All that is known, flat; the requests one by one under `requests`."""
    from .bench_about import about
    from .concurrency_clients import summarize

    config = llm.config
    return {
        **about(llm.weights),
        "device": config.device,
        "n_gpu_layers": config.gpu_layers,
        "n_threads": config.num_threads,
        "activations": config.activations,
        "cache_type": config.cache_type,
        "kv_tokens": config.kv_tokens,
        "max_sequences": config.max_sequences,
        "prefix_cache": config.prefix_cache,
        "deterministic": config.deterministic,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "concurrency": load["concurrency"],
        "workload": str(load["workload"]) if load["workload"] else None,
        **summarize(outcomes),
        "preemptions": preemptions,
        "requests": [
            {
                "prompt_tokens": outcome.job.prompt_tokens,
                "output_tokens": len(outcome.token_s),
                "cached_tokens": outcome.cached_tokens,
                "priority": outcome.job.priority,
                "due_s": outcome.due_s,
                "token_s": outcome.token_s,
                "error": outcome.error,
            }
            for outcome in outcomes
        ],
    }


class Report:
    """The row for people."""

    def write(self, row: dict[str, Any], name: str) -> None:
        """A few lines."""
        cached = row["cached_tokens"] / row["prompt_tokens"] if row["prompt_tokens"] else 0
        load = row["workload"] or f"{row['concurrency']} clients"
        lines = (
            ("model", f"{row['model_type']}, {row['n_threads']} threads"),
            ("load", f"{load}, {row['duration_s']:.1f} s"),
            (
                "requests",
                f"{row['requests_done']} done, {row['requests_failed']} failed, "
                f"{row['preemptions']} preempted",
            ),
            ("output", f"{row['output_ts']:.1f} tok/s ({row['output_tokens']} tokens)"),
            (
                "prompt",
                f"{row['prompt_ts']:.1f} tok/s ({row['prompt_tokens']} tokens, "
                f"{row['cached_tokens']} or {cached:.0%} cached)",
            ),
            ("TTFT", f"p50 {_ms(row['ttft_p50_s'])}, p95 {_ms(row['ttft_p95_s'])}"),
            ("TPOT", f"p50 {_ms(row['tpot_p50_s'])}, p95 {_ms(row['tpot_p95_s'])}"),
            (
                "token gaps",
                f"p50 {_ms(row['itl_p50_s'])}, p95 {_ms(row['itl_p95_s'])}, "
                f"longest {_ms(row['longest_stall_s'])}",
            ),
        )
        click.echo("\n".join(f"{title:<10}  {text}" for title, text in lines))

    def close(self) -> None:
        """Nothing is left to write."""


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
