"""Vocabularies of Hugging Face folders: what is written, and that texts get the ids they should."""

import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamba.errors import LlambaError
from llamba.models.convert.vocabulary import vocabulary_pairs
from llamba.models.gguf_pairs import pair
from llamba.models.gguf_writer import GGUFWriter
from llamba.models.tokenizer import Tokenizer

HERE = Path(__file__).parent
tokenizers = pytest.importorskip("tokenizers", reason="the extra convert is not installed")


with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(HERE))
    parts, folders, llama_cpp = map(
        importlib.import_module, ("vocab_parts", "vocab_folders", "vocab_llama_cpp")
    )
CASES: dict[str, dict[str, Any]] = json.loads((HERE / "vocab_cases.json").read_text("utf-8"))


def convert(folder: Path, architecture: str, size: int, *, pre: str | None = None) -> Path:
    """A file with the vocabulary alone."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    pairs = vocabulary_pairs(folder, config, architecture, size, pre=pre)
    path = folder / "vocabulary.gguf"
    with GGUFWriter(path, [pair("general.architecture", "str", architecture), *pairs], []):
        pass
    return path


@pytest.fixture
def built(tmp_path: Path) -> Callable[[str], Path]:
    """built(name) -> the file of one of the made folders, which lies beside it."""

    def build(name: str) -> Path:
        return convert(tmp_path, *folders.build(name, tmp_path))

    return build


@pytest.mark.parametrize("name", folders.FOLDERS)
def test_equals_llama_cpp(built: Callable[[str], Path], name: str) -> None:
    fields = gguf.GGUFReader(built(name)).fields
    found = {
        key: [field.types[0].name, llama_cpp.short(field.contents())]
        for key, field in fields.items()
        if key.startswith("tokenizer.")
    }
    expected = dict(CASES[name])
    if name == "bert":  # the name was given to llama.cpp's; nothing reads it
        assert found.pop("tokenizer.ggml.pre") == ["STRING", "default"]
        del expected["tokenizer.ggml.pre"]
    if name == "llama_json":  # theirs are -1000 each: see test_scores_are_the_order_of_merges
        del found["tokenizer.ggml.scores"], expected["tokenizer.ggml.scores"]
    assert found == expected


WORDS = [
    "the", "hello", "world", "He", "12", "123", "ring", "and", "rat", " ", "  ", "\n", "\n\n", "\t",
    ".", ", ", "! ", "don't", "we'LL", "a", "then", "0", "3.14", "x=1;", "中文", "é", "Ünï", "🚀",
    "ß", "hellohello", "in an", "-", "--", "(", ")", "word", "\u00a0", "नमस्ते",
]  # fmt: skip


def texts() -> list[str]:
    """100 of them."""
    source = random.Random(8)
    joined = [
        source.choice(["", " "]).join(source.choices(WORDS, k=source.randint(1, 14)))
        for _ in range(96)
    ]
    return ["", " ", "hello world", " the  hello\n", *joined]


@pytest.mark.parametrize(
    "name", ["llama3", "qwen2", "gpt2", "modern_bert", "llama_json", "bert", "gemma4"]
)
def test_ids_equal_those_of_tokenizers(
    built: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    ours = Tokenizer.from_file(built(name))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs.no_truncation()
    for text in texts():
        if name == "qwen2":
            text = text.replace("नमस्ते", "")  # NFC leaves it, but no rule of GGUF's does
        assert ours.encode(text, parse_special=True) == theirs.encode(text).ids, repr(text)


def test_ids_of_words_by_characters(built: Callable[[str], Path], tmp_path: Path) -> None:
    """But for characters that no token has, of which llama.cpp makes nothing, and ours too."""
    ours = Tokenizer.from_file(built("jina_words"))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    unknown = theirs.token_to_id("<unk>")
    for text in texts():
        expected = [i for i in theirs.encode(text).ids if i != unknown]
        assert ours.encode(text, parse_special=True) == expected, repr(text)


@pytest.mark.parametrize("name", ["llama_spm", "gemma3"])
def test_ids_equal_those_of_sentencepiece(
    built: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    package = pytest.importorskip("sentencepiece")
    ours = Tokenizer.from_file(built(name))
    theirs = package.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in texts():
        expected = theirs.encode(text)
        assert ours.encode(text, add_special=False) == expected, repr(text)


def test_ids_of_unigram(built: Callable[[str], Path], tmp_path: Path) -> None:
    ours = Tokenizer.from_file(built("xlm_json"))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in texts():
        text = " ".join(text.split())  # GGUF's kind joins spaces only, not all whitespace
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)


def test_scores_are_the_order_of_merges(built: Callable[[str], Path], tmp_path: Path) -> None:
    """Of a tokenizer.json alone: with equal scores words would be cut in another order."""
    path = built("llama_json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    scores = gguf.GGUFReader(path).fields["tokenizer.ggml.scores"].contents()
    equal = tmp_path / "equal.gguf"
    data = path.read_bytes()
    first = np.array(scores, np.float32).tobytes()
    assert data.count(first) == 1
    equal.write_bytes(data.replace(first, np.full(len(scores), -1000, np.float32).tobytes()))
    text = "there were others"
    assert Tokenizer.from_file(path).encode(text) == theirs.encode(text).ids
    assert Tokenizer.from_file(equal).encode(text) != theirs.encode(text).ids


def test_trained_sentencepiece(tmp_path: Path) -> None:
    """A model that its own package trained, whose normalizer joins spaces."""
    package = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(texts() * 20), encoding="utf-8")
    package.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "tokenizer"), vocab_size=400,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    parts.write(tmp_path, config__json={})
    theirs = package.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    ours = Tokenizer.from_file(convert(tmp_path, "llama", 400))
    for text in texts():
        assert ours.encode(text, add_special=False) == theirs.encode(text), repr(text)


def test_trained_bpe(tmp_path: Path) -> None:
    """One that nobody knows: its rules are found by the words that they cut."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    steps = tokenizers.pre_tokenizers
    pattern = tokenizers.Regex(parts.LLAMA3)
    trained.pre_tokenizer = steps.Sequence(
        [steps.Split(pattern, "isolated"), steps.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trained.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=350, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=steps.ByteLevel.alphabet(),
    )  # fmt: skip
    trained.train_from_iterator(texts() * 3, trainer)
    trained.save(str(tmp_path / "tokenizer.json"))
    parts.write(tmp_path, config__json={"eos_token_id": 0})
    path = convert(tmp_path, "llama", 352)
    fields = gguf.GGUFReader(path).fields
    assert fields["tokenizer.ggml.pre"].contents() == "dbrx"  # llama-bpe's, merges never ignored
    assert fields["tokenizer.ggml.add_bos_token"].contents() is False
    ours = Tokenizer.from_file(path)
    for text in texts():
        assert ours.encode(text) == trained.encode(text).ids, repr(text)


def refused(folder: Path, architecture: str, size: int, *, pre: str | None = None) -> str:
    with pytest.raises(LlambaError) as caught:
        convert(folder, architecture, size, pre=pre)
    message = str(caught.value)
    assert "\n" not in message
    return message


def edited(folder: Path, file: str, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / file
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


NO_ID = {"id": None, "content": "x"}
TWIN = {"id": 3, "content": "<|eot_id|>"}


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("tokenizer.json", lambda d: d.pop("model"), "it has no model"),
        ("tokenizer.json", lambda d: d["model"].update(type="WordLevel"), "'WordLevel' is not"),
        ("tokenizer.json", lambda d: d["model"]["vocab"].update(zz=900), "'zz' has the id 900"),
        ("tokenizer.json", lambda d: d["model"]["vocab"].update(zz=7), "the same id 7"),
        ("tokenizer.json", lambda d: d["added_tokens"].append(NO_ID), "the id None and the text"),
        ("tokenizer.json", lambda d: d["added_tokens"].append(TWIN), "is there twice"),
        ("tokenizer.json", lambda d: d.update(added_tokens=3), "added_tokens is not a list"),
        ("tokenizer.json", lambda d: d["model"]["merges"].append("x y"), "not a sound tokenizer"),
        ("tokenizer.json", lambda d: d["added_tokens"][3].update(id=294), "without holes"),
        ("tokenizer_config.json", lambda d: d.update(chat_template=3), "neither a text nor"),
        (
            "tokenizer_config.json",
            lambda d: d["added_tokens_decoder"].update({"295": {"content": "late"}}),
            "'late' has the id 295, but comes to 293",
        ),
        (
            "tokenizer_config.json",
            lambda d: d["added_tokens_decoder"].update({"9" * 5000: {"content": "x"}}),
            "an added token has the id '99999",
        ),
    ],
)
def test_damaged(tmp_path: Path, file: str, change: Callable[[Any], Any], said: str) -> None:
    place = folders.build("llama3", tmp_path)
    edited(tmp_path, file, change)
    assert said in refused(tmp_path, *place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ("[]", "not a JSON object"),
        ('{"model": ', "not sound JSON"),
        (b"\xff{}", "not UTF-8"),
    ],
)
def test_not_json(tmp_path: Path, text: str | bytes, said: str) -> None:
    place = folders.build("llama3", tmp_path)
    parts.write(tmp_path, tokenizer__json=text)
    assert said in refused(tmp_path, *place)


def test_nothing_there(tmp_path: Path) -> None:
    parts.write(tmp_path, config__json={})
    message = refused(tmp_path, "llama", 10)
    assert "neither tokenizer.json nor tokenizer.model" in message and "save_pretrained" in message
    parts.write(tmp_path, tekken__json={})
    assert "tekken.json" in refused(tmp_path, "llama", 10)


def test_damaged_sentencepiece(tmp_path: Path) -> None:
    place = folders.build("llama_spm", tmp_path)
    path = tmp_path / "tokenizer.model"
    data = path.read_bytes()
    for end in (1, 5, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:end])
        assert "not a sound SentencePiece model" in refused(tmp_path, *place)
    pieces = parts.spm_pieces()
    path.write_bytes(parts.proto([*pieces, pieces[-1]], kind=2, add_prefix=True))
    assert "is there twice" in refused(tmp_path, *place)
    for score in (np.nan, -np.inf):
        path.write_bytes(parts.proto([*pieces, ("x", score, 1)], kind=2, add_prefix=True))
        assert f"the piece 'x' has the score {score}" in refused(tmp_path, *place)
    path.write_bytes(parts.proto(pieces, kind=3, add_prefix=True))
    assert "a SentencePiece model of words" in refused(tmp_path, *place)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 10**400])
def test_scores_of_unigram_that_are_no_numbers(tmp_path: Path, score: float) -> None:
    place = folders.build("xlm_json", tmp_path)
    edited(tmp_path, "tokenizer.json", lambda d: d["model"]["vocab"][5].__setitem__(1, score))
    assert "vocab is not a list of [text, finite score]" in refused(tmp_path, *place)


def test_unknown_rules_are_refused_and_can_be_named(tmp_path: Path) -> None:
    place = folders.build("llama3", tmp_path)
    odd = parts.split("[a-m]+|[n-z]+|[^a-z]+")
    edited(tmp_path, "tokenizer.json", lambda d: d.update(pre_tokenizer=odd))
    assert "--pre NAME" in refused(tmp_path, *place)
    assert "'odd' is unknown; these are: a.x-4.0" in refused(tmp_path, *place, pre="odd")
    path = convert(tmp_path, *place, pre="llama-bpe")
    assert gguf.GGUFReader(path).fields["tokenizer.ggml.pre"].contents() == "llama-bpe"


def test_a_list_of_words_alone(tmp_path: Path) -> None:
    """vocab.txt says what tokenizer.json says, but for a user's own token."""
    place = folders.build("bert", tmp_path)
    edited(tmp_path, "tokenizer.json", lambda d: d["added_tokens"].pop())
    whole = gguf.GGUFReader(convert(tmp_path, *place)).fields
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocabulary.gguf").unlink()
    parts.write(tmp_path, vocab__txt="\n".join(parts.WORDS) + "\n")
    alone = gguf.GGUFReader(convert(tmp_path, *place)).fields
    assert {k: f.contents() for k, f in alone.items()} == {
        k: f.contents() for k, f in whole.items()
    }
    parts.write(tmp_path, vocab__txt="\n".join([*parts.WORDS, "the"]))
    assert "line 42 has the token 'the' once more" in refused(tmp_path, *place)
    parts.write(tmp_path, vocab__txt="a\nb")
    assert "special token '[PAD]' is missing" in refused(tmp_path, *place)


def test_pre_is_of_no_use_elsewhere(tmp_path: Path) -> None:
    assert "--pre gpt-2 is of no use" in refused(
        tmp_path, *folders.build("bert", tmp_path), pre="gpt-2"
    )


def test_ids_that_are_no_ids_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = folders.build("gpt2", tmp_path)
    edited(tmp_path, "config.json", lambda d: d.update(pad_token_id=-1, unk_token_id=5000))
    fields = gguf.GGUFReader(convert(tmp_path, *place)).fields
    assert (
        not {"tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id"} & fields.keys()
    )
    assert "pad_token_id -1 is left out" in caplog.text
    assert "unk_token_id 5000 is left out" in caplog.text


def _of_model(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data["model"].update(changes)


def _normalized(*steps: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data.update(normalizer={"type": "Sequence", "normalizers": list(steps)})


_TABS = {"type": "Replace", "pattern": {"String": "\t"}, "content": "\u2581"}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gemma4", _of_model(merges=[]), "merges is empty"),
        ("jina_words", _of_model(merges=[]), "merges is empty"),
        ("llama3", _of_model(merges=[]), "merges is empty"),
        ("gemma4", _of_model(vocab={}), "vocab is empty"),
        ("gemma4", _of_model(merges=["q qq"]), "'q' and 'qq': 'qq' is no token"),
        ("jina_words", _of_model(merges=["q qq"]), "not a sound tokenizer"),
        ("gemma4", _of_model(end_of_word_suffix="</w>"), "end_of_word_suffix is '</w>'"),
        ("jina_words", _of_model(end_of_word_suffix="</w>"), "end_of_word_suffix is '</w>'"),
        ("gemma4", _of_model(continuing_subword_prefix="##"), "subword_prefix is '##'"),
        ("gemma4", _normalized({"type": "NFKC"}), "a step 'NFKC', which is not converted"),
        ("gemma4", _normalized(_TABS), "the normalizer replaces {'String': '\\t'}"),
        ("jina_words", _normalized({"type": "NFKC"}), "a step 'NFKC', which is not converted"),
    ],
)
def test_tokenizers_that_the_file_can_not_say(
    tmp_path: Path, name: str, change: Callable[[Any], Any], said: str
) -> None:
    place = folders.build(name, tmp_path)
    edited(tmp_path, "tokenizer.json", change)
    assert said in refused(tmp_path, *place)
