"""Side by side with llama.cpp and ik_llama.cpp: prefill and decode, interleaved, medians.

    python benchmarks/compare.py --peers FOLDER MODEL... -t 2 -p 512 -n 128 -r 5 --json out.json

FOLDER is what setup_peers.sh filled. Every contender (a runtime at one setting) is a process that
keeps its model loaded. A round measures each of them once, in an order that rotates; only the one
being measured runs, all others are stopped (SIGSTOP), so that no pool of threads spins beside it.
README.md in this folder says what the figures mean. POSIX only.
"""

import argparse
import contextlib
import datetime
import fnmatch
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = (("prompt", "pp"), ("gen", "tg"))

# Name -> (kind in contenders.py, environment in the peers' folder, settings). A peer counts by the
# best of its settings, for prefill and for decode apart.
CONTENDERS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "llama.cpp repack": ("llama.cpp", "llama", {"repack": True, "flash_attn": True}),
    "llama.cpp no-repack": ("llama.cpp", "llama", {"repack": False, "flash_attn": True}),
    "llama.cpp repack no-fa": ("llama.cpp", "llama", {"repack": True, "flash_attn": False}),
    "llama.cpp no-repack no-fa": ("llama.cpp", "llama", {"repack": False, "flash_attn": False}),
    "ik_llama.cpp": ("ik_llama.cpp", "ik", {"repack": False, "flash_attn": True}),
    "ik_llama.cpp rtr": ("ik_llama.cpp", "ik", {"repack": True, "flash_attn": True}),
    "llamba": ("llamba", None, {"activations": "int8"}),
}


class Worker:
    """A contender's process; stopped whenever it is not being measured."""

    def __init__(self, name: str, python: str, kind: str, job: dict[str, Any]) -> None:
        """Start it, wait until its model is loaded, then stop it."""
        self.name = name
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, str(HERE / "contenders.py"), kind, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.ready = self._answer()
        self.process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        tail = self.errors.read().decode(errors="replace").splitlines()[-8:]
        raise SystemExit(f"{self.name} failed:\n  " + "\n  ".join(tail))

    def measure(self, command: dict[str, Any]) -> dict[str, float]:
        """One sample, with the share of the machine that other processes took meanwhile."""
        assert self.process.stdin
        self.process.send_signal(signal.SIGCONT)
        busy, begin = busy_seconds(), time.perf_counter()
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        sample = self._answer()
        wall = time.perf_counter() - begin
        others = busy_seconds() - busy - sample["cpu_s"]
        self.process.send_signal(signal.SIGSTOP)
        sample["others"] = max(0.0, others / (wall * (os.cpu_count() or 1)))
        return sample

    def close(self) -> None:
        """End it, stopped or not."""
        self.process.kill()
        self.process.wait()
        self.errors.close()


def busy_seconds() -> float:
    """CPU seconds that the whole machine has spent since it started (Linux; else 0)."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def hardware() -> dict[str, Any]:
    """What the figures were taken on."""
    result: dict[str, Any] = {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
    }
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [x.split(":", 1)[1].strip() for x in lines if x.startswith(("model name", "Model"))]
        result["cpu"] = names[0] if names else "?"
        total = Path("/proc/meminfo").read_text().split()[1]
        result["memory_gib"] = round(int(total) / 2**20, 1)
    return result


def commit() -> str:
    """This checkout's commit, with a + when the tree differs from it."""
    git = ["git", "-C", str(HERE)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "?"
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


def python_of(peers: Path | None, environment: str | None) -> str:
    """The interpreter that runs a contender."""
    if environment is None:
        return sys.executable
    if peers is None:
        raise SystemExit("--peers FOLDER is needed for the peers (or --contenders 'llamba')")
    python = peers / environment / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is not there: run {HERE.name}/setup_peers.sh {peers} first")
    return str(python)


@contextlib.contextmanager
def started(model: Path, names: list[str], options: argparse.Namespace) -> Iterator[list[Worker]]:
    """The contenders' processes for one model, one loaded after the other."""
    workers: list[Worker] = []
    try:
        for name in names:
            kind, environment, settings = CONTENDERS[name]
            context = -(-max(options.prompt, options.gen, 32) // 256) * 256
            job = {"model": str(model), "threads": options.threads, "context": context, **settings}
            python = python_of(options.peers, environment)
            print(f"{model.stem}: loading {name}", file=sys.stderr)
            workers.append(Worker(name, python, kind, job))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def compare(model: Path, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one model: tok/s of every sample, and the medians' ratios."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    command = {"op": "measure", "prompt": options.prompt, "gen": options.gen, "warmup": 32}
    with started(model, names, options) as workers:
        infos = {worker.name: worker.ready for worker in workers}
        for number in range(-1, options.rounds):
            turn = number % len(workers)
            for worker in workers[turn:] + workers[:turn]:
                if number < 0:  # pages touched, kernels compiled: counts for nothing
                    worker.measure({**command, "gen": min(options.gen, 4), "seed": 0})
                    continue
                sample = worker.measure({**command, "seed": number})
                samples[worker.name].append(sample)
            if number >= 0:
                print(f"{model.stem}: round {number + 1} of {options.rounds}", file=sys.stderr)
    rows = [row(name, samples[name], options) | {"load_s": infos[name]["load_s"]} for name in names]
    return {
        "model": model.name,
        "model_size": model.stat().st_size,
        "contenders": {name: info for name, info in infos.items()},
        "rows": rows,
        "ratios": ratios(rows),
    }


def row(name: str, samples: list[dict[str, float]], options: argparse.Namespace) -> dict[str, Any]:
    """One contender's result; field names of llama-bench where it has them."""
    result: dict[str, Any] = {"name": name, "kind": CONTENDERS[name][0]}
    for what, short in TESTS:
        count = getattr(options, what)
        if not count:
            continue
        speeds = [count / sample[f"{what}_s"] for sample in samples]
        result[short] = {
            "n_prompt": count if what == "prompt" else 0,
            "n_gen": count if what == "gen" else 0,
            "n_threads": options.threads,
            "median_ts": statistics.median(speeds),
            "avg_ts": statistics.fmean(speeds),
            "stddev_ts": statistics.stdev(speeds) if len(speeds) > 1 else 0.0,
            "samples_ts": speeds,
        }
    result["others"] = statistics.median(sample["others"] for sample in samples)
    return result


def ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """llamba over the best setting of each peer: of the medians, and its range over the rounds."""
    ours = next((r for r in rows if r["kind"] == "llamba"), None)
    result: dict[str, Any] = {}
    for kind in dict.fromkeys(r["kind"] for r in rows if r["kind"] != "llamba"):
        for _, short in TESTS:
            peers = [r for r in rows if r["kind"] == kind and short in r]
            if ours is None or short not in ours or not peers:
                continue
            best = max(peers, key=lambda r: r[short]["median_ts"])
            pairs = zip(ours[short]["samples_ts"], best[short]["samples_ts"], strict=True)
            each = [a / b for a, b in pairs]
            result[f"{short} / {kind}"] = {
                "best": best["name"],
                "ratio": ours[short]["median_ts"] / best[short]["median_ts"],
                "rounds": [min(each), statistics.median(each), max(each)],
            }
    return result


def show(report: dict[str, Any]) -> None:
    """Print a report as Markdown tables."""
    machine = report["hardware"]
    print(
        f"{machine.get('cpu', machine['machine'])}, {machine['cores']} cores, "
        f"{report['threads']} threads, {report['rounds']} rounds, {report['date']}, "
        f"commit {report['commit'][:12]}{'+' if report['commit'].endswith('+') else ''}"
    )
    for result in report["models"]:
        shorts = [short for _, short in TESTS if short in result["rows"][0]]
        heads = [f"{s}{result['rows'][0][s]['n_prompt' if s == 'pp' else 'n_gen']}" for s in shorts]
        print(f"\n| {result['model']}, tok/s | {' | '.join(heads)} | load s | others |")
        print("|---|" + "--:|" * (len(shorts) + 2))
        for line in result["rows"]:
            speeds = [f"{line[s]['median_ts']:.1f} ± {line[s]['stddev_ts']:.1f}" for s in shorts]
            tail = f"{line['load_s']:.1f} | {line['others']:.0%}"
            print(f"| {line['name']} | {' | '.join(speeds)} | {tail} |")
        for what, value in result["ratios"].items():
            low, middle, high = value["rounds"]
            print(
                f"\nllamba / {what.split(' / ')[1]} in {what.split(' / ')[0]}: "
                f"**{value['ratio']:.2f}** against its best, {value['best']} "
                f"(by round {low:.2f} to {high:.2f}, median {middle:.2f})"
            )
        if any(line["others"] > 0.05 for line in result["rows"]):
            print("\nNot an idle machine: other processes took more than 5 % of it. Noise.")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="GGUF files")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="what setup_peers.sh filled")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", type=int, default=512, help="prompt tokens, 0: skip")
    parser.add_argument("-n", "--gen", type=int, default=128, help="decoded tokens, 0: skip")
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
    if options.threads < 1 or options.rounds < 1 or min(options.prompt, options.gen) < 0:
        parser.error("-t and --rounds must be at least 1, -p and -n at least 0")
    if not options.prompt and not options.gen:
        parser.error("-p and -n are both 0: nothing to measure")
    return options


def main() -> None:
    """Measure every model, print the tables, write the JSON."""
    options = parse()
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    names = [
        name
        for name in CONTENDERS
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.contenders)
    ]
    if not names:
        raise SystemExit(f"no contender matches {options.contenders}; there are {list(CONTENDERS)}")
    for model in options.models:
        if not model.is_file():
            raise SystemExit(f"{model} is not a file")
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "hardware": hardware(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("llamba", "numba", "llvmlite", "numpy")},
        "threads": options.threads,
        "rounds": options.rounds,
        "models": [compare(model.resolve(), names, options) for model in options.models],
    }
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def version(name: str) -> str:
    """An installed package's version, "?" when there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "?"


if __name__ == "__main__":
    main()
