"""Token ids and texts equal to llama.cpp's, on real vocabularies."""

import json
import lzma
import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llamba.models.gguf import GGUFFile
from llamba.models.tokenizer import Tokenizer

MODELS = {
    "smollm2-135m": "smollm2",
    "gemma-3-270m": "gemma3",
    "qwen2.5-coder-0.5b": "qwen-0.5b",
    "qwen2.5-coder-1.5b": "qwen-1.5b",
}
VOCABULARIES = """bert-bge deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm
nomic-bert-moe phi-3 qwen2 qwen35 starcoder""".split()


def check(tokenizer: Tokenizer, golden: Path) -> None:
    wrong = []
    for case in json.loads(golden.read_text(encoding="utf-8"))["cases"]:
        for key in ("a0p0", "a0p1", "a1p0", "a1p1"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # two BOS tokens are part of the cases
                ids = tokenizer.encode(
                    case["text"], add_special=key[1] == "1", parse_special=key[3] == "1"
                )
            if ids != case[key]:
                wrong.append((key, case["text"], ids, case[key]))
        for key in ("a0p0", "a1p1"):
            text = tokenizer.decode(case[key], skip_special=False)
            if text != case[f"detok_{key}"]:
                wrong.append((key, case["text"], text, case[f"detok_{key}"]))
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[0]}"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.model(m)) for n, m in MODELS.items()]
)
def test_ids_and_texts_of_the_reference_models(name: str, model_path: Path, shared: Path) -> None:
    check(Tokenizer.from_file(model_path), shared / "open" / f"tokenize_{name}.json")


@pytest.fixture
def vocabulary(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    def unpack(name: str) -> Path:
        path = tmp_path / f"{name}.gguf"
        packed = shared / "vocab" / f"ggml-vocab-{name}.gguf.xz"
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        return path

    return unpack


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_and_texts_of_vocabulary_files(
    name: str, vocabulary: Callable[[str], Path], shared: Path
) -> None:
    golden = shared / "open" / f"tokenize_vocab_{name}.json"
    check(Tokenizer.from_file(vocabulary(name)), golden)


CASES = json.loads((Path(__file__).parent / "tokenizer_cases.json").read_text(encoding="utf-8"))


@dataclass
class File:
    """What a tokenizer needs of a GGUF file."""

    metadata: Mapping[str, Any]


@pytest.mark.parametrize(
    "case", CASES["vocabularies"], ids=lambda c: "-".join([c["vocabulary"], *c["changes"].values()])
)
def test_texts_that_a_search_for_differences_tried(
    case: dict[str, Any], vocabulary: Callable[[str], Path]
) -> None:
    with GGUFFile.open(vocabulary(case["vocabulary"])) as gguf:
        tokenizer = Tokenizer.from_gguf(File(ChainMap(case["changes"], dict(gguf.metadata))))
    for text, ids in zip(CASES["texts"], case["ids"], strict=True):
        assert tokenizer.encode(text, parse_special=True) == ids, text


@pytest.mark.model("qwen-0.5b")
def test_a_page_of_text_survives_the_round_trip(model_path: Path, shared: Path) -> None:
    text = (shared / "text.txt").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(model_path)
    assert tokenizer.decode(tokenizer.encode(text)) == text
