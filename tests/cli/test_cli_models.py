"""`pull`, `list`, `rm`, `show`, `tokenize`, `doctor`."""

import json
from types import SimpleNamespace

import pytest

from llamba.cli import loading
from llamba.cli.progress import SHORT_S, progress


@pytest.fixture
def no_delay(monkeypatch) -> None:
    """Progress is shown at once."""
    monkeypatch.setattr("llamba.cli.progress.SHORT_S", 0.0)


def test_pull(invoke, store, no_delay) -> None:
    result = invoke("pull", "smollm2")
    assert result.exit_code == 0
    assert result.stdout == f"{store.models[0].path}\n"
    assert "fetching smollm2 (3.0 MB)" in result.stderr
    assert "fetching smollm2: 3.0 MB of 3.0 MB, done" in result.stderr
    [row] = json.loads(invoke("pull", "smollm2", "--json").stdout)
    assert row == {"name": "smollm2", "path": str(store.models[0].path), "num_bytes": 3_000_000}


def test_pull_of_an_unknown_name(invoke, store) -> None:
    result = invoke("pull", "nosuch")
    assert (result.exit_code, result.stderr) == (3, "error: no model 'nosuch'\n")


def test_list(invoke, store) -> None:
    result = invoke("list")
    assert result.stdout.splitlines()[1].split()[:4] == ["smollm2", "3.0", "MB", "catalogue"]
    assert "qwen2.5-coder-0.5b" in result.stderr  # what else there is
    [row] = json.loads(invoke("list", "--json").stdout)
    assert (row["name"], row["num_bytes"]) == ("smollm2", 3_000_000)
    store.models = []
    assert invoke("list", "--json").stdout == "[]\n"
    result = invoke("list")
    assert result.stdout == "" and "no models" in result.stderr


def test_rm(invoke, store) -> None:
    assert invoke("rm", "smollm2").exit_code == 0
    rows = json.loads(invoke("rm", "a", "b", "--json").stdout)
    assert rows == [{"name": "a", "num_bytes": 3_000_000}, {"name": "b", "num_bytes": 3_000_000}]
    assert store.removed == ["smollm2", "a", "b"]


def test_progress_is_quiet_when_it_is_quick(capsys, monkeypatch) -> None:
    monkeypatch.setattr("llamba.cli.progress.SHORT_S", SHORT_S)
    clock = SimpleNamespace(monotonic=lambda: 1000.0)  # it stands, however long this takes
    monkeypatch.setattr("llamba.cli.progress.time", clock)
    with progress("m") as update:
        update("verify", 0, 10)
        update("verify", 10, 10)
    assert capsys.readouterr().err == ""
    with progress("m") as update:
        for done in range(22):
            update("compile", done, 21)
    assert capsys.readouterr().err.splitlines() == [
        "compiling kernels for this CPU, once (21)",
        "compiling kernels for this CPU, once: 21 of 21, done",
    ]


def test_show(invoke, tiny_gguf) -> None:
    path = str(tiny_gguf())
    text = invoke("show", path, "--tensors").stdout
    for part in ("architecture   llama", "parameters", "runs here      yes", "KV cache", "blk.0."):
        assert part in text
    value = json.loads(invoke("show", path, "--json", "-c", "64").stdout)
    assert value["architecture"] == "llama"
    assert value["memory"]["context_length"] == 64
    assert value["num_parameters"] == sum(
        t["shape"][0] * (t["shape"] + [1])[1] for t in value["tensors"]
    )
    assert sum(of["count"] for of in value["tensor_types"].values()) == len(value["tensors"])
    assert value["metadata"]["general.architecture"] == "llama"


@pytest.mark.parametrize("length", ["0", "-1", "99999999999"])
def test_show_refuses_impossible_contexts(invoke, tiny_gguf, length) -> None:
    result = invoke("show", str(tiny_gguf()), "-c", length)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: -c {length}: must be a whole number from 1 to ")


def test_an_empty_name_is_named(invoke) -> None:
    assert "name is empty" in invoke("rm", "").stderr


def test_show_of_a_file_that_is_not_one(invoke, tmp_path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<!DOCTYPE html><html>", encoding="utf-8")
    for command in ("show", "bench"):
        result = invoke(command, str(path))
        assert result.exit_code == 4
        assert len(result.stderr.splitlines()) == 1 and "page.gguf" in result.stderr
    assert invoke("show", str(tmp_path / "none.gguf")).exit_code == 3


class Words:
    """A tokenizer of words."""

    words = ["<s>", "Hello", "world", "\ufffd"]

    def encode(self, text, *, add_special=True, parse_special=False) -> list[int]:
        ids = [self.words.index(word) for word in text.split()]
        return [0, *ids] if add_special else ids

    def token_text(self, token_id) -> str:
        return self.words[token_id]

    def token_bytes(self, token_id) -> bytes:
        return [b"", b"Hello", b"world", b"\xf0\x9f"][token_id]


@pytest.fixture
def words(monkeypatch) -> None:
    monkeypatch.setattr(loading, "open_tokenizer", lambda name: Words())


def test_tokenize(invoke, words) -> None:
    result = invoke("tokenize", "m", "Hello world \ufffd")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["ID", "PIECE"],
        ["0", "'<s>'"],
        ["1", "'Hello'"],
        ["2", "'world'"],
        ["3", "'<0xF0><0x9F>'"],
    ]
    assert json.loads(invoke("tokenize", "m", "Hello world", "--json").stdout) == [0, 1, 2]
    assert json.loads(invoke("tokenize", "m", "Hello", "--no-special", "--json").stdout) == [1]
    assert json.loads(invoke("tokenize", "m", "Hello", "--json", "--pieces").stdout)[1] == {
        "id": 1,
        "piece": "Hello",
    }
    assert invoke("tokenize", "m", "Hello", "world", "--count").stdout == "3\n"
    assert json.loads(invoke("tokenize", "m", "-", "--json", input="world").stdout) == [0, 2]
    assert json.loads(invoke("tokenize", "m", "--json", input="world").stdout) == [0, 2]


def test_doctor(invoke, store, monkeypatch) -> None:
    value = json.loads(invoke("doctor", "--no-measure", "--json").stdout)
    assert value["threads"] >= 1
    assert value["models"] == "1 (3.0 MB)"
    assert "none compiled yet" in value["kernels"]
    assert "threads" in invoke("doctor", "--no-measure").stdout
    monkeypatch.setenv("LLAMBA_TARGET", "nonsense")
    from llamba.quant.target import target

    target.cache_clear()
    assert "nonsense" in json.loads(invoke("doctor", "--no-measure", "--json").stdout)["target"]
    target.cache_clear()
