"""Tokenizer on vocabularies built here: rules, special tokens, stop tokens, streams."""

import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError, UnsupportedModelError
from llamba.models.tokenizer import Tokenizer
from llamba.models.tokenizer.bpe import CHAR_OF_BYTE
from llamba.models.tokenizer.merges import _merge_long, merge
from llamba.models.tokenizer.pretokenize import PRE_TOKENIZERS, PreTokenizer
from llamba.runtime.params import SamplingParams
from llamba.runtime.sampler import Sampler

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@dataclass
class File:
    """What a tokenizer needs of a GGUF file."""

    metadata: Mapping[str, Any]


def byte_bpe(special: dict[str, int], merges: tuple[str, ...] = (), **more: Any) -> Tokenizer:
    """A byte-level vocabulary: 256 bytes, the merges' results, then the special tokens."""
    texts = [*CHAR_OF_BYTE.values(), *(m.replace(" ", "") for m in merges), *special]
    types = [NORMAL] * (256 + len(merges)) + list(special.values())
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(merges) or ["a b"],
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }
    return Tokenizer.from_gguf(File(metadata=metadata))


def spm(pieces: dict[str, float], special: dict[str, int], **more: Any) -> Tokenizer:
    """<unk> <s> </s>, 256 byte tokens, then pieces with scores, then special tokens."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, *special]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * 259 + list(pieces.values()) + [0.0] * len(special)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types + list(special.values()), np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }
    return Tokenizer.from_gguf(File(metadata=metadata))


def id_of(tokenizer: Tokenizer, text: str) -> int:
    return tokenizer.vocabulary.id_by_text[text]


def test_merges_lowest_rank_first_then_leftmost() -> None:
    t = byte_bpe({}, ("b c", "a b", "a bc"))
    assert [t.token_text(i) for i in t.encode("abc aabb")] == ["abc", "Ġ", "a", "ab", "b"]


def test_long_and_short_merge_loops_agree() -> None:
    ranks = {"ab": 3, "ba": 1, "aa": 2, "baa": 4, "abab": 0, "aab": 5}

    def rank(left: str, right: str) -> float:
        return ranks.get(left + right, float("inf"))

    rng = np.random.default_rng(1)
    for n in range(1, 120):
        word = [str(c) for c in rng.choice(["a", "b"], n)]
        assert merge(list(word), rank) == _merge_long(list(word), rank)


def test_user_defined_tokens_always_match_control_tokens_on_demand() -> None:
    t = byte_bpe({"<c>": CONTROL, "<u>": USER_DEFINED})
    assert id_of(t, "<u>") in t.encode("a<u>b") and id_of(t, "<c>") not in t.encode("a<c>b")
    assert id_of(t, "<c>") in t.encode("a<c>b", parse_special=True)


def test_the_longest_special_token_wins_before_the_leftmost() -> None:
    t = byte_bpe({"<ab": CONTROL, "b<cd>": CONTROL})
    ids = t.encode("<ab<cd>", parse_special=True)
    assert ids == [*t.encode("<a"), id_of(t, "b<cd>")]


def test_guarded_stretches_never_become_tokens() -> None:
    t = byte_bpe({"<c>": CONTROL})
    c = id_of(t, "<c>")
    ids = t.encode("<c><c><c>", parse_special=True, guards=[(4, 5, frozenset([c]))])
    assert ids == [c, *t.encode("<c>"), c]


def test_p20_double_bos_is_obeyed_and_told_once() -> None:
    t = byte_bpe({"<s>": CONTROL}, bos_token_id=256, add_bos_token=True)
    with pytest.warns(UserWarning, match="BOS"):
        assert t.encode("<s>a", parse_special=True)[:2] == [256, 256]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t.encode("<s>a", parse_special=True)


def test_p22_stop_ids_hold_turn_ends_that_the_file_does_not_name() -> None:
    t = byte_bpe(
        {"<|end_of_text|>": CONTROL, "<|eot_id|>": NORMAL, "<|eom_id|>": CONTROL, "<x>": CONTROL},
        eos_token_id=256,
    )
    assert t.stop_ids == {256, 257, 258}
    assert t.eot_id == 257 and t.eom_id == 258
    assert t.decode([257]) == "" and t.token_bytes(257) == b""


def test_tokens_that_are_never_generated() -> None:
    """Those of the vocabulary; and the sampler gives them to nobody, whoever asks for them."""
    t = byte_bpe({"<image>": CONTROL}, suppress_tokens=np.array([-1, 256, 97, 257], np.int32))
    assert t.suppress_ids == {97, 256} and byte_bpe({}).suppress_ids == frozenset()
    row = np.zeros(t.vocab_size, np.float32)
    row[[97, 98, 256]] = 9, 5, 7
    wanted = SamplingParams(temperature=0, logit_bias={97: 50.0})
    sampler = Sampler.for_request(wanted, t, seed=0, prompt_ids=[1])
    assert sampler.sample(row) == 98
    for wrong, said in (("x", "is 'x', must"), (np.array([1.5]), "must"), (np.arange(256), "all")):
        with pytest.raises(InvalidModelFileError, match=f"suppress_tokens .*{said}"):
            byte_bpe({}, suppress_tokens=wrong)
    for nothing in ([], np.array([], np.float32), np.array([], np.int32)):
        assert byte_bpe({}, suppress_tokens=nothing).suppress_ids == frozenset()


def test_p22_gpt_oss_end_is_not_the_end() -> None:
    t = byte_bpe({"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL})
    assert t.stop_ids == {257, 258} | ({t.eot_id} - {256})
    assert t.decode([256]) == "<|end|>"


def test_spm_space_prefix_byte_fallback_and_flags() -> None:
    t = spm({"▁": -1, "h": -2, "i": -3, "hi": -0.5, "▁hi": -0.1}, {"<|x|>": CONTROL})
    assert [t.token_text(i) for i in t.encode("hi é")] == ["<s>", "▁hi", "▁", "<0xC3>", "<0xA9>"]
    x = id_of(t, "<|x|>")
    assert t.encode("<|x|>hi", parse_special=True) == [1, x, id_of(t, "▁hi")]
    plain = spm({"▁": -1, "h": -2, "i": -3, "hi": -0.5}, {}, add_space_prefix=False)
    assert plain.encode("hi", add_special=False) == [id_of(plain, "hi")]


def test_spm_pieces_with_a_space_inside_are_found() -> None:
    t = spm({"▁": -9, "a": -9, "b": -9, "a▁": -2, "a▁b": -1}, {}, add_space_prefix=False)
    assert t.encode("a b", add_special=False) == [id_of(t, "a▁b")]


def test_phi3_special_tokens_swallow_the_whitespace_after_them() -> None:
    t = spm({"▁": -1, "a": -2, "\n": -3}, {"<|end|>": CONTROL})
    t.vocabulary.metadata["general.name"] = "Phi3"  # type: ignore[index]
    phi = Tokenizer.from_gguf(File(metadata=t.vocabulary.metadata))
    end = id_of(t, "<|end|>")
    assert phi.encode("<|end|> \n", add_special=False, parse_special=True) == [end]
    assert len(t.encode("<|end|> \n", add_special=False, parse_special=True)) > 1


def test_p34_a_character_is_never_cut() -> None:
    t = spm({}, {})
    byte = [3 + b for b in "🌍".encode()]
    stream = t.stream()
    assert [stream.push(i) for i in byte] == ["", "", "", "🌍"] and stream.flush() == ""
    assert [stream.push(i) for i in (3 + 0xFF, 3 + 0x41)] == ["\ufffd", "A"]
    assert [stream.push(i) for i in byte[:2]] == ["", ""]
    assert stream.flush() == "\ufffd" and stream.flush() == ""


def test_p34_deltas_joined_are_the_whole_text() -> None:
    t = spm({}, {})
    ids = np.random.default_rng(0).integers(3, 259, 500).tolist()
    stream = t.stream()
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == t.decode(ids)


def test_lone_surrogates_are_replaced() -> None:
    t = byte_bpe({})
    assert t.decode(t.encode("a\ud800b\ud83c\udf0d")) == "a\ufffdb🌍"


@pytest.mark.parametrize(
    ("pre", "what"), [("martian", "'martian' is unknown"), ("", "no pre-tokenizer"), (None, "no ")]
)
def test_unknown_or_missing_pre_tokenizer_warns(pre: str | None, what: str) -> None:
    with pytest.warns(UserWarning, match=what):
        byte_bpe({}, pre=pre)


def test_pre_tokenizers_that_work_on_characters() -> None:
    texts = {"▁": 1, "▁▁": 1, "a": 1, "b": 1, "▁a": 1, "\n": 1, "\n\n": 1, "A": 1, "a▁": 1}
    merges = ["▁ a", "▁ ▁", "a ▁"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "mmbert",
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.merges": merges,
    }
    words = Tokenizer.from_gguf(File(metadata))
    spelled = [words.token_text(i) for i in words.encode("a a\n\nb  a")]
    assert spelled == ["▁a", "▁a", "\n\n", "▁", "b", "▁", "▁a"]
    lines = Tokenizer.from_gguf(File({**metadata, "tokenizer.ggml.pre": "sarvam-moe"}))
    spelled = [lines.token_text(i) for i in lines.encode("a a\n\nb  a")]
    assert spelled == ["a", "▁a", "\n", "\n", "b", "▁", "▁a"]
    changes = {"tokenizer.ggml.model": "whitespace", "tokenizer.ggml.pre": "whitespace"}
    chars = Tokenizer.from_gguf(File({**metadata, **changes}))
    assert [chars.token_text(i) for i in chars.encode("a\u3000A b\n")] == ["a", "A", "b"]
    lower = Tokenizer.from_gguf(
        File({**metadata, **changes, "tokenizer.ggml.normalizer.lowercase": True})
    )
    assert lower.encode("A") == lower.encode("a") != chars.encode("A")


def test_kimi_words_hold_no_chinese_characters() -> None:
    pre = PreTokenizer("kimi-k2")
    text = "don't中文\u00e9tude 日本x 1234 (中)!!\n z"
    assert pre.split(text) == [
        "don't", "中文", "étude", " ", "日本", "x", " ", "123", "4", " (", "中", ")!!\n", " z"
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_all_text_and_ends_in_time(name: str) -> None:
    pre = PreTokenizer(name)
    text = "Don't STOP\u3000me now, ½ 12345 日本語\n\n  naïve e\u0301 \t😀!? \r\nend  "
    assert "".join(pre.split(text)) == text
    started = time.thread_time()
    for hard in ("a" * 50_000, " " * 50_000, "1" * 50_000, "\n" * 50_000, "A" * 50_000):
        assert "".join(pre.split(hard)) == hard
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("char", ["a", " ", "\n", "中"])
def test_long_runs_take_no_quadratic_time(char: str) -> None:
    t = byte_bpe({}, ("a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ"))
    started = time.thread_time()
    assert t.decode(t.encode(char * 100_000)) == char * 100_000
    assert time.thread_time() - started < 6


def test_a_file_without_a_tokenizer_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="no tokenizer"):
        Tokenizer.from_gguf(File(metadata={}))


def test_contradictory_vocabularies_are_refused() -> None:
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
    short = {**metadata, "tokenizer.ggml.scores": np.zeros(1, np.float32)}
    for bad in (short, {**metadata, "tokenizer.ggml.tokens": []}):
        with pytest.raises(InvalidModelFileError, match="tokenizer.ggml"):
            Tokenizer.from_gguf(File(metadata=bad))


def test_ids_outside_the_vocabulary_raise() -> None:
    t = byte_bpe({})
    for token_id in (-1, t.vocab_size):
        with pytest.raises(IndexError):
            t.decode([token_id])


def test_p63_threads_share_a_tokenizer() -> None:
    t = byte_bpe({"<u>": USER_DEFINED}, ("a b",))
    expected = t.encode("ab <u> ab" * 20)
    fresh = byte_bpe({"<u>": USER_DEFINED}, ("a b",))
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(fresh.encode("ab <u> ab" * 20)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8
