"""`--lora` and what `show` says of adapters."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llamba.cli import bench
from llamba.cli.lora import lora_of_models, parse_lora
from llamba.cli.options import EngineOptions
from llamba.errors import InvalidParameterError


@pytest.fixture
def adapter(tiny_gguf: Callable[..., Path], adapter_file: ModuleType, tmp_path: Path) -> Path:
    model = tiny_gguf()
    pairs = adapter_file.random_pairs(model, adapter_file.matrices(model), rank=4)
    return adapter_file.write_adapter(tmp_path / "sql.gguf", pairs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sql.gguf", ("sql.gguf", 1.0)),
        ("sql.gguf:0.5", ("sql.gguf", 0.5)),
        ("a/b.gguf:-1", ("a/b.gguf", -1.0)),
        ("C:\\models\\sql.gguf", ("C:\\models\\sql.gguf", 1.0)),
        ("C:/models/sql.gguf:0.25", ("C:/models/sql.gguf", 0.25)),
        ("C:sql.gguf", ("C:sql.gguf", 1.0)),
        ("C:5", ("C:5", 1.0)),
        ("at:noon/sql.gguf", ("at:noon/sql.gguf", 1.0)),
    ],
)
def test_file_and_scale(text: str, expected: tuple[str, float]) -> None:
    assert parse_lora(text) == expected


def test_a_file_whose_name_ends_like_a_scale(tmp_path: Path) -> None:
    path = tmp_path / "sql:2"
    path.touch()
    assert parse_lora(str(path)) == (str(path), 1.0)
    assert parse_lora(f"{path}:3") == (str(path), 3.0)


@pytest.mark.parametrize("text", ["sql.gguf:much", "sql.gguf:", "sql.gguf:nan", "sql.gguf:inf"])
def test_wrong_scales(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="scale"):
        parse_lora(text)


def test_run_and_chat_pass_them_on(invoke: Any, llm: Any) -> None:
    for command, words in (("run", ["Hi"]), ("chat", [])):
        llm.opened.clear()
        options = ("--lora", "a.gguf", "--lora", "b.gguf:0.5")
        invoke(command, *words, *options, input="Hi\n")
        assert llm.opened == [("smollm2", EngineOptions(lora=[("a.gguf", 1.0), ("b.gguf", 0.5)]))]


def test_whose_they_are() -> None:
    """On a server of one model it is clear; else it is said."""
    here = str(Path.cwd())
    assert lora_of_models(["x.gguf:2", "a=y.gguf"], ["a"]) == {
        "a": ((f"{here}/x.gguf", 2.0), (f"{here}/y.gguf", 1.0))
    }
    assert lora_of_models(["b=/x.gguf:0.5", "a=/y=z.gguf"], ["a", "b"]) == {
        "b": (("/x.gguf", 0.5),),
        "a": (("/y=z.gguf", 1.0),),
    }
    assert lora_of_models([], []) == {}
    for names, words in ((["a", "b"], "one of a, b"), ([], "named on the command line")):
        with pytest.raises(InvalidParameterError, match=words):
            lora_of_models(["c=x.gguf"], names)


def test_show(invoke: Any, adapter: Path, tiny_gguf: Callable[..., Path]) -> None:
    text = invoke("show", str(adapter)).stdout
    assert "lora adapter" in text and "rank           4, alpha 8" in text
    assert "14 matrices: attn_k, attn_output, attn_q" in text
    assert "vocabulary" not in text and "runs here" not in text
    value = json.loads(invoke("show", str(adapter), "--json").stdout)
    assert value["adapter"]["ranks"] == [4] and len(value["adapter"]["tensors"]) == 14
    assert "runs" not in value
    assert "adapter" not in json.loads(invoke("show", str(tiny_gguf()), "--json").stdout)


def test_an_adapter_in_place_of_a_model(invoke: Any, adapter: Path) -> None:
    result = invoke("bench", str(adapter))
    assert result.exit_code == 5
    assert "sql.gguf: an adapter for a model of architecture 'llama'" in result.stderr


def test_bench(
    invoke: Any, adapter: Path, tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens that are measured have the adapter with its scale."""
    built: list[Any] = []

    class Program:
        num_pages, max_tokens, max_logits = 8, 64, 64

        def run(self, batch: Any) -> None:
            assert {segment.adapters for segment in batch.segments} == {(0.5,)}

        def close(self) -> None:
            built.append("closed")

    def build(weights: Any, tests: Any, threads: int, max_tokens: int, settings: Any) -> Program:
        built.append([each.name for each in settings["adapters"]])
        return Program()

    monkeypatch.setattr(bench, "_build", build)
    options = ("-p", "8", "-n", "2", "-r", "1", "--lora", f"{adapter}:0.5")
    result = invoke("bench", str(tiny_gguf()), *options)
    assert result.exit_code == 0, result.stderr
    assert built == [["sql"], "closed"]
