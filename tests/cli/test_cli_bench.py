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
    """Notes the segments of each step; a token takes 0.1 ms."""

    def __init__(self, num_pages=64, max_tokens=32, max_logits=16) -> None:
        self.num_pages, self.max_tokens, self.closed = num_pages, max_tokens, False
        self.max_logits = max_logits
        self.steps = []

    @property
    def ran(self) -> list:
        """Of steps with one segment each."""
        return [segment for [segment] in self.steps]

    def run(self, batch) -> np.ndarray:
        assert batch.num_tokens <= self.max_tokens
        assert sum(s.logits is not Logits.NONE for s in batch.segments) <= self.max_logits
        for segment in batch.segments:
            positions = segment.start + segment.num_tokens
            assert len(segment.block_table) == -(-positions // 32) <= self.num_pages
            assert segment.token_ids.dtype == segment.block_table.dtype == np.int32
        pages = np.concatenate([s.block_table for s in batch.segments])
        assert pages.max() < self.num_pages and len(set(pages)) == len(pages)
        step = [(s.start, s.num_tokens, s.logits) for s in batch.segments]
        self.steps.append(step)
        time.sleep(1e-4 * batch.num_tokens)
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


def test_many_sequences_pack_the_steps_and_decode_together() -> None:
    program = FakeProgram(num_pages=9)
    case = Case(40, 2, num_parallel=3)
    assert (case.num_pages, case.num_tokens, case.name) == (6, 126, "pp40+tg2 x3")
    Bench(cast(Any, program), 10).measure(case, 1, warmup=False)
    none, last = Logits.NONE, Logits.LAST
    assert program.steps == [
        [(0, 32, none)],
        [(32, 8, last), (0, 24, none)],
        [(24, 16, last), (0, 16, none)],
        [(16, 24, last)],
        [(40, 1, last)] * 3,
        [(41, 1, last)] * 3,
    ]
    few = FakeProgram(max_logits=2)
    Bench(cast(Any, few), 10).measure(Case(4, 0, num_parallel=3), 1, warmup=False)
    assert few.steps == [[(0, 4, last)] * 2, [(0, 4, last)]]


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

    def build(weights, tests, num_threads, max_tokens, settings) -> FakeProgram:
        pages = max(test.num_pages for test in tests)
        built.append((num_threads, max_tokens, settings, FakeProgram(pages, max_tokens)))
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


def test_parallel_is_llama_batched_bench(invoke, tiny_gguf, programs) -> None:
    path = str(tiny_gguf())
    args = ("-t", "1", "-r", "1", "--no-warmup", "-ub", "64")
    result = invoke("bench", path, "-npl", "2,4", "-npp", "8", "-ntg", "3", *args, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    names = ("n_parallel", "n_prompt", "n_gen", "n_depth")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (2, 8, 0, 0),
        (2, 0, 3, 8),
        (4, 8, 0, 0),
        (4, 0, 3, 8),
    ]
    [program] = [program for *_, program in programs]
    assert [len(step) for step in program.steps] == [2, 2, 2, 2, 2, 4, 4, 4, 4, 4]
    for row in rows:
        total = row["n_parallel"] * (row["n_prompt"] + row["n_gen"])
        assert row["avg_ts"] == pytest.approx(total * 1e9 / row["samples_ns"][0])
    table = invoke("bench", path, "-npl", "16", *args, "-n", "1").stdout.splitlines()
    assert ["pp128 x16", "tg1 x16 @ d128"] == [row.split("|")[5].strip() for row in table[2:]]
    assert len({len(row) for row in table}) == 1


def test_parallel_is_bounded_by_the_program(invoke, tiny_gguf, monkeypatch) -> None:
    program = FakeProgram(max_logits=16)
    monkeypatch.setattr("llamba.runtime.forward.build_program", lambda *_, **__: program)
    args = ("bench", str(tiny_gguf()), "-npp", "2", "-ntg", "1", "-t", "1", "-r", "1")
    for wanted, says in (("0", "at least 1"), ("17", "at most 16"), ("600", "-ub 600")):
        result = invoke(*args, "-npl", wanted)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "-npl" in result.stderr and says in result.stderr
    assert program.closed


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


def test_how_the_program_is_built_is_in_the_row(invoke, tiny_gguf, programs) -> None:
    args = ("bench", str(tiny_gguf()), "-p", "8", "-n", "0", "-r", "1", "--json")
    invoke(*args)
    result = invoke(*args, "--cache-type", "q8_0", "--deterministic", "--activations", "float32")
    (_, _, usual, _), (_, _, settings, _) = programs
    assert usual == {"activations": "int8", "cache_type": "f16", "deterministic": False}
    assert settings == {"activations": "float32", "cache_type": "q8_0", "deterministic": True}
    [row] = json.loads(result.stdout)
    assert (row["type_k"], row["type_v"]) == ("q8_0", "q8_0")
    assert row["deterministic"] and row["activations"] == "float32"


def test_pairs_and_bad_values(invoke, tiny_gguf, programs) -> None:
    path = str(tiny_gguf())
    result = invoke("bench", path, "-p", "0", "-n", "0", "-pg", "8,4", "-r", "1", "--json")
    [row] = json.loads(result.stdout)
    assert (row["n_prompt"], row["n_gen"]) == (8, 4)
    for args in (["-p", "0", "-n", "0"], ["-r", "0"], ["-t", "0"], ["-p", "x"], ["-pg", "1"]):
        assert invoke("bench", path, *args).exit_code == 2, args
