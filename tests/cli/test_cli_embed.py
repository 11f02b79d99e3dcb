"""`llamba embed` and `llamba rerank` over a fake model: where texts come from, what is shown."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llamba.cli import loading
from llamba.errors import ContextLengthError, InvalidParameterError, UnsupportedTaskError
from llamba.runtime.reranking import ranked


@dataclass
class Fake:
    """A vector says how long its text is; a document fits as well as it is long."""

    calls: list[tuple[list[str], dict[str, Any]]] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    error: Exception | None = None
    closed: int = 0

    def embed(self, texts: list[str], **options: Any) -> list[Any]:
        self.calls.append((texts, options))
        if self.error is not None:
            raise self.error
        return [
            SimpleNamespace(
                embedding=np.array([len(text), 0.1, -1e-9], np.float32), prompt_token_ids=[1, 2]
            )
            for text in texts
        ]

    def rerank(self, query: str, documents: list[str], **options: Any) -> list[Any]:
        self.calls.append(([query, *documents], options))
        if self.error is not None:
            raise self.error
        return ranked([len(text) / 7 for text in documents], documents)[: options["top_n"]]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()

    def open_llm(name: str, options: Any, **more: Any) -> Fake:
        made.opened.append((name, options.given(), more))
        return made

    monkeypatch.setattr(loading, "open_llm", open_llm)
    return made


def test_lines_of_json(invoke, fake) -> None:
    result = invoke("embed", "model", "a cat", "dog")
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["index"] for line in lines] == [0, 1]
    assert [line["embedding"][0] for line in lines] == [5, 3]
    assert lines[0]["embedding"][1:] == [0.1, -1e-9] or np.allclose(
        lines[0]["embedding"][1:], [0.1, -1e-9], rtol=1e-7
    )
    assert fake.calls == [
        (
            ["a cat", "dog"],
            {"pooling": None, "normalize": True, "dimensions": None, "truncate": False},
        )
    ]
    assert fake.opened == [("model", {}, {"max_sequences": None})] and fake.closed == 1


def test_options(invoke, fake) -> None:
    args = ["--pooling", "cls", "--dimensions", "2", "--no-normalize", "--truncate", "-t", "3"]
    args += ["-c", "128", "--activations", "float32"]
    assert invoke("embed", "m", "a", *args).exit_code == 0
    assert fake.calls[0][1] == {
        "pooling": "cls",
        "normalize": False,
        "dimensions": 2,
        "truncate": True,
    }
    given = {"num_threads": 3, "context_length": 128, "activations": "float32"}
    assert fake.opened[0][1] == given


def test_where_texts_come_from(invoke, fake, tmp_path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    second.write_text("three")
    for args, given, wanted in (
        ((), "x\ny\n", ["x", "y"]),
        (("-",), "x", ["x"]),
        (("w", "-"), "x", ["w", "x"]),
        (("-f", str(first), "--file", str(second)), "unread", ["one", "two", "three"]),
        (("w", "-f", str(second), "-"), "x", ["w", "three", "x"]),
    ):
        assert invoke("embed", "m", *args, input=given).exit_code == 0
        assert fake.calls[-1][0] == wanted
        assert invoke("rerank", "m", "q", *args, input=given).exit_code == 0
        assert fake.calls[-1][0] == ["q", *wanted]


def test_other_forms(invoke, fake, tmp_path) -> None:
    whole = json.loads(invoke("embed", "m", "a", "bb", "--json").stdout)
    assert whole["object"] == "list" and whole["model"] == "m"
    assert [each["embedding"][0] for each in whole["data"]] == [1, 2]
    assert whole["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    raw = invoke("embed", "m", "a", "bb", "--raw").stdout.splitlines()
    assert [float(line.split()[0]) for line in raw] == [1, 2] and len(raw[0].split()) == 3
    path = tmp_path / "out.npy"
    result = invoke("embed", "m", "a", "bb", "-o", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    saved = np.load(path)
    assert saved.dtype == np.float32 and saved[:, 0].tolist() == [1, 2]
    text = tmp_path / "out.jsonl"
    assert invoke("embed", "m", "a", "-o", str(text)).stdout == ""
    assert json.loads(text.read_text())["index"] == 0


def test_rerank_shows_a_table(invoke, fake) -> None:
    result = invoke("rerank", "m", "q", "aa", "bbbbb\nsecond line", "cccc", "--top-n", "2")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["SCORE", "INDEX", "DOCUMENT"]
    assert lines[1].split() == ["2.4286", "1", "bbbbb", "second", "line"]
    assert lines[2].split() == ["0.5714", "2", "cccc"] and len(lines) == 3
    assert fake.calls[0][1] == {"top_n": 2, "normalize": False, "truncate": False}
    shown = invoke("rerank", "m", "q", "d" * 500).stdout.splitlines()[1]
    assert len(shown) < 130 and shown.endswith("…")
    found = json.loads(invoke("rerank", "m", "q", "aa", "bbb", "--json", "--normalize").stdout)
    assert [each["index"] for each in found] == [1, 0] and found[0]["document"] == "bbb"
    assert fake.calls[-1][1]["normalize"] is True


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnsupportedTaskError("the model is no reranker"), 5),
        (ContextLengthError("too long"), 2),
        (InvalidParameterError("inputs[3]: an empty text"), 2),
    ],
)
@pytest.mark.parametrize("args", [["embed", "m", "a"], ["rerank", "m", "q", "a"]])
def test_errors_are_one_line(invoke, fake, args, error, code) -> None:
    fake.error = error
    result = invoke(*args)
    assert result.exit_code == code
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    assert fake.closed == 1


def test_wrong_command_lines(invoke, fake, tmp_path: Path) -> None:
    for args in (
        ["embed"],
        ["embed", "m", "a", "--json", "--raw"],
        ["embed", "m", "a", "--raw", "-o", "x.npy"],
        ["embed", "m", "a", "-o", str(tmp_path / "none" / "x.npy")],
        ["embed", "m", "a", "--pooling", "max"],
        ["embed", "m", "-f", str(tmp_path / "none.txt")],
        ["rerank", "m"],
        ["rerank", "m", "q", "a", "--top-n", "0"],
    ):
        result = invoke(*args)
        assert result.exit_code == 2, args
        assert len(result.stderr.splitlines()) == 1 and "Traceback" not in result.output
    for args in (["embed", "m"], ["rerank", "m", "q"]):
        result = invoke(*args, input="")
        assert result.exit_code == 2 and "on stdin" in result.stderr
    fake.error = InvalidParameterError("dimensions=0: must be a whole number")
    assert "--dimensions 0" in invoke("embed", "m", "a", "--dimensions", "0").stderr
    assert len(fake.opened) == 1  # the others were refused before a model was loaded


def test_encoders_neither_chat_nor_run_a_benchmark(
    invoke, llm, tiny_models, tmp_path, monkeypatch
) -> None:
    path = tiny_models.write(tmp_path, "bert", "F32")
    result = invoke("bench", str(path), "-p", "8", "-n", "0")
    assert result.exit_code == 5
    assert "(architecture bert) is an encoder" in result.stderr and "llamba embed" in result.stderr

    def refuse() -> None:
        raise UnsupportedTaskError("an encoder")

    monkeypatch.setattr(llm, "check_generates", refuse)
    llm.chat_template = None
    result = invoke("chat", "smollm2", input="hello\n")
    assert result.exit_code == 5 and result.stderr == "error: an encoder\n" and llm.closed


def test_text_that_is_not_utf_8_is_refused(invoke, fake, tmp_path: Path) -> None:
    """A vector of what it might have meant would help nobody."""
    path = tmp_path / "latin1.txt"
    path.write_bytes("caf\xe9".encode("latin-1"))
    for command in (("embed", "model"), ("rerank", "model", "coffee")):
        result = invoke(*command, "--file", str(path))
        assert result.exit_code == 2 and fake.calls == []
        assert "byte 3 is not UTF-8" in result.stderr and "latin1.txt" in result.stderr
