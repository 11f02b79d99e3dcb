"""Many sequences decoded together, as llama-batched-bench does it, beside the peers.

    python benchmarks/batched.py --peers FOLDER MODEL... -B 4 8 16 -t 2 -r 5 --json out.json

Every sequence has a prompt of its own (128 random tokens), then all decode 32 tokens, one of each
sequence in a step. The figure is S_TG, the tokens decoded a second by all sequences together. As
in compare.py rounds interleave the contenders, and a peer counts by its best setting. POSIX only.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from contenders import CONTENDERS, rotated, started
from report import ratios, report_on_models, show_heading, show_noise, show_ratios, speeds

# The least total decode ratio against llama.cpp's best setting that is held to, by model and B.
BARS = {
    "smollm2": {4: 1.6, 8: 2.0, 16: 2.0},
    "qwen2.5-coder-0.5b": {4: 1.6, 8: 2.0, 16: 2.0},
    "qwen2.5-coder-1.5b": {4: 1.3, 8: 1.5, 16: 1.8},
}


def compare(model: Path, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one model: tok/s of every sample, and the medians' ratios."""
    samples: dict[tuple[str, int], list[dict[str, float]]] = {
        (name, count): [] for name in names for count in options.sequences
    }
    command = {"op": "batched", "prompt": options.prompt, "gen": options.gen}
    with started(
        model,
        names,
        peers=options.peers,
        threads=options.threads,
        context=options.prompt + options.gen,
        sequences=max(options.sequences),
    ) as contenders:
        infos = {contender.name: contender.ready for contender in contenders}
        for number in range(-1, options.rounds):
            for contender in rotated(contenders, number):
                if number < 0:  # pages touched, kernels compiled: counts for nothing
                    # Whole prompts: ik_llama.cpp aborts on 4 sequences of 16 tokens.
                    warm = {**command, "gen": 2, "seed": 0, "sequences": min(options.sequences)}
                    contender.measure(warm)
                    continue
                for count in options.sequences:
                    sample = contender.measure({**command, "sequences": count, "seed": number})
                    samples[contender.name, count].append(sample)
            if number >= 0:
                print(f"{model.stem}: round {number + 1} of {options.rounds}", file=sys.stderr)
    rows = [row(name, samples, options) | {"load_s": infos[name]["load_s"]} for name in names]
    result = ratios(rows, [f"tg B={count}" for count in options.sequences])
    for count in options.sequences:
        against = result.get(f"tg B={count} / llama.cpp")
        bar = next((b for name, b in BARS.items() if model.name.lower().startswith(name)), {})
        if against and count in bar:
            against["bar"] = bar[count]
    return {
        "model": model.name,
        "model_size": model.stat().st_size,
        "contenders": infos,
        "rows": rows,
        "ratios": result,
    }


def row(
    name: str, samples: dict[tuple[str, int], list[dict[str, float]]], options: argparse.Namespace
) -> dict[str, Any]:
    """One contender's result, in llama-batched-bench's names (pp, tg, pl)."""
    result: dict[str, Any] = {"name": name, "kind": CONTENDERS[name][0]}
    others = []
    for count in options.sequences:
        mine = samples[name, count]
        others += [sample["others"] for sample in mine]
        about = {"pp": options.prompt, "tg": options.gen, "pl": count, "threads": options.threads}
        for what, short in (("prompt", "pp"), ("gen", "tg")):
            total = count * getattr(options, what)
            values = speeds([total / sample[f"{what}_s"] for sample in mine])
            result[f"{short} B={count}"] = about | values
    result["others"] = statistics.median(others)
    return result


def show(report: dict[str, Any]) -> None:
    """Print a report as Markdown tables."""
    show_heading(report)
    for result in report["models"]:
        first = result["rows"][0]
        tests = [name for name in first if name.startswith("tg B=")]
        pp, tg = (first[tests[0]][name] for name in ("pp", "tg"))
        prefill = tests[-1].replace("tg", "pp")
        heads = [*(name[3:] for name in tests), f"pp{pp}, {prefill[3:]}"]
        title = f"{result['model']}, total tok/s, tg{tg} after {pp}"
        print(f"\n| {title} | {' | '.join(heads)} | others |")
        print("|---|" + "--:|" * (len(heads) + 1))
        for line in result["rows"]:
            cells = [line[s] for s in [*tests, prefill]]
            texts = [f"{cell['median_ts']:.1f} ± {cell['stddev_ts']:.1f}" for cell in cells]
            print(f"| {line['name']} | {' | '.join(texts)} | {line['others']:.0%} |")
        show_ratios(result["ratios"])
        for what, value in result["ratios"].items():
            if "bar" in value:
                met = "met" if value["ratio"] >= value["bar"] else "MISSED"
                print(f"\n{what}: bar {value['bar']}, {value['ratio']:.2f}: {met}")
        show_noise(result["rows"])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="GGUF files")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="what setup_peers.sh filled")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("-n", "--gen", type=int, default=32, help="tokens of each answer")
    parser.add_argument(
        "-B", "--sequences", type=int, nargs="+", default=[4, 8, 16], metavar="B",
        help="sequences decoded together",
    )  # fmt: skip
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print an earlier report, exit")
    parser.add_argument(
        "--contenders", nargs="+", default=["!*no-fa"], metavar="PATTERN",
        help="shell patterns, !PATTERN leaves out, of: " + ", ".join(CONTENDERS),
    )  # fmt: skip
    options = parser.parse_args()
    if not options.show and not options.models:
        parser.error("name at least one MODEL")
    numbers = (options.threads, options.rounds, options.prompt, options.gen, *options.sequences)
    if min(numbers) < 1:
        parser.error("-t, -r, -p, -n and -B must be at least 1")
    options.sequences = sorted(set(options.sequences))
    return options


if __name__ == "__main__":
    report_on_models(parse(), compare, show)
