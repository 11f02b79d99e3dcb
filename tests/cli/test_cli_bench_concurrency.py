"""`llamba bench --concurrency` and `--workload`: what is sent, what is counted, what is refused."""

import asyncio
import csv
import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from llamba.cli import concurrency_clients, loading
from llamba.cli.concurrency_clients import Outcome, drive, summarize
from llamba.cli.workload import Job, read_workload, uniform
from llamba.errors import InvalidParameterError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.config import EngineConfig


class FakeStream:
    """An answer of `count` tokens; the first item holds two if `bursts`."""

    def __init__(self, llm: "FakeLLM", count: int, cached: int) -> None:
        self.llm, self.count, self.cached = llm, count, cached

    def __aiter__(self) -> Any:
        return self._items()

    async def _items(self) -> Any:
        self.llm.running += 1
        self.llm.most = max(self.llm.most, self.llm.running)
        for n in range(2 if self.llm.bursts else 1, self.count + 1):
            await asyncio.sleep(0.001)
            outputs = [SimpleNamespace(token_ids=list(range(n)))]
            metrics = SimpleNamespace(cached_tokens=self.cached)
            yield SimpleNamespace(outputs=outputs, metrics=metrics)
        self.llm.running -= 1
        self.llm.stats.preemptions += 1

    def close(self) -> None:
        self.llm.closed_streams += 1


class FakeLLM:
    """Notes what is submitted; refuses prompts of 12 and 13 tokens, cuts short those of 14."""

    def __init__(self, weights: Weights | None = None, *, limit: int = 4096) -> None:
        self.weights = weights
        self.config = EngineConfig(context_length=limit, num_threads=2)
        self.tokenizer = SimpleNamespace(vocab_size=50)
        self.stats = SimpleNamespace(preemptions=0)
        self.submitted: list[tuple[list[int], Any, int]] = []
        self.running = self.most = self.closed_streams = 0
        self.closed = self.bursts = False

    def submit(self, prompt: Any, params: Any, *, priority: int = 0) -> FakeStream:
        ids = prompt["prompt_token_ids"]
        assert all(0 <= i < 50 for i in ids)
        self.submitted.append((ids, params, priority))
        if len(ids) == 12:
            raise AttributeError("twelve")
        if len(ids) == 13:
            raise InvalidParameterError("thirteen")
        return FakeStream(self, params.max_tokens - (len(ids) == 14), len(ids) // 2)

    def close(self) -> None:
        self.closed = True


def run(llm: FakeLLM, jobs: list[Job], **options: Any) -> list[Outcome]:
    return asyncio.run(drive(cast(Any, llm), jobs, **options))


def test_clients_send_one_request_at_a_time() -> None:
    llm = FakeLLM()
    outcomes = run(llm, uniform(7, prompt_tokens=5, output_tokens=4), clients=3)
    assert llm.most == 3 and len(llm.submitted) == llm.closed_streams == 7
    assert all(o.done and len(o.token_s) == 4 and o.cached_tokens == 2 for o in outcomes)
    assert [o.due_s for o in outcomes] == sorted(o.due_s for o in outcomes)
    for _, params, _ in llm.submitted:
        assert params.ignore_eos and params.max_tokens == 4
    assert [params.seed for _, params, _ in llm.submitted] == list(range(7))


def test_open_loop_sends_at_arrival_and_waiting_counts_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm, begun = FakeLLM(), time.perf_counter()

    def clock() -> float:
        """Goes when something is sent: until then all wait for as long as they should."""
        return time.perf_counter() - begun if llm.submitted else 0.0

    monkeypatch.setattr(concurrency_clients, "time", SimpleNamespace(perf_counter=clock))
    jobs = [Job(4, 3, 0.0, priority=1), Job(6, 3, 0.03), Job(8, 1, 0.0)]
    outcomes = run(llm, jobs)
    assert [len(ids) for ids, *_ in llm.submitted] == [4, 8, 6]
    assert [priority for *_, priority in llm.submitted] == [1, 0, 0]
    assert outcomes[1].due_s == 0.03 and outcomes[1].token_s[0] >= 0.03
    assert outcomes[1].ttft_s == outcomes[1].token_s[0] - 0.03


def test_failures_are_counted_and_end_nobody_else() -> None:
    outcomes = run(FakeLLM(), [Job(n, 2) for n in (12, 13, 14, 15)], clients=1)
    assert [o.done for o in outcomes] == [False, False, False, True]
    assert outcomes[0].error == "AttributeError: twelve"
    assert outcomes[1].error == "thirteen"
    assert outcomes[2].error == "ended after 1 of 2 tokens"
    result = summarize(outcomes)
    assert (result["requests_done"], result["requests_failed"]) == (1, 3)
    assert (result["prompt_tokens"], result["output_tokens"]) == (15, 2)


def test_tokens_that_come_together_have_one_time() -> None:
    llm = FakeLLM()
    llm.bursts = True
    [outcome] = run(llm, [Job(4, 3)])
    assert outcome.done and outcome.token_s[0] == outcome.token_s[1] < outcome.token_s[2]


def test_figures() -> None:
    first = Outcome(Job(100, 3), 1.0, [2.0, 2.1, 2.6], cached_tokens=60)
    second = Outcome(Job(50, 2), 1.5, [2.0, 3.0])
    result = summarize([first, second])
    assert result["duration_s"] == 2.0
    assert (result["output_tokens"], result["output_ts"]) == (5, 2.5)
    assert (result["prompt_ts"], result["cached_tokens"]) == (75.0, 60)
    assert result["ttft_p50_s"] == pytest.approx(0.75)
    assert result["tpot_p50_s"] == pytest.approx((0.3 + 1.0) / 2)
    assert result["longest_stall_s"] == pytest.approx(1.0)
    assert result["itl_p95_s"] == pytest.approx(np.percentile([0.1, 0.5, 1.0], 95))
    nothing = summarize([Outcome(Job(1, 1), 0.0, error="no")])
    assert nothing["output_ts"] == 0 and nothing["ttft_p50_s"] is None
    assert nothing["longest_stall_s"] is None


def test_tokens_are_drawn_by_prefix_and_seed() -> None:
    a, b = (
        Job(40, 1, prefix="docs", prefix_tokens=30, seed=seed).prompt_ids(50) for seed in (1, 2)
    )
    assert len(a) == len(b) == 40 and a[:30] == b[:30] and a[30:] != b[30:]
    longer = Job(60, 1, prefix="docs", prefix_tokens=50, seed=1).prompt_ids(50)
    assert longer[:30] == a[:30]
    other = Job(40, 1, prefix="code", prefix_tokens=30, seed=1).prompt_ids(50)
    assert other[:30] != a[:30] and other[30:] == a[30:]
    assert Job(40, 1, seed=1).prompt_ids(50) == Job(40, 1, seed=1).prompt_ids(50)
    jobs = uniform(3, prompt_tokens=8, output_tokens=1, shared_prefix=8)
    assert jobs[0].prompt_ids(50) == jobs[2].prompt_ids(50)


GOOD = '{"arrival_s": 2, "prompt_tokens": 9, "output_tokens": 3}'


def test_workload_file(tmp_path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(
        GOOD + '\n\n{"arrival_s": 0.5, "prompt_tokens": 8, "output_tokens": 2, "prefix": "a", '
        '"prefix_tokens": 8, "priority": 1, "seed": 5}\r\n'
    )
    assert read_workload(file) == [Job(8, 2, 0.5, "a", 8, 1, 5), Job(9, 3, 2, seed=1)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        (GOOD.replace("arrival_s", "arival_s"), "arival_s: no such field"),
        ('{"arrival_s": 0, "prompt_tokens": 9}', "output_tokens: is missing"),
        (GOOD.replace("9", "0"), "prompt_tokens: 0 must be a whole number from 1"),
        (GOOD.replace("9", "true"), "prompt_tokens: true must be"),
        (GOOD.replace("9", '"9"'), 'prompt_tokens: "9" must be'),
        (GOOD.replace("3", "1.5"), "output_tokens: 1.5 must be"),
        (GOOD.replace("2", "-1"), "arrival_s: -1 must be"),
        (GOOD.replace("2", "NaN"), "arrival_s: NaN must be"),
        (GOOD.replace("2", "1e999"), "arrival_s: Infinity must be"),
        (GOOD.replace("2", "1e300"), "arrival_s: 1e+300 must be"),
        (GOOD.replace("2", "1" + "0" * 400), "arrival_s: 1000"),
        (GOOD[:-1] + r', "prefix": "\ud800", "prefix_tokens": 1}', "prefix: "),
        (GOOD[:-1] + ', "prefix": "a"}', "prefix_tokens: prefix and prefix_tokens"),
        (GOOD[:-1] + ', "prefix": "a", "prefix_tokens": 10}', "prefix_tokens: 10 must not"),
        (GOOD[:-1] + ', "priority": 2}', "priority: 2 must be"),
        (GOOD[:-1] + ', "seed": null}', "seed: null must be"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, says) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(InvalidParameterError) as caught:
        read_workload(file)
    assert str(caught.value).startswith(f"{file}, line 2: {says}")


def test_unreadable_workloads(tmp_path) -> None:
    empty, binary = tmp_path / "empty.jsonl", tmp_path / "binary.jsonl"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    for file, says in (
        (empty, "no requests"),
        (binary, "UTF-8"),
        (tmp_path, "directory"),
        (Path("/dev/zero"), "more than"),
    ):
        with pytest.raises(InvalidParameterError, match=says):
            read_workload(file)


@pytest.fixture
def opened(monkeypatch, tiny_gguf) -> list[tuple[FakeLLM, Any]]:
    """The models that the command opens, with their options."""
    found: list[tuple[FakeLLM, Any]] = []
    path = tiny_gguf()

    def open_llm(name: str, options: Any, *, max_sequences: int) -> FakeLLM:
        assert name == "tiny"
        llm = FakeLLM(Weights.open(GGUFFile.open(path)), limit=options.context_length or 4096)
        found.append((llm, {**options.given(), "max_sequences": max_sequences}))
        return llm

    monkeypatch.setattr(loading, "open_llm", open_llm)
    return found


SHORT = ("--prompt-tokens", "6", "--output-tokens", "3")


def test_report(invoke, opened) -> None:
    result = invoke("bench", "tiny", "--concurrency", "20", *SHORT, "-t", "2", "--kv-tokens", "512")
    assert result.exit_code == 0, result.output
    [(llm, given)] = opened
    assert (given["max_sequences"], given["num_threads"], given["kv_tokens"]) == (20, 2, 512)
    assert llm.closed and llm.most == 20
    assert len(llm.submitted) == 81  # a warm-up, and four a client
    assert "80 done, 0 failed, 80 preempted" in result.stdout
    assert "(240 tokens)" in result.stdout and "(480 tokens, 240 or 50% cached)" in result.stdout
    for title in ("TTFT", "TPOT", "token gaps"):
        assert f"\n{title} " in result.stdout


def test_json_csv_and_several_rows(invoke, opened) -> None:
    args = ("bench", "tiny", "--concurrency", "2", "--requests", "3", *SHORT, "--no-warmup")
    rows = json.loads(invoke(*args, "-t", "1,2", "--json").stdout)
    assert len(rows) == 2 and len(opened) == 2
    for row in rows:
        assert row["requests_done"] == 3 and row["output_tokens"] == 9
        assert row["concurrency"] == 2 and row["workload"] is None
        assert row["output_ts"] == pytest.approx(9 / row["duration_s"])
        assert [len(request["token_s"]) for request in row["requests"]] == [3, 3, 3]
    [row] = csv.DictReader(io.StringIO(invoke(*args, "-o", "csv").stdout))
    assert row["requests_done"] == "3" and "requests" not in row


def test_workload_command(invoke, opened, tmp_path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(GOOD.replace("2", "0.01") + "\n" + GOOD.replace("2", "0").replace("9", "13"))
    result = invoke("bench", "tiny", "--workload", str(file), "-o", "jsonl")
    assert result.exit_code == 1
    row = json.loads(result.stdout)
    assert (row["requests_done"], row["requests_failed"]) == (1, 1)
    assert row["requests"][0]["error"] == "thirteen" and row["requests"][1]["error"] is None
    assert "1 of 2 requests failed, the first: thirteen" in result.stderr
    result = invoke("bench", "tiny", "--workload", str(file), "-c", "11")
    assert result.exit_code == 2 and f"{file}, line 2: " in result.stderr
    assert "13 + 3" in result.stderr


def test_options_that_do_not_go_together(invoke, opened, tmp_path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(GOOD)
    some = ("--concurrency", "2")
    for args in (
        (*some, "-p", "512"),
        (*some, "-npl", "4"),
        (*some, "-pg", "8,4"),
        (*some, "--workload", str(file)),
        ("--workload", str(file), "--requests", "3"),
        ("--workload", str(file), "-n", "3"),
        ("--workload", str(tmp_path / "none.jsonl")),
        ("--requests", "3"),
        ("--concurrency", "0"),
        (*some, "--requests", "0"),
        (*some, "--requests", "99999999999"),
        ("--concurrency", "99999999999999999999"),
        (*some, "--prompt-tokens", "8", "--shared-prefix", "9"),
        (*some, "--shared-prefix", "-1"),
        (*some, "-t", "0"),
        (*some, "--temp", "-1"),
    ):
        result = invoke("bench", "tiny", *args)
        assert (result.exit_code, result.stdout) == (2, ""), args
        assert result.stderr.count("\n") == 1, args
    assert not opened
