"""The parts of benchmarks/ that need neither a peer nor a model."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from llamba.cli.workload import read_workload

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """A script's module by its name; forgotten afterwards, for the names are common ones."""
    monkeypatch.syspath_prepend(SCRIPTS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(SCRIPTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class FakeRuntime:
    """Notes what is run."""

    vocab_size = 10

    def __init__(self, runtimes: ModuleType, limit: int) -> None:
        self.runtimes, self.limit = runtimes, limit
        self.steps: list[list[tuple]] = []

    def clear(self) -> None:
        self.steps.append([])

    def keep(self, count: int) -> None:
        self.steps.append([("keep", count)])

    def run(self, runs) -> None:
        for step in self.runtimes.cut(runs, self.limit):
            assert all(0 <= i < 10 for run in step for i in run.ids)
            self.steps.append([(r.sequence, r.position, len(r.ids), r.logits) for r in step])


def test_batched_is_llama_batched_bench(script) -> None:
    runtime = FakeRuntime(script("runtimes"), limit=24)
    command = {"prompt": 20, "gen": 2, "sequences": 3, "seed": 1}
    result = script("worker").batched(runtime, command)
    assert set(result) == {"prompt_s", "gen_s"}
    assert runtime.steps == [
        [],
        [(0, 0, 16, False)],
        [],
        [(0, 0, 20, True), (1, 0, 4, False)],
        [(1, 4, 16, True), (2, 0, 8, False)],
        [(2, 8, 12, True)],
        [(0, 20, 1, True), (1, 20, 1, True), (2, 20, 1, True)],
        [(0, 21, 1, True), (1, 21, 1, True), (2, 21, 1, True)],
    ]


def test_depth_is_run_once_and_kept(script) -> None:
    runtime = FakeRuntime(script("runtimes"), limit=24)
    command = {"prompt": 9, "gen": 2, "depth": 30, "warmup": 4, "seed": 1}
    measure = script("worker").measure
    filled = [[], [(0, 0, 24, False)], [(0, 24, 6, False)]]
    prompt = [[("keep", 30)], [(0, 30, 4, True)], [("keep", 30)], [(0, 30, 9, True)]]
    gen = [[("keep", 30)], [(0, 30, 1, True)]] * 2 + [[(0, 31, 1, True)]]
    measure(runtime, {**command, "fill": True})
    assert runtime.steps == filled + prompt + gen
    runtime.steps.clear()
    measure(runtime, command)
    assert runtime.steps == prompt + gen
    runtime.steps.clear()
    measure(runtime, {**command, "depth": 0, "gen": 0})
    assert runtime.steps == [[], [(0, 0, 4, True)], [], [(0, 0, 9, True)]]


def test_ratios_are_against_the_best_setting_of_each_test(script) -> None:
    report = script("report")
    rows = [
        {"name": "a", "kind": "peer", "pp": report.speeds([10.0]), "tg": report.speeds([4.0])},
        {"name": "b", "kind": "peer", "pp": report.speeds([20.0]), "tg": report.speeds([2.0])},
        {"name": "x", "kind": "llamba", "pp": report.speeds([30.0]), "tg": report.speeds([6.0])},
    ]
    result = report.ratios(rows, ["pp", "tg"])
    assert result["pp / peer"] == {"best": "b", "ratio": 1.5, "rounds": [1.5, 1.5, 1.5]}
    assert (result["tg / peer"]["best"], result["tg / peer"]["ratio"]) == ("a", 1.5)
    assert report.ratios(rows[:2], ["pp"]) == {}


def test_bars(script, tmp_path, capsys) -> None:
    report = script("report")
    bars = [
        report.Bar("stall", 0.7, " s", 0.6),
        report.Bar("kept", 50.0, " %", 45.0, least=True),
        report.Bar("for information", 3.0),
    ]
    report.show_bars("title", bars)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| stall | 0.7 s | <= 0.6 s | MISSED |",
        "| kept | 50 % | >= 45 % | met |",
        "| for information | 3 |  |  |",
    ]
    report.write_bars(tmp_path / "out.json", {"threads": 2}, bars, more=1)
    written = json.loads((tmp_path / "out.json").read_text())
    assert [row["met"] for row in written["bars"]] == [False, True, None]
    assert written["threads"] == 2 and written["more"] == 1


def test_contenders_by_pattern(script) -> None:
    named = script("contenders").named
    assert named(["llamba", "ik*"]) == ["ik_llama.cpp", "ik_llama.cpp rtr", "llamba"]
    assert not any("no-fa" in name for name in named(["!*no-fa"]))
    assert named(["llama.cpp*", "!*no-fa"]) == ["llama.cpp repack", "llama.cpp no-repack"]
    with pytest.raises(SystemExit, match="no contender"):
        named(["nothing"])


README = (SCRIPTS / "README.md").read_text(encoding="utf-8")
SHOWN = sorted(set(re.findall(r"^python benchmarks/(\w+\.py) .*", README, flags=re.MULTILINE)))


@pytest.mark.parametrize("name", SHOWN)
def test_shown_scripts_start(name: str) -> None:
    """And have every option with which the README shows them."""
    command = [sys.executable, str(SCRIPTS / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for line in re.findall(rf"^python benchmarks/{re.escape(name)} (.*)", README, re.MULTILINE):
        for option in (word for word in line.split() if word.startswith("-")):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", done.stdout), option


def test_the_example_workload(tmp_path) -> None:
    jobs = read_workload(SCRIPTS / "agents.jsonl")
    assert len(jobs) >= 10 and any(job.priority for job in jobs)
    prompts = [job.prompt_ids(50) for job in jobs if job.prefix]
    assert len({tuple(ids[:600]) for ids in prompts}) == 1 < len(prompts)
