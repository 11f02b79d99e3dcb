"""Real vocabularies: made into Hugging Face's files again, recognised, converted, and equal.

Each is taken out of a GGUF file that llama.cpp's converter wrote: its tokens, merges, scores and
types; the patterns are those of the models' own tokenizer.json.
"""

import importlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamba.models.convert.vocab_pre import digest_of, find_name, name_by_words
from llamba.models.convert.vocab_pre_digests import NAME_OF_DIGEST, TEXT
from llamba.models.convert.vocabulary import vocabulary_pairs
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import pair
from llamba.models.gguf_writer import GGUFWriter
from llamba.models.tokenizer import Tokenizer
from llamba.models.tokenizer.char_ranges import CASED_LETTERS, CJK, DEEPSEEK_PUNCTUATION

tokenizers = pytest.importorskip("tokenizers", reason="the extra convert is not installed")
with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(Path(__file__).parent))
    parts: Any = importlib.import_module("vocab_parts")

Json = dict[str, Any]
CONTROL = 3


def steps(*given: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(given)}


def split(pattern: str) -> Json:
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
    }  # fmt: skip


def digits(*, individual: bool) -> Json:
    return {"type": "Digits", "individual_digits": individual}


BYTES, GPT2 = (parts.by_bytes(use_regex=use_regex) for use_regex in (False, True))
PRE_TOKENIZERS: dict[str, Json] = {
    "llama-bpe": steps(split(parts.LLAMA3), BYTES),
    "qwen2": steps(split(parts.QWEN2), BYTES),
    "gpt-2": GPT2,
    "starcoder": steps(digits(individual=True), GPT2),
    "falcon": steps(
        {"type": "Punctuation", "behavior": "Contiguous"},
        GPT2,
        digits(individual=False),
        split("[0-9][0-9][0-9]"),
    ),
    "deepseek-llm": steps(
        split("[\r\n]"),
        split(rf"\s?[{CASED_LETTERS}]+"),
        split(rf"\s?[{DEEPSEEK_PUNCTUATION}]+"),
        split(r"\s+$"),
        split(f"[{CJK}]+"),
        digits(individual=True),
        BYTES,
    ),
    "deepseek-coder": steps(
        split("[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split(f"[{CJK}]+"),
        digits(individual=True),
        BYTES,
    ),
}
QUICK = ("gpt-2", "deepseek-coder")


@pytest.fixture
def unpacked(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    def unpack(name: str) -> Path:
        path = tmp_path / "original.gguf"
        packed = shared / "vocab" / f"ggml-vocab-{name}.gguf.xz"
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        return path

    return unpack


def read(path: Path) -> Json:
    with GGUFFile.open(path) as file:
        return {key: file.metadata[key] for key in file.metadata}


def converted(folder: Path, size: int) -> Path:
    pairs = vocabulary_pairs(folder, {}, "llama", size)
    path = folder / "converted.gguf"
    with GGUFWriter(
        path, [pair("general.architecture", "str", "llama"), *pairs], [], overwrite=True
    ):
        pass
    return path


def write_bpe(folder: Path, name: str, keys: Json) -> None:
    texts, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"].tolist()
    entries = [
        parts.added(i, text, special=types[i] == CONTROL, normalized=types[i] != CONTROL)
        for i, text in enumerate(texts)
        if types[i] in (2, 3, 4)
    ]
    post = parts.by_bytes(use_regex=True)
    if name in ("llama-bpe", "deepseek-llm", "deepseek-coder"):
        bos = keys["tokenizer.ggml.bos_token_id"]
        post = parts.template([(texts[bos], bos)])
    data = parts.byte_level(
        entries, PRE_TOKENIZERS[name], post=post, ignore_merges=name == "llama-bpe"
    )
    data["model"]["vocab"] = {text: i for i, text in enumerate(texts) if types[i] != 5}
    data["model"]["merges"] = keys["tokenizer.ggml.merges"]
    roles = {
        f"{role}_token": texts[keys[f"tokenizer.ggml.{role}_token_id"]] for role in ("bos", "eos")
    }
    parts.write(folder, tokenizer__json=data, tokenizer_config__json=roles)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PRE_TOKENIZERS]
)
def test_byte_level(
    unpacked: Callable[[str], Path], shared: Path, tmp_path: Path, name: str
) -> None:
    keys = read(unpacked(name))
    write_bpe(tmp_path, name, keys)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert NAME_OF_DIGEST[digest_of(theirs.encode(TEXT).ids)] == name
    path = converted(tmp_path, len(keys["tokenizer.ggml.tokens"]))
    made = read(path)
    for key in ("pre", "model", "tokens", "merges", "bos_token_id", "eos_token_id"):
        assert made[f"tokenizer.ggml.{key}"] == keys[f"tokenizer.ggml.{key}"], key
    ours = Tokenizer.from_file(path)
    golden = shared / "open" / f"tokenize_vocab_{name}.json"
    for case in json.loads(golden.read_text("utf-8"))["cases"]:
        if name == "deepseek-coder" and "<pad>" in case["text"]:
            continue  # a user's token for the converter of that time, a control token today
        assert ours.encode(case["text"], add_special=False) == case["a0p0"], case["text"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_sentencepiece(
    unpacked: Callable[[str], Path], shared: Path, tmp_path: Path, name: str
) -> None:
    """As tokenizer.model, and as the tokenizer.json that transformers makes of it."""
    keys = read(unpacked(name))
    texts, types, scores = (
        list(keys[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type", "scores")
    )
    pieces = list(zip(texts, map(float, scores), map(int, types), strict=True))[:32000]
    parts.write(tmp_path, tokenizer__model=parts.proto(pieces, kind=2, add_prefix=True))
    made = read(converted(tmp_path, 32000))
    assert made["tokenizer.ggml.tokens"] == texts[:32000]
    assert list(made["tokenizer.ggml.scores"]) == scores[:32000]
    (tmp_path / "tokenizer.model").unlink()
    parts.write(tmp_path, tokenizer__json=as_json(pieces))
    ours = Tokenizer.from_file(converted(tmp_path, 32000))
    golden = shared / "open" / f"tokenize_vocab_{name}.json"
    wrong = 0
    for case in json.loads(golden.read_text("utf-8"))["cases"]:
        wrong += ours.encode(case["text"], add_special=False) != case["a0p0"]
    assert wrong == 0


def as_json(pieces: list[tuple[str, float, int]]) -> Json:
    """All ways to put a piece together, the best pieces first."""
    ids = {text: i for i, (text, _, kind) in enumerate(pieces) if kind in (1, 4)}
    lines: list[tuple[float, int, int, str]] = []
    for text, i in ids.items():
        for n in range(1, len(text)):
            a, b = text[:n], text[n:]
            if a in ids and b in ids:
                lines.append((-pieces[i][1], ids[a], ids[b], f"{a} {b}"))
    data = parts.spm_json([parts.added(i, pieces[i][0]) for i in range(3)])
    data["model"]["vocab"] = {text: i for i, (text, _, _) in enumerate(pieces)}
    data["model"]["merges"] = [line[3] for line in sorted(lines)]
    return data


def package_tokenizer(pre_tokenizer: Json, *, normalizer: Json | None = None) -> Any:
    data = parts.byte_level([], pre_tokenizer, normalizer=normalizer)
    return tokenizers.Tokenizer.from_str(json.dumps(data))


O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


@pytest.mark.parametrize(
    ("pre_tokenizer", "ignore_merges", "name"),
    [
        (PRE_TOKENIZERS["llama-bpe"], True, "llama-bpe"),
        (PRE_TOKENIZERS["llama-bpe"], False, "dbrx"),
        (PRE_TOKENIZERS["qwen2"], False, "qwen2"),
        (PRE_TOKENIZERS["gpt-2"], False, "gpt-2"),
        (PRE_TOKENIZERS["starcoder"], False, "smollm"),
        (PRE_TOKENIZERS["deepseek-coder"], False, "deepseek-coder"),
        (steps(split(r"\p{N}{1,3}"), split(KANA), split(V3), BYTES), False, "deepseek-v3"),
        (steps(split(O200K), BYTES), False, "gpt-4o"),
        (steps(split(O200K), BYTES), True, "granite-embed-multi-97m"),
        (PRE_TOKENIZERS["falcon"], False, None),  # llama.cpp's rules cut it otherwise
        (steps(split(r"\p{L}+"), BYTES), False, None),
        (steps(split(parts.QWEN2.replace(r"\p{N}", r"\p{N}{1,2}")), BYTES), False, None),
        ({**GPT2, "add_prefix_space": True}, False, None),
    ],
)
def test_names_by_the_words_that_are_cut(
    pre_tokenizer: Json, ignore_merges: bool, name: str | None
) -> None:
    tokenizer = package_tokenizer(pre_tokenizer)
    assert name_by_words(tokenizer, ignore_merges=ignore_merges) == name


def test_other_normalizers_have_no_name() -> None:
    for kind, name in (("NFC", "qwen2"), ("NFKC", None), ("Lowercase", None)):
        tokenizer = package_tokenizer(PRE_TOKENIZERS["qwen2"], normalizer={"type": kind})
        assert name_by_words(tokenizer, ignore_merges=False) == name


def test_added_tokens_change_no_digest(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    """A fine-tune's tokenizer is that of its model."""
    keys = read(unpacked("gpt-2"))
    write_bpe(tmp_path, "gpt-2", keys)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    before = digest_of(theirs.encode(TEXT).ids)
    theirs.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    theirs.add_tokens(["<tool_call>"])
    assert digest_of(theirs.encode(TEXT).ids) == before
    assert find_name(tmp_path, theirs, ignore_merges=False) == ("gpt-2", True)
