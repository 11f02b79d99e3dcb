"""`llamba bench`: what is measured, and that the output is llama-bench's."""

import csv
import io
import json
import time
from typing import Any, cast

import numpy as np
import pytest

from llamba.cli import bench
from llamba.cli.measure import Bench, Case, Samples
from llamba.runtime.batch import Logits


class FakeProgram:
    """Notes the batches; a token takes 0.1 ms."""

    def __init__(self, num_pages=64, max_tokens=32) -> None:
        self.num_pages, self.max_tokens, self.closed = num_pages, max_tokens, False
        self.ran = []

    def run(self, batch) -> np.ndarray:
        [segment] = batch.segments
        positions = segment.start + segment.num_tokens
        assert len(segment.block_table) == -(-positions // 32) <= self.num_pages
        assert segment.token_ids.dtype == segment.block_table.dtype == np.int32
        assert segment.num_tokens <= self.max_tokens
        self.ran.append((segment.start, segment.num_tokens, segment.logits))
        time.sleep(1e-4 * segment.num_tokens)
        return np.zeros((1, 10), np.float32)

    def close(self) -> None:
        self.closed = True


def test_prefill_in_chunks_logits_of_the_last_token_only() -> None:
    program = FakeProgram()
    Bench(cast(Any, program), 10).measure(Case(70, 0), 1, warmup=False)
    none, last = Logits.NONE, Logits.LAST
    assert program.ran == [(0, 32, none), (32, 32, none), (64, 6, last)]


def test_decode_after_a_depth_with_warmup() -> None:
    program = FakeProgram()
    Bench(cast(Any, program), 10).measure(Case(0, 3, depth=40), 2)
    last = Logits.LAST
    depth = [(0, 32, Logits.NONE), (32, 8, last)]
    once = [(40, 1, last), (41, 1, last), (42, 1, last)]
    assert program.ran == [*depth, (40, 1, last), *once, *once]


def test_numbers() -> None:
    samples = Samples(Case(512, 0), [1_000_000_000, 2_000_000_000])
    assert samples.ts == [512.0, 256.0]
    assert (samples.avg_ts, samples.avg_ns) == (384.0, 1.5e9)
    assert samples.stddev_ts == pytest.approx(181.02, abs=0.01)
    assert Samples(Case(1, 0), [5]).stddev_ns == 0
    assert [Case(512, 0).name, Case(0, 128).name, Case(8, 4, 9).name] == [
        "pp512",
        "tg128",
        "pp8+tg4 @ d9",
    ]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("512", [512]),
        ("1, 2", [1, 2]),
        ("1-4", [1, 2, 3, 4]),
        ("8-24+8,1-8*2", [8, 16, 24, 1, 2, 4, 8]),
    ],
)
def test_lists_and_ranges(text, numbers) -> None:
    assert bench.NUMBERS.convert(text, None, None) == numbers


@pytest.fixture
def programs(monkeypatch) -> list[tuple]:
    built = []

    def build(weights, tests, num_threads, max_tokens, activations) -> FakeProgram:
        pages = max(test.num_pages for test in tests)
        built.append((num_threads, max_tokens, activations, FakeProgram(pages, max_tokens)))
        return built[-1][-1]

    monkeypatch.setattr(bench, "_build", build)
    return built


FIELDS = (
    "build_commit cpu_info backends model_filename model_type model_size model_n_params n_threads "
    "n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts samples_ns samples_ts"
).split()


def test_json_has_llama_benchs_fields(invoke, tiny_gguf, programs) -> None:
    path = str(tiny_gguf())
    result = invoke("bench", path, "-p", "8", "-n", "4", "-t", "1,2", "-r", "3", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(r["n_threads"], r["n_prompt"], r["n_gen"]) for r in rows] == [
        (1, 8, 0),
        (1, 0, 4),
        (2, 8, 0),
        (2, 0, 4),
    ]
    for row in rows:
        assert set(FIELDS) <= set(row)
        assert row["model_filename"] == path
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 3
        assert 0 < row["avg_ts"] < 10_000
    assert all(program.closed for *_, program in programs)


def test_table_jsonl_csv(invoke, tiny_gguf, programs) -> None:
    path = str(tiny_gguf())
    short = ("-p", "8", "-n", "0", "-t", "1", "-r", "2")
    head, rule, row = invoke("bench", path, *short).stdout.splitlines()
    assert [c.strip() for c in head.strip("|").split("|")] == [
        "model", "size", "params", "threads", "test", "t/s",
    ]  # fmt: skip
    assert len(head) == len(rule) == len(row) and set(rule) == set("|-: ")
    assert "pp8" in row and "±" in row
    assert json.loads(invoke("bench", path, *short, "-o", "jsonl").stdout)["n_prompt"] == 8
    text = invoke("bench", path, *short, "-o", "csv").stdout
    assert next(csv.DictReader(io.StringIO(text)))["n_prompt"] == "8"


def test_pairs_and_bad_values(invoke, tiny_gguf, programs) -> None:
    path = str(tiny_gguf())
    result = invoke("bench", path, "-p", "0", "-n", "0", "-pg", "8,4", "-r", "1", "--json")
    [row] = json.loads(result.stdout)
    assert (row["n_prompt"], row["n_gen"]) == (8, 4)
    for args in (["-p", "0", "-n", "0"], ["-r", "0"], ["-t", "0"], ["-p", "x"], ["-pg", "1"]):
        assert invoke("bench", path, *args).exit_code == 2, args
