"""The name of a byte-level tokenizer's pre-tokenizer (`tokenizer.ggml.pre`).

GGUF has no patterns, only names of rules that a runtime knows. First the ids of one text are looked
up among those of known tokenizers; of others the words that it cuts are compared with what our own
rules cut. Where neither finds a name, none is guessed.
"""

import hashlib
import random
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InvalidParameterError, UnsupportedModelError
from ..tokenizer.pretokenize import PRE_TOKENIZERS, PreTokenizer
from .vocab_pre_digests import NAME_OF_DIGEST, TEXT

# Pieces of which the compared texts are made: what the rules tell apart. No letters other than
# ASCII's that have a case: llama.cpp, whose rules ours are, does not tell their cases apart.
_PIECES = (
    *"aestBTlvdm'\"Z", *"0123456789", *".,!?;:-/\\()[]{}<>=+*^$|~`#@&%_", " ", "  ", "   ",
    "\t", "\n", "\n\n", "\r\n", " \n", "'s", "'LL", "'Ve",
    "n't", " the", "They", "abC", "123", "4567",
    "\u6211\u60f3", "\u5728", "\u306e", "\u30ab", "\uac00", "\u0e01", "\u0905", "\u0661", "\u00bd",
    "\u3002", "\uff0c", "\u2026", "\u2014", "\u20ac", "\u00a9", "\U0001f680", "\u2705", "\u00a0",
)  # fmt: skip
_MARKS = ("\u0301", "\u093f", "\ufe0f")  # combining: only some rules count them as parts of words
# Their own tokenizers do, and llama.cpp, whose rules of these names ours are, does not.
_WITHOUT_MARKS = frozenset(("gpt-4o", "tekken"))
_NUM_TEXTS, _TEXT_LEN = 60, 80


def digest_of(ids: list[int]) -> str:
    """The key of the table of known tokenizers."""
    return hashlib.sha256(str(ids).encode()).hexdigest()


def known_name(tokenizer: Any, extra: list[list[int]] | None = None) -> str | None:
    """The name by the ids of the text, None for an unknown tokenizer.

    tokenizer: of the package tokenizers, without truncation and padding. extra: (before, after)
    what settings put around a text that tokenizer.json does not.
    """
    plain = tokenizer.encode(TEXT, add_special_tokens=False).ids
    variants = [tokenizer.encode(TEXT).ids, plain]
    variants += [[*before, *plain] for before in extra or []]
    return next((NAME_OF_DIGEST[d] for d in map(digest_of, variants) if d in NAME_OF_DIGEST), None)


def name_by_words(tokenizer: Any, *, ignore_merges: bool) -> str | None:
    """The first name whose rules cut many texts like this tokenizer; None where none does."""
    pre, normalizer = tokenizer.pre_tokenizer, tokenizer.normalizer
    if pre is None or (normalizer is not None and type(normalizer).__name__ != "NFC"):
        return None
    cuts = {marks: [_cuts_of(pre, text) for text in _texts(marks)] for marks in (False, True)}
    return next((name for name in _names(ignore_merges) if _agrees(name, cuts)), None)


def find_name(
    path: Path,
    tokenizer: Any,
    *,
    ignore_merges: bool,
    given: str | None = None,
    extra: list[list[int]] | None = None,
) -> tuple[str, bool]:
    """The name, and whether it is that of a known tokenizer.

    given: the user's word, which is taken. InvalidParameterError: it is no name.
    UnsupportedModelError: none is found.
    """
    if given is not None:
        if given not in PRE_TOKENIZERS:
            raise InvalidParameterError(
                f"the pre-tokenizer {given!r} is unknown; these are: "
                f"{', '.join(sorted(PRE_TOKENIZERS))}"
            )
        return given, False
    if name := known_name(tokenizer, extra):
        return name, True
    if name := name_by_words(tokenizer, ignore_merges=ignore_merges):
        return name, False
    raise UnsupportedModelError(
        f"{path}: its rules of cutting a text into words are none that GGUF has a name for "
        f"(digest {digest_of(tokenizer.encode(TEXT).ids)[:12]}); if the model it was made from is "
        "known, name its rules with --pre NAME (as tokenizer.ggml.pre of that model's GGUF says)"
    )


@cache
def _texts(marks: bool) -> tuple[str, ...]:
    source = random.Random(8)
    pieces = (*_PIECES, *_MARKS) if marks else _PIECES
    return tuple("".join(source.choices(pieces, k=_TEXT_LEN)) for _ in range(_NUM_TEXTS))


def _names(ignore_merges: bool) -> list[str]:
    """Candidates in their order, one of those that are the same rules."""
    found: dict[Any, str] = {}
    for name in sorted(PRE_TOKENIZERS, key=_rank):
        rules = _rules(name).rules
        special = rules.raw_text or rules.escape_spaces or rules.whole_newlines or rules.force_bos
        if rules.ignore_merges == ignore_merges and not special:
            found.setdefault(rules, name)
    return list(found.values())


_COMMON = "llama-bpe qwen2 gpt-2 gpt-4o tekken deepseek-v3 smollm dbrx glm4".split()


def _rank(name: str) -> tuple[int, str]:
    return (_COMMON.index(name) if name in _COMMON else len(_COMMON), name)


@cache
def _rules(name: str) -> PreTokenizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PreTokenizer(name)


def _agrees(name: str, cuts: dict[bool, list[frozenset[int] | None]]) -> bool:
    rules, marks = _rules(name), name not in _WITHOUT_MARKS
    return all(
        expected is not None and expected == _cuts(rules.split(text))
        for text, expected in zip(_texts(marks), cuts[marks], strict=True)
    )


def _cuts(words: list[str]) -> frozenset[int]:
    ends, at = set(), 0
    for word in words:
        at += len(word)
        ends.add(at)
    return frozenset(ends)


def _cuts_of(pre_tokenizer: Any, text: str) -> frozenset[int] | None:
    """Ends of the words; None where the words aren't the text."""
    words = pre_tokenizer.pre_tokenize_str(text)
    at = 0
    ends = set()
    for _, (start, end) in words:
        if start != at:
            return None
        at = end
        ends.add(end)
    return frozenset(ends) if at == len(text) else None
