"""From `llamba run` to the first token on stdout: whole processes, and llama.cpp's own beside them.

    python benchmarks/start.py model.gguf -r 10 --llama-completion PATH --json out.json

Warm: kernels in the cache, the file in the page cache. First: an empty kernel cache (--first), with
the number of kernels and the CPU time of all processes. llama.cpp is its own program for the same,
built natively (target `llama-completion`), once as it comes and once with what makes it start
soonest: no warm-up run, no repacking, no fitting of sizes, our context. In turns; POSIX only.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Bar, heading, show_bars, show_heading, write_bars

WARM_S, FIRST_S, PEER = 0.45, 25.0, 1.2
SOONEST = ["--no-warmup", "--no-repack", "-fit", "off", "-c", "8192"]


def first_text(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds from the start of a process to the first text on its stdout, and its CPU seconds."""
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            bufsize=0,
        )
        assert process.stdout
        while (text := process.stdout.read(1)).isspace():
            pass
        seconds = time.perf_counter() - begin
        process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if not text or process.returncode:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip()[-600:]
            raise SystemExit(f"{' '.join(command)} failed:\n{tail}")
    return seconds, used.ru_utime + used.ru_stime


def commands(given: argparse.Namespace) -> dict[str, tuple[list[str], dict[str, str]]]:
    """What is started, by name, each with its environment."""
    # A program that may not write its bytecode would compile its own sources at every start.
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    ours = {name: value for name, value in os.environ.items() if name not in unwanted}
    model, threads = str(given.model), str(given.threads)
    run = [sys.executable, "-P", "-m", "llamba", "run", "-m", model, "-t", threads]
    found = {"llamba": ([*run, "-n", "4", "Hi"], ours)}
    if given.llama_completion:
        peer = [str(given.llama_completion), "-m", model, "-t", threads, "-p", "Hi", "-n", "4"]
        peer += ["-st", "--no-display-prompt", "--temp", "0"]
        libraries = dict(os.environ, LD_LIBRARY_PATH=str(given.llama_completion.parent))
        found["llama.cpp"] = peer, libraries
        found["llama.cpp, soonest"] = [*peer, *SOONEST], libraries
    return found


def first_start(command: list[str], environment: dict[str, str]) -> list[Bar]:
    """The very first start, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        seconds, cpu = first_text(command, {**environment, "LLAMBA_CACHE": cache})
        kernels = len(list(Path(cache).glob("kernels/*/*.o")))
    return [
        Bar("first start", seconds, " s", FIRST_S),
        Bar("its CPU time, to the end", cpu, " s"),
        Bar("kernels compiled", kernels),
    ]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="GGUF file")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--rounds", type=int, default=10)
    parser.add_argument("--first", action="store_true", help="also with an empty kernel cache")
    parser.add_argument("--llama-completion", type=Path, metavar="PATH", help="llama.cpp's program")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    given = parse()
    if not given.model.is_file():
        raise SystemExit(f"{given.model} is not a file")
    programs = commands(given)
    bars = first_start(*programs["llamba"]) if given.first else []
    for program in programs.values():  # kernels, bytecode, page cache: counts for nothing
        first_text(*program)
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(given.rounds):
        names = [*programs][number % len(programs) :] + [*programs][: number % len(programs)]
        for name in names:
            samples[name].append(first_text(*programs[name])[0])
    middle = {name: statistics.median(each) for name, each in samples.items()}
    for name, each in samples.items():
        bars.append(Bar(name, middle[name], " s", WARM_S if name == "llamba" else None))
        bars.append(Bar(f"{name}, best", min(each), " s"))
        if name != "llamba":
            limit = PEER if name == "llama.cpp" else None
            bars.append(Bar(f"llamba over {name}", middle["llamba"] / middle[name], "", limit))
    first = heading(given.threads, given.rounds)
    show_heading(first)
    show_bars(f"{given.model.name}, start to first token", bars)
    write_bars(given.json, first, bars, model=given.model.name, samples_s=samples)


if __name__ == "__main__":
    main()
