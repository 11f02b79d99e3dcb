"""Decode speed while another process is busy on one of the cores, llamba and the peers.

    python benchmarks/contention.py --peers FOLDER MODEL -t 2 -r 3 --json out.json

The other process spins on one core that the threads want as well. Alone and beside it are measured
in turns, contender after contender. POSIX only.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from contenders import CONTENDERS, named, rotated, started
from report import Bar, heading, show_bars, show_heading, write_bars

BAR = 45.0  # percent of its speed alone that llamba keeps
SPIN = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True:
    pass
"""


@contextlib.contextmanager
def busy(core: int) -> Iterator[None]:
    """Another process that takes what it can get of a core."""
    process = subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="GGUF file")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="what setup_peers.sh filled")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--gen", type=int, default=32, help="decoded tokens [32]")
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument(
        "--contenders", nargs="+", metavar="PATTERN",
        default=["llamba", "llama.cpp repack", "ik_llama.cpp rtr"],
        help="shell patterns, !PATTERN leaves out, of: " + ", ".join(CONTENDERS),
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    given = parse()
    if not given.model.is_file():
        raise SystemExit(f"{given.model} is not a file")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    names = named(given.contenders)
    command = {"op": "measure", "prompt": 0, "gen": given.gen, "warmup": 1}
    speeds: dict[tuple[str, bool], list[float]] = {
        (name, beside): [] for name in names for beside in (False, True)
    }
    with started(
        given.model.resolve(), names, peers=given.peers, threads=given.threads, context=given.gen
    ) as contenders:
        for contender in contenders:
            contender.measure({**command, "seed": 0})
        for number in range(given.rounds):
            for contender in rotated(contenders, number):
                for beside in (False, True):
                    with busy(cores[-1]) if beside else contextlib.nullcontext():
                        sample = contender.measure({**command, "seed": number})
                    speeds[contender.name, beside].append(given.gen / sample["gen_s"])
    bars = []
    for name in names:
        alone, beside = (statistics.median(speeds[name, b]) for b in (False, True))
        ours = CONTENDERS[name][0] == "llamba"
        bars += [
            Bar(f"{name}, alone", alone, " tok/s"),
            Bar(f"{name}, beside", beside, " tok/s"),
            Bar(f"{name} keeps", 100 * beside / alone, " %", BAR if ours else None, least=True),
        ]
    first = heading(given.threads, given.rounds)
    show_heading(first)
    show_bars(f"{given.model.name}, one of {len(cores)} cores busy", bars)
    samples = {f"{name}, {'beside' if b else 'alone'}": s for (name, b), s in speeds.items()}
    write_bars(given.json, first, bars, model=given.model.name, samples_ts=samples)


if __name__ == "__main__":
    main()
