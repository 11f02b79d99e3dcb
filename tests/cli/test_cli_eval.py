"""`llamba eval`: figures, details, and files that won't do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROWS = [
    {"question": "he and the other", "choices": ["hello", "the world is on", "a"], "answer": 0},
    {"question": "the other", "choices": ["in", "on the"], "answer": "B"},
    {"question": "and", "choices": ["or", "on the"], "answer": "on the"},
]
ARGS = ("--activations", "float32", "--cache-type", "f32", "-t", "1")


@pytest.fixture(autouse=True)
def private_cache() -> None:
    """The kernels that other tests compiled are used: overrides the private cache."""


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return str(path)


@pytest.mark.kernels
def test_figures_and_details(
    invoke: Any, tiny_gguf: Callable[..., Path], rows: str, tmp_path: Path
) -> None:
    model, details = str(tiny_gguf(seed=1)), tmp_path / "details.jsonl"
    result = invoke("eval", model, rows, *ARGS, "--details", str(details))
    assert result.exit_code == 0, result.stderr
    found = [json.loads(line) for line in details.read_text().splitlines()]
    assert [each["answer"] for each in found] == [0, 1, 1]
    assert [each["line"] for each in found] == [1, 2, 3]
    right = sum(each["right"] for each in found)
    shown = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert shown["acc"].startswith(f"{right / 3:.4f} +/- ") and shown["chance"] == "0.4444"
    assert "3 questions, " in result.stderr
    data = Path(rows).read_text()
    report = json.loads(invoke("eval", model, "-", *ARGS, "--json", input=data).stdout)
    assert report["num_questions"] == 3 and report["acc"] == pytest.approx(right / 3)
    assert report["chance"] == pytest.approx((1 / 3 + 1) / 3)
    again = invoke("eval", model, rows, *ARGS, "--details", str(details))
    assert again.exit_code == 9 and "exists already" in again.stderr
    few = ("--few-shot", "1", "--limit", "1", "--chat", "--json")
    report = json.loads(invoke("eval", model, rows, *ARGS, *few).stdout)
    assert (report["num_questions"], report["few_shot"], report["chat"]) == (1, 1, True)


def test_refused(invoke: Any, tiny_gguf: Callable[..., Path], rows: str, tmp_path: Path) -> None:
    model, bad = str(tiny_gguf(seed=1)), tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(ROWS[0]) + '\n{"question": "and"}\n')
    for args, message in (
        ((str(bad),), f"{bad}, line 2: choices is missing"),
        ((str(tmp_path / "none"),), "can't be read: No such file"),
        ((rows, "--details", rows, "--force"), "; name another"),
        ((rows, "--details", model, "--force"), "; name another"),
        ((rows, "--limit", "0"), "--limit 0: must be at least 1"),
        ((rows, "--few-shot", "-1"), "--few-shot -1: must be at least 0"),
        ((rows, "--few-shot", "3"), "no questions are left beside --few-shot 3"),
    ):
        result = invoke("eval", model, *args)
        assert result.exit_code == 2 and message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_details_need_a_file(invoke: Any, tiny_gguf: Callable[..., Path], rows: str) -> None:
    result = invoke("eval", str(tiny_gguf(seed=1)), rows, *ARGS, "--details", "-")
    assert result.exit_code == 2 and "--details -: name a file" in result.stderr


@pytest.mark.kernels
def test_no_template(invoke: Any, tiny_gguf: Callable[..., Path], rows: str) -> None:
    model = tiny_gguf(seed=1, metadata={"tokenizer.chat_template": None})
    result = invoke("eval", str(model), rows, *ARGS, "--chat")
    assert result.exit_code == 2 and "has no chat template" in result.stderr


def test_the_target_is_no_shard_of_the_model(
    invoke: Any, tiny_gguf: Callable[..., Path], rows: str, tmp_path: Path
) -> None:
    shard = tmp_path / "second.gguf"
    first = tiny_gguf(seed=1, split_max_tensors=9)
    shard.symlink_to(first.with_name(first.name.replace("-00001-", "-00002-")))
    before = shard.read_bytes()
    args = ("eval", str(first), rows, "--details", str(shard), "--force")
    result = invoke(*args)
    assert result.exit_code == 2 and "is read, and can't be written" in result.stderr
    assert shard.read_bytes() == before
