"""Side by side with llama.cpp and ik_llama.cpp: prefill and decode, interleaved, medians.

    python benchmarks/compare.py --peers FOLDER MODEL... -t 2 -p 512 -n 128 -r 5 --json out.json

FOLDER is what setup_peers.sh filled. A round measures every contender (a runtime at one setting)
once, in an order that rotates. README.md in this folder says what the figures mean. POSIX only.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from contenders import CONTENDERS, rotated, started
from report import ratios, report_on_models, show_heading, show_noise, show_ratios, speeds

TESTS = (("prompt", "pp"), ("gen", "tg"))


def compare(model: Path, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one model: tok/s of every sample, and the medians' ratios."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    command = {"op": "measure", "prompt": options.prompt, "gen": options.gen, "warmup": 32}
    command["depth"] = options.depth
    context = options.depth + max(options.prompt, options.gen, 32)
    with started(
        model, names, peers=options.peers, threads=options.threads, context=context
    ) as contenders:
        infos = {contender.name: contender.ready for contender in contenders}
        for number in range(-1, options.rounds):
            for contender in rotated(contenders, number):
                if number < 0:  # pages touched, kernels compiled: counts for nothing
                    first = {"gen": min(options.gen, 4), "seed": 0, "fill": options.depth > 0}
                    contender.measure({**command, **first})
                    continue
                sample = contender.measure({**command, "seed": number})
                samples[contender.name].append(sample)
            if number >= 0:
                print(f"{model.stem}: round {number + 1} of {options.rounds}", file=sys.stderr)
    rows = [row(name, samples[name], options) | {"load_s": infos[name]["load_s"]} for name in names]
    return {
        "model": model.name,
        "model_size": model.stat().st_size,
        "contenders": infos,
        "rows": rows,
        "ratios": ratios(rows, [short for _, short in TESTS]),
    }


def row(name: str, samples: list[dict[str, float]], options: argparse.Namespace) -> dict[str, Any]:
    """One contender's result; field names of llama-bench where it has them."""
    result: dict[str, Any] = {"name": name, "kind": CONTENDERS[name][0]}
    for what, short in TESTS:
        count = getattr(options, what)
        if not count:
            continue
        result[short] = {
            "n_prompt": count if what == "prompt" else 0,
            "n_gen": count if what == "gen" else 0,
            "n_depth": options.depth,
            "n_threads": options.threads,
            **speeds([count / sample[f"{what}_s"] for sample in samples]),
        }
    result["others"] = statistics.median(sample["others"] for sample in samples)
    return result


def head(short: str, test: dict[str, Any]) -> str:
    """A test's name, as llama-bench writes it."""
    depth = f" @ d{test['n_depth']}" if test.get("n_depth") else ""
    return f"{short}{test['n_prompt' if short == 'pp' else 'n_gen']}{depth}"


def show(report: dict[str, Any]) -> None:
    """Print a report as Markdown tables."""
    show_heading(report)
    for result in report["models"]:
        shorts = [short for _, short in TESTS if short in result["rows"][0]]
        heads = [head(s, result["rows"][0][s]) for s in shorts]
        print(f"\n| {result['model']}, tok/s | {' | '.join(heads)} | load s | others |")
        print("|---|" + "--:|" * (len(shorts) + 2))
        for line in result["rows"]:
            cells = [f"{line[s]['median_ts']:.1f} ± {line[s]['stddev_ts']:.1f}" for s in shorts]
            tail = f"{line['load_s']:.1f} | {line['others']:.0%}"
            print(f"| {line['name']} | {' | '.join(cells)} | {tail} |")
        show_ratios(result["ratios"])
        show_noise(result["rows"])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="GGUF files")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="what setup_peers.sh filled")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", type=int, default=512, help="prompt tokens, 0: skip")
    parser.add_argument("-n", "--gen", type=int, default=128, help="decoded tokens, 0: skip")
    parser.add_argument(
        "-d", "--depth", type=int, default=0, help="tokens in the cache before either"
    )
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print an earlier report, exit")
    parser.add_argument(
        "--contenders", nargs="+", default=["*"], metavar="PATTERN",
        help="shell patterns of: " + ", ".join(CONTENDERS),
    )  # fmt: skip
    options = parser.parse_args()
    if not options.show and not options.models:
        parser.error("name at least one MODEL")
    least = min(options.prompt, options.gen, options.depth)
    if options.threads < 1 or options.rounds < 1 or least < 0:
        parser.error("-t and --rounds must be at least 1, -p, -n and -d at least 0")
    if not options.prompt and not options.gen:
        parser.error("-p and -n are both 0: nothing to measure")
    return options


if __name__ == "__main__":
    report_on_models(parse(), compare, show)
