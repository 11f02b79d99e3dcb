"""`llamba imatrix` on a tiny model: what it writes and when, what it says, what it refuses."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.models.importance import Importance, Sums
from llamba.models.importance_writer import write
from llamba.runtime.importance import Collector

pytestmark = pytest.mark.kernels
TEXT = "the hello world in the hello and on the world. " * 12  # 206 tokens
SIZE = ("-c", "32", "-t", "2")


@pytest.fixture(autouse=True)
def private_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of conftest's: kernels are compiled once, not for each test."""
    monkeypatch.delenv("LLAMBA_DEBUG", raising=False)


@pytest.fixture
def model(tiny_gguf: Callable[..., Path]) -> str:
    return str(tiny_gguf())


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "im.gguf"


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(name, chunks) of every file that is written."""
    made: list[tuple[str, int]] = []
    from llamba.models import importance_writer

    def noting(importance: Importance, path: Path, **options: Any) -> str:
        made.append((path.name, importance.chunk_count))
        return write(importance, path, **options)

    monkeypatch.setattr(importance_writer, "write", noting)
    return made


def test_collects_and_reports(invoke: Any, model: str, text: str, out: Path) -> None:
    result = invoke("imatrix", model, text, *SIZE, "-o", out, "--json")
    assert result.exit_code == 0, result.stderr
    report, found = json.loads(result.stdout), Importance.open(out)
    [file] = report["files"]
    assert file["path"] == str(out) and file["num_bytes"] == out.stat().st_size
    assert len(file["sha256"]) == 64
    assert report["n_chunks"] == report["n_chunks_total"] == found.chunk_count
    assert report["n_ctx"] == 32 and report["num_weights"] == len(found) == 14
    assert report["num_tokens"] == 32 * report["n_chunks"] and report["num_partly_seen"] == 0
    assert found.datasets == (text,) and found.chunk_size == 32
    assert found["blk.0.attn_q.weight"].counts.tolist() == [report["num_tokens"]]
    assert len(report["running_ppl"]) == report["n_chunks"]
    assert report["ppl"] == report["running_ppl"][-1] > 1
    again = invoke("imatrix", model, text, *SIZE, "-o", out)
    assert again.exit_code == 9 and "exists already" in again.stderr


def test_a_person_reads(invoke: Any, model: str, text: str, out: Path) -> None:
    result = invoke("imatrix", model, text, *SIZE, "-o", out, "--chunks", "2")
    assert result.exit_code == 0, result.stderr
    first, second, third = result.stdout.splitlines()
    assert first == f"{out}: 14 weights, 2 chunks of 32 tokens"
    assert second.startswith("perplexity ") and third.startswith("sha256 ")
    assert re.search(r"^64 tokens in \d+\.\d s, \d+ a second$", result.stderr, re.MULTILINE)


def test_from_stdin_with_the_output_matrix(invoke: Any, model: str, out: Path) -> None:
    options = ("--process-output", "--no-ppl", "--json")
    result = invoke("imatrix", model, "-", *SIZE, "-o", out, *options, input=TEXT)
    assert result.exit_code == 0, result.stderr
    found, report = Importance.open(out), json.loads(result.stdout)
    assert "output.weight" in found and found.datasets == ("stdin",)
    assert report["ppl"] is None


def test_chunks_add_up(invoke: Any, model: str, text: str, tmp_path: Path) -> None:
    """The first two, and the third and fourth on top of them, are the first four."""
    paths = a, b, whole = [tmp_path / f"{name}.gguf" for name in "abc"]
    runs = (
        ("-o", a, "--chunks", "2"),
        ("-o", b, "--chunks", "2", "--from-chunk", "2", "--in-file", a),
        ("-o", whole, "--chunks", "4"),
    )
    for options in runs:
        assert invoke("imatrix", model, text, *SIZE, "--no-ppl", *options).exit_code == 0
    first, second, all_four = map(Importance.open, paths)
    assert (first.chunk_count, second.chunk_count, all_four.chunk_count) == (2, 4, 4)
    assert second.datasets == (text, text)
    for name in all_four:
        np.testing.assert_allclose(second[name].squares, all_four[name].squares, rtol=1e-5)
        assert second[name].counts.tolist() == all_four[name].counts.tolist() == [128]


def test_resuming_into_the_same_file(invoke: Any, model: str, text: str, out: Path) -> None:
    options = (*SIZE, "--no-ppl", "--chunks", "1", "-o", out)
    assert invoke("imatrix", model, text, *options).exit_code == 0
    assert invoke("imatrix", model, text, *options, "--in-file", out).exit_code == 0
    assert Importance.open(out).chunk_count == 2


def test_saves_as_it_goes(
    invoke: Any, model: str, text: str, out: Path, saves: list[tuple[str, int]]
) -> None:
    options = ("--output-frequency", "2", "--save-frequency", "3", "--chunks", "5", "--no-ppl")
    assert invoke("imatrix", model, text, *SIZE, "-o", out, *options).exit_code == 0
    names = [("im.gguf", 2), ("im.gguf.at_3", 3), ("im.gguf", 4), ("im.gguf", 5)]
    assert saves == names
    assert Importance.open(out.with_name("im.gguf.at_3")).chunk_count == 3


def test_interrupted(
    invoke: Any, model: str, text: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was saved stays, and how to go on is said."""
    run, calls = Collector.run, []

    def stopping(collector: Collector, chunks: Any) -> Any:
        calls.append(len(chunks))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(collector, chunks)

    monkeypatch.setattr(Collector, "run", stopping)
    result = invoke("imatrix", model, text, *SIZE, "-o", out, "--output-frequency", "2")
    assert result.exit_code == 130
    assert f"{out} has the first 4 chunks" in result.stderr
    assert "--from-chunk 4" in result.stderr
    assert Importance.open(out).chunk_count == 4
    assert [path.name for path in out.parent.glob("*im.gguf*")] == ["im.gguf"]


def test_the_older_form(invoke: Any, model: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "im.dat"
    options = ("--output-format", "dat", "--no-ppl")
    assert invoke("imatrix", model, text, *SIZE, "-o", path, *options).exit_code == 0
    found = Importance.open(path)
    assert found.chunked and found.datasets == (text,)


# -- without a model -----------------------------------------------------------------------------
@pytest.fixture
def saved(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    squares = [rng.uniform(1, 9, (1, 32)).astype(np.float32) for _ in range(3)]
    entries = {f"blk.{i}.w.weight": Sums(x, np.array([64])) for i, x in enumerate(squares)}
    entries["blk.2.e.weight"] = Sums(np.ones((2, 4), np.float32), np.array([64, 0]))
    write(Importance(entries, ("t",), 2, 32), tmp_path / "saved.gguf")
    return tmp_path / "saved.gguf"


def test_combining(invoke: Any, saved: Path, out: Path) -> None:
    result = invoke("imatrix", "--in-file", saved, "--in-file", saved, "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{out}: 4 weights, 4 chunks of 32 tokens\n")
    assert "1 weights have experts that no token went to" in result.stderr
    assert Importance.open(out)["blk.0.w.weight"].counts.tolist() == [128]


def test_statistics(invoke: Any, saved: Path) -> None:
    shown = invoke("imatrix", "--in-file", saved, "--show-statistics")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout == invoke("imatrix", str(saved), "--show-statistics").stdout
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:2] == ["WEIGHT", "MEAN"] and lines[1].startswith("blk.0.w.weight ")
    assert lines[5] == "" and lines[6].split()[0] == "LAYER" and len(lines) == 10
    report = json.loads(invoke("imatrix", str(saved), "--show-statistics", "--json").stdout)
    assert [found["name"] for found in report["weights"]][0] == "blk.0.w.weight"
    assert report["weights"][0]["change"] is None
    assert set(report["layers"][1]["change"]) >= {"gain", "cosine"}


def test_a_matrix_of_another_model(
    invoke: Any, model: str, text: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before anything is run."""
    other = out.with_name("other.gguf")
    wrong = Sums(np.ones((1, 3), np.float32), np.array([32]))
    write(Importance({"blk.0.attn_q.weight": wrong}, ("t",), 1, 32), other)
    monkeypatch.setattr(Collector, "run", lambda *_: pytest.fail("a chunk was run"))
    result = invoke("imatrix", model, text, *SIZE, "-o", out, "--in-file", other)
    assert result.exit_code == 4 and "of different models" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give MODEL and TEXT"),
        (("{model}",), "give MODEL and TEXT"),
        (("{model}", "absent.txt"), "absent.txt: No such file"),
        (("{model}", "{text}", "-c", "400"), "the text has 206 tokens, a chunk of 400 needs 400"),
        (("{model}", "{text}", "-c", "32", "--chunk", "9"), "after the 9 that are skipped needs"),
        (("{model}", "{text}", "-c", "8"), "must be 16 to 256"),
        (("{model}", "{text}", "-c", "0"), "-c 0: must be at least 1"),
        (("{model}", "{text}", "-c", "32", "--chunks", "0"), "nothing to read"),
        (("{model}", "{text}", "--output-frequency", "0"), "--output-frequency 0: at least 1"),
        (("{model}", "{text}", "-o", "/absent/im.gguf"), "there is no folder /absent"),
        (("{model}", "{text}", "-o", "{model}", "--force"), "; name another"),
        (("{model}", "{text}", "-o", "{text}", "--force"), "; name another"),
        (("{model}", "{text}", "-o", "a" * 300), "can't be written: File name too long"),
        (("--show-statistics",), "name the file with --in-file"),
        (("--show-statistics", "{text}"), "neither GGUF nor a whole importance matrix"),
        (("--show-statistics", "{model}"), "holds no importance matrix"),
        (("--in-file", "{text}"), "neither GGUF nor a whole importance matrix"),
    ],
)
def test_what_is_refused(
    invoke: Any,
    model: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: tuple[str, ...],
    message: str,
) -> None:
    """In one line, before anything is written."""
    monkeypatch.chdir(tmp_path)
    filled = [option.format(model=model, text=text) for option in options]
    result = invoke("imatrix", *filled)
    assert result.exit_code not in (0, 1), result.stdout
    assert message in result.stderr and len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
