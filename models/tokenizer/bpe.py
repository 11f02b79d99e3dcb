"""Byte-pair encoding by the merges of the file; bytes are spelled in GPT-2's alphabet.

Plain Python with a cache of words. For a vocabulary of 152k tokens it takes about 95 ms of CPU to
build, where the `tokenizers` package takes 355 ms; 48 kB of text then take 20-60 ms against 22 ms.
"""

import re

from ...errors import InvalidModelFileError
from .merges import WordCache, merge
from .pretokenize import PreTokenizer
from .unicode_classes import is_space, lower
from .vocab import Vocabulary

_NONE = float("inf")


def _alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself if printable, else U+0100 and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


CHAR_OF_BYTE = _alphabet()
BYTE_OF_CHAR = {ord(char): byte for byte, char in CHAR_OF_BYTE.items()}


class BytePairEncoder:
    """Plain text (no special tokens) to ids. raw_text: merges work on characters (gemma4)."""

    def __init__(self, vocabulary: Vocabulary, pre: PreTokenizer) -> None:
        merges = vocabulary.merges
        if not merges:
            raise InvalidModelFileError(
                "tokenizer.ggml.merges is missing or empty: "
                "a byte-pair vocabulary can't be used without its merges"
            )
        # Of two equal lines the first counts, so it is stored last.
        self._ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        self._id_by_text = vocabulary.id_by_text
        self._pre = pre
        self._cache = WordCache()
        self._lowercase = vocabulary.flag("normalizer.lowercase", vocabulary.pre != "whitespace")
        self._by_segment = vocabulary.model == "whitespace"
        self._boundary = None
        if pre.rules.word_starts:
            self._boundary = re.compile("(?<=.)(?=▁)", re.DOTALL)
        elif pre.rules.escape_spaces:
            self._boundary = word_boundary("\0".join(merges).replace(" ", ""))

    def _rank(self, left: str, right: str) -> float:
        return self._ranks.get(f"{left} {right}", _NONE)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        for word in self._words(text):
            known = self._cache.get(word)
            if known is None:
                known = self._encode_word(word)
                self._cache.put(word, known)
            ids += known
        return ids

    def _words(self, text: str) -> list[str]:
        if self._by_segment:
            segments = "".join([" " if is_space(char) else char for char in text]).split(" ")
            if self._lowercase:
                segments = ["".join(map(lower, segment)) for segment in segments]
            return [word for segment in segments for word in self._pre.split(segment)]
        if self._boundary is None:
            return self._pre.split(text)
        words = self._pre.split(text.replace(" ", "▁"))
        if self._pre.rules.word_starts:
            words = [w if w[0] in "▁\n" else "▁" + w for w in words]
        return [part for word in words for part in self._boundary.split(word)]

    def _encode_word(self, word: str) -> list[int]:
        if self._pre.raw_text:
            newlines = self._pre.rules.whole_newlines and not word.strip("\n")
            if newlines and word in self._id_by_text:
                return [self._id_by_text[word]]
        else:
            word = word.encode().decode("latin-1").translate(CHAR_OF_BYTE)
            if self._pre.ignore_merges and word in self._id_by_text:
                return [self._id_by_text[word]]
        ids: list[int] = []
        for symbol in merge(list(word), self._rank):
            token_id = self._id_by_text.get(symbol)
            if token_id is not None:
                ids.append(token_id)
            elif self._pre.raw_text:
                names = (f"<0x{byte:02X}>" for byte in symbol.encode())
                ids += [self._id_by_text[name] for name in names if name in self._id_by_text]
            else:  # as llama.cpp: what the vocabulary can't spell is left out
                ids += [self._id_by_text[char] for char in symbol if char in self._id_by_text]
        return ids


def word_boundary(spellings: str) -> re.Pattern[str]:
    """Where a text may be cut before ▁ without cutting any token.

    spellings: everything that merging can make, with NUL between them. A cut between x and ▁ is
    safe if no spelling has x▁ inside; what is on the two sides then never joins, and can be cached.
    """
    inside = {pair[0] for pair in re.findall("[^▁]▁", spellings)}
    return re.compile(f"(?<=[^▁{re.escape(''.join(sorted(inside)))}])(?=▁)", re.DOTALL)
