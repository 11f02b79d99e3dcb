"""BERT's WordPiece as llama.cpp does it: words are normalised, then cut into longest tokens.

Words start with ▁ in GGUF vocabularies, where BERT's own files mark the pieces inside with ##.
"""

import unicodedata

from .merges import WordCache
from .prefix_lengths import PrefixLengths
from .unicode_classes import general_class, is_space, lower
from .vocab import Vocabulary, needed_unk_id

_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # from 2B820 in Unicode, but the models were trained with this
    (0x2F800, 0x2FA1F),
)


class Normalizer(dict[int, str]):
    """For str.translate: code point -> what becomes of it, filled as characters are met.

    Whitespace becomes a space, a character that is a word of its own gets spaces around it.
    """

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, code: int) -> str:
        self[code] = out = self._map(chr(code))
        return out

    def _map(self, char: str) -> str:
        if self._strip_accents:  # the base letter only; of a Hangul syllable its first jamo
            char = unicodedata.normalize("NFD", char)[0]
        if is_space(char):
            return " "
        kind = general_class(char)
        if char in "\0\ufffd" or kind == "C" or (self._strip_accents and kind == "M"):
            return ""
        code = ord(char)
        alone = (
            kind == "P"
            or (kind == "S" and code < 0x7F)
            or any(first <= code <= last for first, last in _CHINESE)
        )
        if self._lowercase:
            char = lower(char)
        return f" {char} " if alone else char


class WordPieceEncoder:
    """Plain text (no special tokens) to ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        lowercase = vocabulary.flag("normalizer.lowercase", True)
        self._normalizer = Normalizer(
            lowercase, vocabulary.flag("normalizer.strip_accents", lowercase)
        )
        self._id_by_text = vocabulary.id_by_text
        self._lengths = PrefixLengths(vocabulary.texts)
        self._unk = [needed_unk_id(vocabulary)]
        self._cache = WordCache()

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        for word in text.translate(self._normalizer).split(" "):
            if word:
                known = self._cache.get(word)
                if known is None:
                    known = self._encode_word("▁" + word)
                    self._cache.put(word, known)
                ids += known
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        at, size = 0, len(word)
        while at < size:
            for length in reversed(self._lengths.at(word, at)):
                token_id = self._id_by_text.get(word[at : at + length])
                # A slice may have been shorter than asked for at the end of the word.
                if token_id is not None and at + length <= size:
                    ids.append(token_id)
                    at += length
                    break
            else:  # one piece that can't be spelled makes the whole word unknown
                return self._unk
        return ids
