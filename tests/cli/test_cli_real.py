"""The commands as a user types them, with a real model: answers, speed, one-line errors."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.kernels, pytest.mark.model("smollm2"), pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def private_cache() -> None:
    """The kernels that other tests compiled are used: overrides the private cache."""


def llamba(*args, **kwargs) -> subprocess.CompletedProcess[str]:
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [sys.executable, "-m", "llamba", *map(str, args)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        **kwargs,
    )


def test_run_answers(model_path) -> None:
    result = llamba(
        "run",
        "--raw",
        model_path,
        "The capital of France is",
        "--temperature",
        0,
        "--max-tokens",
        2,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == " Paris.\n"
    assert "error" not in result.stderr


def test_run_with_the_template(model_path) -> None:
    result = llamba("run", model_path, "What is 2+2?", "--temp", 0, "-n", 40, "--stats")
    assert result.returncode == 0, result.stderr
    assert "4" in result.stdout and "<|im_end|>" not in result.stdout
    assert "tok/s" in result.stderr


def test_run_json_and_seed(model_path) -> None:
    def once(seed) -> tuple[list[int], str, int]:
        result = llamba("run", model_path, "Tell a story.", "-n", 16, "-s", seed, "--json")
        value = json.loads(result.stdout)
        return value["token_ids"], value["finish_reason"], value["seed"]

    assert once(42) == once(42)
    assert once(42)[1:] == ("length", 42)


def test_too_long_prompt_is_one_line(model_path) -> None:
    result = llamba("run", model_path, "word " * 100, "-c", 64)
    assert result.returncode == 2
    # Kernels are compiled now if no test before has needed them.
    said = [s for s in result.stderr.splitlines() if not s.startswith("compiling kernels")]
    assert len(said) == 1
    assert result.stdout == ""


def test_chat_runs_only_what_is_new(model_path) -> None:
    result = llamba(
        "chat",
        model_path,
        "--temp",
        "0",
        stdin=None,
        input="My name is Ada.\n/stats\nWhat is my name?\n/stats\n",
    )
    assert result.returncode == 0, result.stderr
    first, second = [line for line in result.stderr.splitlines() if line.startswith("prompt")]
    assert "cached" in second and "cached" not in first


def test_tokenize(model_path) -> None:
    assert json.loads(llamba("tokenize", model_path, "Hello world", "--json").stdout) == [
        19556,
        905,
    ]


def test_bench(model_path) -> None:
    result = llamba("bench", model_path, "-p", 32, "-n", 4, "-r", 2, "--json")
    prefill, decode = json.loads(result.stdout)
    assert prefill["avg_ts"] > 0 and decode["avg_ts"] > 0


def test_show(model_path) -> None:
    value = json.loads(llamba("show", model_path, "--json").stdout)
    assert (value["architecture"], value["runs"]) == ("llama", True)
    assert value["has_chat_template"]
