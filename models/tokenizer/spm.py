"""SentencePiece's bigram merging by score, with byte fallback, as llama.cpp does it.

Our own, not the `sentencepiece` package: the merge loop is a page, equals llama.cpp on every
golden, and needs no ModelProto built from the GGUF.
"""

from .bpe import word_boundary
from .merges import WordCache, merge
from .vocab import Vocabulary

_NONE = float("inf")


class ScoreEncoder:
    """Plain text (no special tokens, spaces already ▁) to ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._id_by_text = vocabulary.id_by_text
        self._scores = (-vocabulary.scores).tolist()
        self._unk_id = vocabulary.unk_id
        self._cache = WordCache()
        self._boundary = word_boundary("\0".join(vocabulary.texts))

    def _rank(self, left: str, right: str) -> float:
        token_id = self._id_by_text.get(left + right)
        return _NONE if token_id is None else self._scores[token_id]

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        for word in self._boundary.split(text):
            known = self._cache.get(word)
            if known is None:
                known = self._encode_word(word)
                self._cache.put(word, known)
            ids += known
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in merge(list(word), self._rank):
            token_id = self._id_by_text.get(symbol)
            if token_id is None:
                ids += [i for byte in symbol.encode() if (i := self._byte_id(byte)) is not None]
            else:
                ids.append(token_id)
        return ids

    def _byte_id(self, byte: int) -> int | None:
        """The token of a byte; the unknown token where the vocabulary has no byte tokens."""
        named = self._id_by_text.get(f"<0x{byte:02X}>")
        return self._id_by_text.get(chr(byte), self._unk_id) if named is None else named
