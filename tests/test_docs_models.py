"""docs/MODELS.md names what there is, no more and no less: its lists are those of the code.

A comment before a table or a paragraph says which list it is: <!-- names: formats -->. The names
are the code words of a table's column, or of the whole paragraph.
"""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from llamba.models import resolving
from llamba.models.architectures import ARCHITECTURES
from llamba.models.chat.builtin import BUILTIN_TEMPLATES
from llamba.models.chat.reasoning import REASONING_FORMATS
from llamba.models.chat.tool_formats import TOOL_FORMATS
from llamba.models.convert.families import BY_CLASS
from llamba.models.tokenizer.pretokenize import PRE_TOKENIZERS
from llamba.quant import FORMATS_BY_NAME

ROOT = Path(__file__).resolve().parents[1]

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(ROOT / "tests"))
    CHECKPOINTS = importlib.import_module("convert_checkpoints").CHECKPOINTS

TEXT = (ROOT / "docs" / "MODELS.md").read_text(encoding="utf-8")
LISTS = {
    "architectures": ARCHITECTURES.keys(),
    "formats": FORMATS_BY_NAME.keys(),
    "templates": BUILTIN_TEMPLATES.keys(),
    "tools": {form.name for form in TOOL_FORMATS},
    "thinking": {form.name for form in REASONING_FORMATS},
    "refused": resolving._KIND_OF.keys(),
}


def block(name: str) -> str:
    """What follows a list's comment, up to the next empty line."""
    found = re.search(rf"^<!-- names: {name} -->\n\n(.*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"MODELS.md has no list {name}"
    return found[1]


def rows(name: str) -> list[list[str]]:
    """A table's cells without its head."""
    lines = block(name).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(name: str) -> list[str]:
    """The names of a list, in order."""
    text = block(name)
    if text.startswith("|"):
        column = 1 if name == "refused" else 0
        text = "\n".join(row[column] for row in rows(name))
    # What stands in brackets explains a name.
    return re.findall(r"`([^`]+)`", re.sub(r"\([^()]*\)", "", text))


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_those_of_the_code(name: str) -> None:
    listed = names(name)
    assert sorted(listed) == sorted(LISTS[name])


def test_converted_classes_are_those_of_the_code() -> None:
    """Each row: the architecture, and all classes that become it."""
    listed = {
        ours.strip("`"): sorted(re.findall(r"`([^`]+)`", classes))
        for ours, classes in rows("converted")
    }
    expected: dict[str, list[str]] = {}
    for name, family in sorted(BY_CLASS.items()):
        expected.setdefault(family.architecture, []).append(name)
    assert listed == expected
    assert list(listed) == sorted(listed)
    assert set(listed) == set(ARCHITECTURES)
    assert f"each of {len(CHECKPOINTS)} tiny checkpoints" in TEXT


def test_encoders_are_called_so() -> None:
    for name, _, kind, _ in rows("architectures"):
        causal = ARCHITECTURES[name.strip("`")].causal
        assert kind.startswith("decoder" if causal else "encoder"), name


def test_bits_of_formats() -> None:
    for name, bits, block_len, _ in rows("formats"):
        fmt = FORMATS_BY_NAME[name.strip("`")]
        assert int(block_len) == fmt.block_len, name
        assert float(bits) == 8 * fmt.block.itemsize / fmt.block_len, name


@pytest.fixture
def tiny_models(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "tiny_models"))
    return importlib.import_module("tiny_catalogue").MODELS


def test_counts(tiny_models: dict[str, Any]) -> None:
    assert f"{len(tiny_models)} for the {len(ARCHITECTURES)} architectures" in TEXT
    assert f"All {len(PRE_TOKENIZERS)} names of `tokenizer.ggml.pre`" in TEXT
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[{len(ARCHITECTURES)} architectures](docs/MODELS.md)" in readme
    ways = f"{len(TOOL_FORMATS)} ways of writing tool calls, {len(REASONING_FORMATS)} of thinking"
    assert ways in readme


def test_every_architecture_has_a_tiny_model(tiny_models: dict[str, Any]) -> None:
    assert {tiny.architecture for tiny in tiny_models.values()} == set(ARCHITECTURES)
