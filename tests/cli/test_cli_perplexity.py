"""`llamba perplexity`: figures, files of log-probabilities, and texts that won't do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamba.cli.progress import ChunkProgress
from llamba.runtime.logits_file import LogitsFile

pytestmark = pytest.mark.kernels
WORDS = "hello the other world and in an or " * 40
EXACT = ("-c", "32", "--activations", "float32", "--cache-type", "f32", "-t", "1")


@pytest.fixture(autouse=True)
def private_cache() -> None:
    """The kernels that other tests compiled are used: overrides the private cache."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text(WORDS + "\n")
    return path


def test_figure(invoke: Any, tiny_gguf: Callable[..., Path], text: Path) -> None:
    model = str(tiny_gguf(seed=1))
    result = invoke("perplexity", model, str(text), *EXACT, "--chunks", "3")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("PPL = ") and " +/- " in result.stdout
    assert "3 chunks of 32 tokens, 45 of them scored, in " in result.stderr
    report = json.loads(
        invoke("perplexity", model, "-", *EXACT, "--chunks", "3", "--json", input=WORDS).stdout
    )
    assert result.stdout == f"PPL = {report['ppl']:.4f} +/- {report['ppl_error']:.5f}\n"
    assert report["running_ppl"][-1] == report["ppl"] and len(report["running_ppl"]) == 3
    named = ("n_ctx", "n_chunks", "num_scored", "activations", "cache_type", "n_threads", "device")
    assert [report[n] for n in named] == [32, 3, 45, "float32", "f32", 1, report["device"]]
    assert report["bits_per_weight"] == 32 and report["model_filename"] == model
    same = invoke("perplexity", model, "-f", str(text), *EXACT, "--chunks", "-1", "--json")
    assert json.loads(same.stdout)["n_chunks"] > 3


def test_lora_changes_it(
    invoke: Any, tiny_gguf: Callable[..., Path], adapter_file: Any, text: Path, tmp_path: Path
) -> None:
    model = tiny_gguf(seed=1)
    pairs = adapter_file.random_pairs(model, adapter_file.matrices(model), rank=4)
    adapter = adapter_file.write_adapter(tmp_path / "a.gguf", pairs)
    alone, scaled, off = (
        invoke("perplexity", str(model), str(text), *EXACT, *lora).stdout
        for lora in ((), ("--lora", str(adapter)), ("--lora", f"{adapter}:0"))
    )
    assert alone == off != scaled and scaled.startswith("PPL = ")


def test_log_probabilities_are_kept_and_read(
    invoke: Any, tiny_gguf: Callable[..., Path], text: Path, tmp_path: Path
) -> None:
    a, b, base = str(tiny_gguf(seed=1)), str(tiny_gguf(seed=2)), tmp_path / "base"
    for name in ("--save-logits", "--kl-divergence-base"):  # without --kl-divergence it is written
        result = invoke("perplexity", a, str(text), *EXACT, name, str(base), "--force")
        assert result.exit_code == 0 and f"{base}: log-probabilities" in result.stderr
    with LogitsFile(base) as file:
        assert file.n_ctx == 32
    again = invoke("perplexity", a, str(text), *EXACT, "--save-logits", str(base))
    assert again.exit_code == 9 and "exists already" in again.stderr
    args = ("--kl-divergence", "--kl-divergence-base", str(base), *EXACT)
    result = invoke("perplexity", b, *args)
    assert "Mean KLD" in result.stdout and f"base: {base}" in result.stdout
    same = json.loads(invoke("perplexity", a, *args, "--json").stdout)
    assert abs(same["models"][0]["kld"][0]) < 1e-6 and same["models"][0]["same_top"][0] == 1
    assert same["base"]["logits_file"] == str(base)
    told = invoke("perplexity", b, str(text), *args, "--chunks", "2", "--json")
    assert "is not read" in told.stderr
    assert json.loads(told.stdout)["models"][0]["num_scored"] == 30
    assert json.loads(told.stdout)["n_chunks"] == 2


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", (), "no text (0 bytes)"),
        (b" \n", (), "no text (2 bytes)"),
        (b"hello", EXACT, "needs at least 64 tokens of text, there are 1: two chunks of"),
        (b"ok \xff", (), "byte 3 is not UTF-8"),
        (b"hello", ("-c", "3"), "is 3, expected at least 4"),
        (b"hello", ("--chunks", "0"), "--chunks 0: must be at least 1, or -1 for all"),
        (b"hello", ("-c", "300"), "--ctx-size 300: must be a whole number from 1 to 256"),
        (b"hello", ("-f", "more"), "TEXT and --file: give one of them"),
        (b"hello", ("--save-logits", "{text}", "--force"), "; name another"),
        (b"hello", ("--save-logits", "{model}", "--force"), "; name another"),
        (b"hello", ("--kl-divergence",), "--kl-divergence needs --kl-divergence-base FILE"),
    ],
)
def test_refused(
    invoke: Any,
    tiny_gguf: Callable[..., Path],
    tmp_path: Path,
    content: bytes,
    options: tuple[str, ...],
    message: str,
) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    model = str(tiny_gguf(seed=1))
    filled = [option.format(model=model, text=path) for option in options]
    result = invoke("perplexity", model, str(path), *filled)
    assert path.read_bytes() == content
    assert result.exit_code == 2 and not result.stdout
    # Kernels are compiled now if no test before has needed them.
    said = [s for s in result.stderr.splitlines() if not s.startswith("compiling kernels")]
    assert len(said) == 1 and message in said[0]


def test_no_text(invoke: Any, tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    model = str(tiny_gguf(seed=1))
    assert "no TEXT: give a file, or -" in invoke("perplexity", model).stderr
    missing = invoke("perplexity", model, str(tmp_path / "none"))
    assert missing.exit_code == 2 and "can't be read: No such file" in missing.stderr
    read = invoke("perplexity", model, "--kl-divergence", "--save-logits", str(tmp_path / "none"))
    assert read.exit_code == 2 and "can't be read: No such file" in read.stderr


def test_an_encoder(invoke: Any, tiny_models: Any, text: Path, tmp_path: Path) -> None:
    model, rows = tiny_models.write(tmp_path, "bert", "F32"), tmp_path / "rows.jsonl"
    rows.write_text('{"question": "a", "choices": ["b", "c"], "answer": 0}\n')
    for name, *args in (("perplexity", text), ("eval", rows), ("compare", model, text)):
        result = invoke(name, str(model), *map(str, args))
        assert result.exit_code == 5 and len(result.stderr.splitlines()) == 1
        assert "predicts no next token" in result.stderr
        assert "llamba embed" in result.stderr


def test_progress_in_lines(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Where stderr is no terminal: one now and then, none for what is done at once."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with ChunkProgress() as progress:
        for done in range(1, 5):
            now[0] += 6
            progress.update(done, 4, f"PPL {done}")
    assert capsys.readouterr().err.splitlines() == [
        "chunk 2/4: PPL 2, 0:12 left",
        "chunk 4/4: PPL 4",
    ]


def test_the_target_is_no_shard_of_the_model(
    invoke: Any, tiny_gguf: Callable[..., Path], text: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "second.gguf"
    first = tiny_gguf(seed=1, split_max_tensors=9)
    shard.symlink_to(first.with_name(first.name.replace("-00001-", "-00002-")))
    before = shard.read_bytes()
    args = ("perplexity", str(first), str(text), "--save-logits", str(shard), "--force")
    result = invoke(*args)
    assert result.exit_code == 2 and "is read, and can't be written" in result.stderr
    assert shard.read_bytes() == before
