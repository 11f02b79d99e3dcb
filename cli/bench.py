"""`llamba bench`: prefill and decode speed, in llama-bench's terms."""

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError
from . import loading
from .bench_output import WRITERS
from .progress import progress

if TYPE_CHECKING:
    from ..models.weights import Weights
    from ..runtime.program import Program
    from .measure import Case, Samples

# general.file_type, in llama.cpp's words (llama_ftype)
FILE_TYPES = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K - Medium", 11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large",
    14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K",
    25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 38: "MXFP4 MoE",
}  # fmt: skip


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
@click.option("-p", "--n-prompt", type=NUMBERS, default="512", help="Prompt lengths [512].")
@click.option("-n", "--n-gen", type=NUMBERS, default="128", help="Decode lengths [128].")
@click.option("-pg", "pairs", multiple=True, metavar="PP,TG", help="A prompt, then decoding.")
@click.option("-d", "--n-depth", type=NUMBERS, default="0", help="Tokens already cached [0].")
@click.option("-t", "--threads", type=NUMBERS, help="Threads [the physical cores we may use].")
@click.option("-r", "--repetitions", type=NUMBERS, default="5", help="Repetitions [5].")
@click.option("-ub", "--ubatch-size", type=int, default=512, help="Tokens a step [512].")
@click.option("--activations", type=click.Choice(["int8", "float32"]), default="int8")
@click.option("--no-warmup", is_flag=True, help="Skip the run before the measured ones.")
@click.option("-o", "--output", type=click.Choice(["md", "json", "jsonl", "csv"]), default="md")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
def command(
    models: tuple[str, ...],
    more: tuple[str, ...],
    n_prompt: list[int],
    n_gen: list[int],
    pairs: tuple[str, ...],
    n_depth: list[int],
    threads: list[int] | None,
    repetitions: list[int],
    ubatch_size: int,
    activations: str,
    no_warmup: bool,
    output: str,
    as_json: bool,
) -> None:
    """Measure prefill (pp) and decode (tg) speed.

    Random tokens, no sampling, a warm-up first: what llama-bench does, with its names.
    Lists are measured one by one: -p 128,512 -t 1,2.
    """
    from ..runtime.threads import default_num_threads
    from .measure import Case

    tests = [Case(n, 0, depth) for n in n_prompt for depth in n_depth if n]
    tests += [Case(0, n, depth) for n in n_gen for depth in n_depth if n]
    tests += [Case(*_pair(pair), depth) for pair in pairs for depth in n_depth]
    if not tests:
        raise InvalidParameterError("nothing to measure: give -p or -n a number above 0")
    if min(repetitions) < 1 or ubatch_size < 1 or min(threads or [1]) < 1:
        raise InvalidParameterError("-r, -t and -ub must be at least 1")
    writer = WRITERS["json" if as_json else output]()
    for model in models + more or ("smollm2",):
        with loading.open_file(model) as gguf:
            from ..models.weights import Weights

            weights = Weights.open(gguf)
            about = _about(weights)
            for num_threads in threads or [default_num_threads()]:
                program = _build(weights, tests, num_threads, ubatch_size, activations)
                try:
                    for count in repetitions:
                        for test in tests:
                            samples = _measure(program, weights, test, count, not no_warmup)
                            row = _row(about, samples, num_threads, ubatch_size, activations)
                            writer.write(row, test)
                finally:
                    program.close()
    writer.close()


def _pair(text: str) -> tuple[int, int]:
    first, _, second = text.partition(",")
    if not (first.strip().isdigit() and second.strip().isdigit()):
        raise InvalidParameterError(f"-pg {text!r}: write PROMPT,GEN such as 512,128")
    return int(first), int(second)


def _build(
    weights: "Weights", tests: "list[Case]", num_threads: int, max_tokens: int, activations: str
) -> "Program":
    """A program with just the pages that the largest test needs."""
    from ..runtime.forward import build_program

    with progress(str(weights.gguf.path)) as update:
        return build_program(
            weights,
            num_pages=max(test.num_pages for test in tests),
            num_threads=num_threads,
            max_tokens=max_tokens,
            activations=activations,
            progress=partial(update, "compile"),
        )


def _measure(
    program: "Program", weights: "Weights", test: "Case", repetitions: int, warmup: bool
) -> "Samples":
    from .measure import Bench

    bench = Bench(program, weights.hyperparameters.vocab_size)
    return bench.measure(test, repetitions, warmup=warmup)


def _about(weights: "Weights") -> dict[str, Any]:
    """What llama-bench says of the build, the machine and the model."""
    from math import prod

    from .. import __version__
    from .doctor import cpu_model

    gguf = weights.gguf
    num_parameters = sum(prod(t.shape) for t in gguf.tensors.values())
    label = gguf.metadata.get("general.size_label") or _short(num_parameters)
    kind = FILE_TYPES.get(gguf.metadata.get("general.file_type", -1), "")
    return {
        "build_commit": __version__,
        "build_number": 0,
        "cpu_info": cpu_model(),
        "gpu_info": "",
        "backends": "CPU",
        "model_filename": str(gguf.path),
        "model_type": f"{weights.architecture.name} {label} {kind}".strip(),
        "model_size": sum(t.num_bytes for t in gguf.tensors.values()),
        "model_n_params": num_parameters,
    }


def _short(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


def _row(
    about: dict[str, Any], samples: "Samples", num_threads: int, ubatch: int, activations: str
) -> dict[str, Any]:
    test = samples.test
    return {
        **about,
        "n_batch": ubatch,
        "n_ubatch": ubatch,
        "n_threads": num_threads,
        "type_k": "f16",
        "type_v": "f16",
        "activations": activations,
        "use_mmap": True,
        "n_prompt": test.num_prompt,
        "n_gen": test.num_gen,
        "n_depth": test.depth,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(samples.avg_ns),
        "stddev_ns": round(samples.stddev_ns),
        "avg_ts": samples.avg_ts,
        "stddev_ts": samples.stddev_ts,
        "samples_ns": samples.ns,
        "samples_ts": samples.ts,
    }
