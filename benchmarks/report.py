"""What the side-by-side scripts have in common: medians, ratios, and what they were taken on."""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contenders import named

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Bar:
    """A figure and what it is held to; `limit` None: only for information."""

    what: str
    figure: float
    unit: str = ""
    limit: float | None = None
    least: bool = False  # the limit is the least that will do, not the most

    @property
    def met(self) -> bool | None:
        """Whether it holds; None without a limit."""
        if self.limit is None:
            return None
        return self.figure >= self.limit if self.least else self.figure <= self.limit


def show_bars(title: str, bars: Sequence[Bar]) -> None:
    """As a Markdown table."""
    print(f"| {title} | figure | bar | |\n|---|--:|--:|---|")
    for bar in bars:
        limit = (
            "" if bar.limit is None else f"{'>=' if bar.least else '<='} {bar.limit:g}{bar.unit}"
        )
        met = {None: "", True: "met", False: "MISSED"}[bar.met]
        print(f"| {bar.what} | {bar.figure:.4g}{bar.unit} | {limit} | {met} |")


def write_bars(file: Path | None, first: dict[str, Any], bars: Sequence[Bar], **more: Any) -> None:
    """The report as JSON, if a file is named."""
    if file is not None:
        rows = [{**asdict(bar), "met": bar.met} for bar in bars]
        file.write_text(json.dumps({**first, "bars": rows, **more}, indent=1) + "\n")


def heading(threads: int, rounds: int) -> dict[str, Any]:
    """A report's first fields."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "hardware": hardware(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("llamba", "numba", "llvmlite", "numpy")},
        "threads": threads,
        "rounds": rounds,
    }


def show_heading(report: dict[str, Any]) -> None:
    """The line above the tables."""
    machine = report["hardware"]
    print(
        f"{machine.get('cpu', machine['machine'])}, {machine['cores']} cores, "
        f"{report['threads']} threads, {report['rounds']} rounds, {report['date']}, "
        f"commit {report['commit'][:12]}{'+' if report['commit'].endswith('+') else ''}"
    )


def speeds(samples_ts: list[float]) -> dict[str, Any]:
    """Tokens a second of every round and what they come to."""
    return {
        "median_ts": statistics.median(samples_ts),
        "avg_ts": statistics.fmean(samples_ts),
        "stddev_ts": statistics.stdev(samples_ts) if len(samples_ts) > 1 else 0.0,
        "samples_ts": samples_ts,
    }


def ratios(rows: list[dict[str, Any]], tests: Sequence[str]) -> dict[str, Any]:
    """llamba over the best setting of each peer: of the medians, and its range over the rounds.

    A row holds the result of `speeds` under each test's name, and the runtime under "kind".
    """
    ours = next((r for r in rows if r["kind"] == "llamba"), None)
    result: dict[str, Any] = {}
    for kind in dict.fromkeys(r["kind"] for r in rows if r["kind"] != "llamba"):
        for test in tests:
            peers = [r for r in rows if r["kind"] == kind and test in r]
            if ours is None or test not in ours or not peers:
                continue
            best = max(peers, key=lambda r: r[test]["median_ts"])
            pairs = zip(ours[test]["samples_ts"], best[test]["samples_ts"], strict=True)
            each = [a / b for a, b in pairs]
            result[f"{test} / {kind}"] = {
                "best": best["name"],
                "ratio": ours[test]["median_ts"] / best[test]["median_ts"],
                "rounds": [min(each), statistics.median(each), max(each)],
            }
    return result


def show_ratios(result: dict[str, Any]) -> None:
    """One line each."""
    for what, value in result.items():
        test, _, kind = what.partition(" / ")
        low, middle, high = value["rounds"]
        print(
            f"\nllamba / {kind} in {test}: **{value['ratio']:.2f}** against its best, "
            f"{value['best']} (by round {low:.2f} to {high:.2f}, median {middle:.2f})"
        )


def show_noise(rows: list[dict[str, Any]]) -> None:
    """A warning where other processes ran meanwhile."""
    if any(line["others"] > 0.05 for line in rows):
        print("\nNot an idle machine: other processes took more than 5 % of it. Noise.")


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


def version(name: str) -> str:
    """An installed package's version, "?" when there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def report_on_models(
    options: argparse.Namespace,
    compare: Callable[[Path, list[str], argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Measure every model, print the tables, write the JSON; or show an earlier report."""
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    names = named(options.contenders)
    for model in options.models:
        if not model.is_file():
            raise SystemExit(f"{model} is not a file")
    report = {
        **heading(options.threads, options.rounds),
        "models": [compare(model.resolve(), names, options) for model in options.models],
    }
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
