"""`llamba bench`: prefill and decode speed, in llama-bench's terms."""

from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError
from . import concurrency, loading
from .bench_output import WRITERS
from .lora import lora_from, lora_option
from .machine_options import memory_from, memory_options
from .progress import progress

if TYPE_CHECKING:
    from ..models.weights import Weights
    from ..runtime.split import ModelProgram
    from .measure import Case, Samples


class Numbers(click.ParamType):
    """`512`, `128,512`, and llama-bench's ranges `1-4`, `128-512+128`, `1-8*2`."""

    name = "N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """A list of whole numbers >= 0."""
        if isinstance(value, list):
            return value
        try:
            return [n for part in value.split(",") for n in self._range(part.strip())]
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 512 or 128,512", param, ctx)

    @staticmethod
    def _range(part: str) -> list[int]:
        first, dash, rest = part.partition("-")
        if not dash:
            return [int(part)]
        times = "*" in rest
        last, _, step = rest.partition("*" if times else "+")
        n, end, by = int(first), int(last), int(step or 1)
        if by < (2 if times else 1) or n > end or (times and n < 1):
            raise ValueError
        found = []
        while n <= end:
            found.append(n)
            n = n * by if times else n + by
        return found


NUMBERS = Numbers()


@click.command("bench")
@click.argument("models", nargs=-1, metavar="MODEL...")
@click.option("-m", "--model", "more", multiple=True, help="The same, as llama-bench has it.")
@click.option("-p", "-npp", "--n-prompt", type=NUMBERS, help="Prompt lengths [512; 128 with -npl].")
@click.option("-n", "-ntg", "--n-gen", type=NUMBERS, help="Decode lengths [128; 32 with -npl].")
@click.option(
    "-npl", "--n-parallel", type=NUMBERS, help="Sequences at once; decodes after the prompt [1]."
)
@click.option("-pg", "pairs", multiple=True, metavar="PP,TG", help="A prompt, then decoding.")
@click.option("-d", "--n-depth", type=NUMBERS, help="Tokens already cached [0].")
@click.option("-t", "--threads", type=NUMBERS, help="Threads [the physical cores we may use].")
@click.option("-r", "--repetitions", type=NUMBERS, help="Repetitions [5].")
@click.option("-ub", "--ubatch-size", type=int, help="Tokens a step [512; 2048 on a GPU].")
@click.option("--activations", type=click.Choice(["int8", "float32"]), default="int8")
@click.option("--no-warmup", is_flag=True, help="Skip the run before the measured ones.")
@click.option("-o", "--output", type=click.Choice(["md", "json", "jsonl", "csv"]), default="md")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A picture of the rates too, .svg or .png: by depth, sequences at once, or bars.",
)
@lora_option
@memory_options
@concurrency.concurrency_options
def command(
    models: tuple[str, ...],
    more: tuple[str, ...],
    n_prompt: list[int] | None,
    n_gen: list[int] | None,
    n_parallel: list[int] | None,
    pairs: tuple[str, ...],
    n_depth: list[int] | None,
    threads: list[int] | None,
    repetitions: list[int] | None,
    ubatch_size: int | None,
    activations: str,
    no_warmup: bool,
    output: str,
    as_json: bool,
    plot: Path | None,
    **load: Any,
) -> None:
    """Measure prefill (pp) and decode (tg) speed.

    Random tokens, no sampling, a warm-up first: what llama-bench does, with its names.
    Lists are measured one by one: -p 128,512 -t 1,2.

    -npl 4,8,16 is llama-batched-bench: so many sequences at once, each with a prompt of its own
    (-npp), after which all decode -ntg tokens together. t/s counts the tokens of all of them.

    --concurrency 8 measures the engine as 8 clients meet it, each sending its next request when the
    last one ended: tokens a second of all, time to first token (TTFT), time per output token after
    it (TPOT). --workload FILE sends requests at given times instead. FILE has one object a line:

    \b
      {"arrival_s": 0.5, "prompt_tokens": 200, "output_tokens": 50}
      {"arrival_s": 2, "prompt_tokens": 200, "output_tokens": 50, "priority": 1}
      {"arrival_s": 3, "prompt_tokens": 99, "output_tokens": 9, "prefix": "a", "prefix_tokens": 64}

    Arrival is in seconds after the start; lengths are exact. Optional: priority 1 is background, 0
    interactive; requests with the same prefix begin with the same prefix_tokens of their
    prompt_tokens; seed draws the other tokens [the line's number].
    """
    from ..runtime.threads import default_num_threads

    models = models + more or ("smollm2",)
    output = "json" if as_json else output
    others: dict[str, Any] = {"-p": n_prompt, "-n": n_gen, "-npl": n_parallel, "-pg": pairs}
    others |= {"-d": n_depth, "-r": repetitions, "-ub": ubatch_size}
    if threads and min(threads) < 1:
        raise InvalidParameterError(f"-t {min(threads)}: must be at least 1")
    if plot is not None:
        from .plots import check_picture

        check_picture(plot)
    memory = memory_from(load)
    if concurrency.wanted(load, others):
        concurrency.bench(models, threads, activations, output, not no_warmup, load, memory, plot)
        return
    kept = {"cache_type": load["cache_type"] or "f16", "deterministic": bool(load["deterministic"])}
    settings = {"activations": activations, **kept}
    mmap = memory["mmap"] is None
    repetitions = repetitions or [5]
    tests = _tests(n_prompt, n_gen, n_parallel, [_pair(pair) for pair in pairs], n_depth or [0])
    if not tests:
        raise InvalidParameterError("nothing to measure: give -p or -n a number above 0")
    if n_parallel and min(n_parallel) < 1:
        raise InvalidParameterError(f"-npl {min(n_parallel)}: must be at least 1")
    for name, value in (("-r", min(repetitions)), ("-ub", ubatch_size)):
        if value is not None and value < 1:
            raise InvalidParameterError(f"{name} {value}: must be at least 1")
    writer = WRITERS[output]()
    rows: list[dict[str, Any]] = []
    for model in models:
        with loading.open_file(model) as gguf:
            from ..models.weights import Weights
            from ..runtime.adapter_set import read_adapters
            from ..runtime.request_builder import no_text
            from .bench_about import about
            from .measure import Bench

            weights = Weights.open(gguf)
            if not weights.architecture.causal:
                raise no_text(weights.architecture.name, weights.hyperparameters.num_labels)
            facts = about(weights)
            adapters, scales = read_adapters(lora_from(load["lora"]) or (), weights)
            added = {"adapters": adapters} if adapters else {}
            for num_threads in threads or [default_num_threads()]:
                program, where = _open(
                    weights, tests, num_threads, ubatch_size, settings | added, memory
                )
                bench = Bench(program, weights.hyperparameters.vocab_size, adapters=tuple(scales))
                try:
                    for count in repetitions:
                        for test in tests:
                            samples = bench.measure(test, count, warmup=not no_warmup)
                            row = _row(facts, samples, num_threads, settings)
                            rows.append({**row, "use_mmap": mmap, **where})
                            writer.write(rows[-1], test.name)
                finally:
                    program.close()
    writer.close()
    if plot is not None:
        from .plots import plot_bench

        plot_bench(plot, rows)


def _tests(
    n_prompt: list[int] | None,
    n_gen: list[int] | None,
    n_parallel: list[int] | None,
    pairs: list[tuple[int, int]],
    n_depth: list[int],
) -> "list[Case]":
    """What is measured, in llama-bench's order, or for -npl in llama-batched-bench's."""
    from .measure import Case

    if n_parallel is None:
        prompts, gens = (512,) if n_prompt is None else n_prompt, (128,) if n_gen is None else n_gen
        tests = [Case(n, 0, depth) for n in prompts for depth in n_depth if n]
        tests += [Case(0, n, depth) for n in gens for depth in n_depth if n]
        return tests + [Case(*pair, depth) for pair in pairs for depth in n_depth]
    prompts, gens = (128,) if n_prompt is None else n_prompt, (32,) if n_gen is None else n_gen
    tests = []
    for prompt in prompts:
        for depth in n_depth:
            for count in n_parallel:
                tests += [Case(prompt, 0, depth, count)] if prompt else []
                tests += [Case(0, gen, depth + prompt, count) for gen in gens if gen]
                tests += [Case(*pair, depth, count) for pair in pairs]
    return list(dict.fromkeys(tests))


def _pair(text: str) -> tuple[int, int]:
    first, _, second = text.partition(",")
    if not (first.strip().isdigit() and second.strip().isdigit()):
        raise InvalidParameterError(f"-pg {text!r}: write PROMPT,GEN such as 512,128")
    return int(first), int(second)


def _open(
    weights: "Weights",
    tests: "list[Case]",
    num_threads: int,
    step_tokens: int | None,
    settings: dict[str, Any],
    memory: dict[str, Any],
) -> "tuple[ModelProgram, dict[str, Any]]":
    """A program for the tests, on a GPU or not, and what rows say of it."""
    from ..runtime.building import build
    from ..runtime.config import STEP_TOKENS
    from ..runtime.gpus import Gpus
    from .bench_device import device_facts, placed
    from .bench_memory import check_fits, hold

    name, num_pages = str(weights.gguf.path), max(test.num_pages for test in tests)
    most, num_layers = _most(tests), weights.hyperparameters.num_layers
    with closing(Gpus()) as gpus:
        config = placed(
            weights,
            gpus,
            memory,
            num_pages=num_pages,
            num_parallel=most,
            num_threads=num_threads,
            step_tokens=step_tokens,
            settings=settings,
        )
        max_tokens = (step_tokens or STEP_TOKENS) if config is None else config.max_tokens
        if config is None or config.gpu_layers < num_layers:
            sizes = {key: value for key, value in settings.items() if key != "adapters"}
            check_fits(weights, num_pages, max_tokens, sizes, memory)
            hold(weights.gguf, name, memory)
        facts = {"n_batch": max_tokens, "n_ubatch": max_tokens, **device_facts(config, gpus)}
        if config is None:
            return _build(weights, tests, num_threads, max_tokens, settings), facts
        _check_parallel(most, max_tokens)
        with progress(name) as update:
            return _checked(build(weights, config, gpus, progress=update), most), facts


def _build(
    weights: "Weights",
    tests: "list[Case]",
    num_threads: int,
    max_tokens: int,
    settings: dict[str, Any],
) -> "ModelProgram":
    """A program with just the pages that the largest test needs."""
    from ..runtime.forward import build_program

    _check_parallel(_most(tests), max_tokens)
    with progress(str(weights.gguf.path)) as update:
        program = build_program(
            weights,
            num_pages=max(test.num_pages for test in tests),
            num_threads=num_threads,
            max_tokens=max_tokens,
            **settings,
            progress=partial(update, "compile"),
        )
    return _checked(program, _most(tests))


def _most(tests: "list[Case]") -> int:
    return max(test.num_parallel for test in tests)


def _check_parallel(most: int, max_tokens: int) -> None:
    if most > max_tokens:
        raise InvalidParameterError(f"-npl {most}: a step has {max_tokens} tokens: set -ub {most}")


def _checked(program: "ModelProgram", most: int) -> "ModelProgram":
    if most > program.max_logits:
        program.close()
        raise InvalidParameterError(
            f"-npl {most}: at most {program.max_logits} sequences can be decoded together"
        )
    return program


def _row(
    facts: dict[str, Any],
    samples: "Samples",
    num_threads: int,
    settings: dict[str, Any],
) -> dict[str, Any]:
    test = samples.test
    return {
        **facts,
        "n_batch": 0,
        "n_ubatch": 0,
        "n_threads": num_threads,
        "type_k": settings["cache_type"],
        "type_v": settings["cache_type"],
        "activations": settings["activations"],
        "deterministic": settings["deterministic"],
        "use_mmap": True,
        "n_prompt": test.num_prompt,
        "n_gen": test.num_gen,
        "n_depth": test.depth,
        "n_parallel": test.num_parallel,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(samples.avg_ns),
        "stddev_ns": round(samples.stddev_ns),
        "avg_ts": samples.avg_ts,
        "stddev_ts": samples.stddev_ts,
        "samples_ns": samples.ns,
        "samples_ts": samples.ts,
    }
