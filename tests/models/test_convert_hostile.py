"""config.json and its like with values that no model has: one clear error, never a fault."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamba.errors import InvalidModelFileError, InvalidParameterError, LlambaError
from llamba.models.convert.conversion import parse_override, prepare
from llamba.models.convert.lora_file import prepare_adapter
from llamba.models.convert.naming import file_name
from llamba.models.gguf import GGUFFile

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    checkpoints = importlib.import_module("convert_checkpoints")
    adapters = importlib.import_module("peft_adapters")

ODD = (0, -1, 10**30, float("inf"), 0.5, "x", "\ud800", [], [[1]], {"a": 1}, True)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in JSON, but for the words of a vocabulary."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:3])
    for key, inner in items:
        yield (*at, key)
        if isinstance(inner, dict | list) and key not in ("vocab", "merges"):
            yield from _places(inner, (*at, key))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("llama31", "config.json"),
        ("llama31", "tokenizer_config.json"),
        ("qwen2-yarn", "config.json"),
        ("bert", "config.json"),
        ("bert", "modules.json"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_odd_values(tmp_path: Path, name: str, file: str) -> None:
    path = checkpoints.write(tmp_path, name) / file
    text, refused, num = path.read_text(), 0, 0
    for at in _places(json.loads(text)):
        for odd in ODD[num % 4 :: 4]:  # by turns, as there are many
            values = json.loads(text)
            inner = values
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = odd
            path.write_text(json.dumps(values))
            try:
                prepare(path.parent)
            except LlambaError as error:
                assert "\n" not in str(error), (at, odd)
                refused += 1
        num += 1
    assert refused


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize("value", ["x", 0, -1, None, [1], True, float("inf")])
def test_odd_patterns_of_adapters(tmp_path: Path, key: str, value: Any) -> None:
    base, adapter = adapters.build("llama", tmp_path)
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: {".*": value}}))
    with pytest.raises(InvalidModelFileError, match=f"{key}: '\\.\\*' is .*positive number"):
        prepare_adapter(adapter, base)


@pytest.mark.parametrize("block", ["x", [128], [0, 128], [1.5, 2], {"a": 1}])
def test_odd_blocks_of_scales(tmp_path: Path, block: Any) -> None:
    folder = checkpoints.write(tmp_path, "llama")
    path = folder / "config.json"
    quantized = {"quant_method": "fp8", "weight_block_size": block}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantized}))
    with pytest.raises(InvalidModelFileError, match="weight_block_size is .*two positive whole"):
        prepare(folder).write(tmp_path / "out.gguf")
    assert not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".*"))


def test_odd_generation_config(tmp_path: Path) -> None:
    """Whole numbers may be written as floats; what GGUF's types can't hold is left out."""
    folder = checkpoints.write(tmp_path, "llama")
    values = {"top_k": 50.0, "top_p": float("nan"), "temperature": 10**400, "mirostat": 1 << 40}
    (folder / "generation_config.json").write_text(json.dumps(values))
    prepare(folder).write(tmp_path / "out.gguf")
    with GGUFFile.open(tmp_path / "out.gguf") as gguf:
        found = {key: gguf.metadata[key] for key in gguf.metadata if ".sampling." in key}
    assert found == {"general.sampling.top_k": 50}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=int:-1", "'-1' is not 0 to 4294967295"),
        ("a=str:\udcff", "is not text"),
        ("general.alignment=int:64", "says how the file is laid out"),
        ("split.count=int:2", "says how the file is laid out"),
        ("general.name=int:5", "write general.name=VALUE"),
    ],
)
def test_metadata_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message) as caught:
        parse_override(text)
    assert str(caught.value).startswith(f"--metadata {text!r}: ")


def test_a_readme_names_no_other_folder() -> None:
    made = file_name("a/b", None, "1B", "c\0d", "../../e", "f16")
    assert made == "a-b-1B-c-d-..-..-e-F16.gguf"


def test_the_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "llama")
    weights, before = folder / "model.safetensors", (folder / "model.safetensors").read_bytes()
    with pytest.raises(InvalidParameterError, match="is read, and can't be written"):
        prepare(folder).write(weights, overwrite=True)
    assert weights.read_bytes() == before
    for _ in range(2):  # an earlier result in the same folder may be replaced
        prepare(folder).write(folder / "model.gguf", overwrite=True)
