"""`llamba bench` on a real engine: counts, not times."""

import json

import pytest

pytestmark = [pytest.mark.kernels, pytest.mark.model("smollm2"), pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def private_cache() -> None:
    """The kernels that other tests compiled are used: overrides the private cache."""


def bench(invoke, *args) -> dict:
    result = invoke("bench", *map(str, args), "-o", "jsonl")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_lengths_are_exact_and_a_shared_prefix_is_run_once(invoke, model_path) -> None:
    shape = ("--requests", 3, "--prompt-tokens", 90, "--output-tokens", 5, "--shared-prefix", 70)
    row = bench(invoke, model_path, "--concurrency", 1, *shape, "-t", 1, "-c", 512)
    assert (row["requests_done"], row["output_tokens"], row["prompt_tokens"]) == (3, 15, 270)
    first, *others = (request["cached_tokens"] for request in row["requests"])
    assert first == 0 and all(cached >= 70 for cached in others)
    assert row["cached_tokens"] == sum(others)
    assert 0 < row["ttft_p50_s"] <= row["ttft_p95_s"] and row["longest_stall_s"] > 0


def test_more_clients_than_pages(invoke, model_path) -> None:
    shape = ("--requests", 6, "--prompt-tokens", 40, "--output-tokens", 30)
    row = bench(invoke, model_path, "--concurrency", 3, *shape, "-t", 1, "--kv-tokens", 192)
    assert (row["requests_done"], row["requests_failed"], row["output_tokens"]) == (6, 0, 180)


def test_many_sequences_of_a_program(invoke, model_path) -> None:
    args = ("-npl", 3, "-npp", 8, "-ntg", 2, "-t", 1, "-r", 1, "--no-warmup", "-o", "json")
    result = invoke("bench", str(model_path), *map(str, args))
    assert result.exit_code == 0, result.output
    assert [row["n_parallel"] for row in json.loads(result.stdout)] == [3, 3]
