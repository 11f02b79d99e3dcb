"""SentencePiece's unigram model as llama.cpp does it: the best-scored way to cut a text (Viterbi).

Not in it, as in llama.cpp: byte fallback. What no token spells is the unknown token, once a run.
"""

import numpy as np

from .bpe import word_boundary
from .merges import WordCache
from .prefix_lengths import PrefixLengths
from .vocab import NORMAL, UNUSED, USER_DEFINED, Vocabulary, needed_unk_id

_UNKNOWN_PENALTY = np.float32(10)
_WORST = float("-inf")


class UnigramNormalizer:
    """Replaced characters, spaces as ▁, one before the text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._map = vocabulary.charsmap
        # How llama.cpp protects user-defined tokens: whatever begins like one is not replaced.
        user_defined = (vocabulary.attrs & USER_DEFINED).nonzero()[0].tolist()
        self._protected = {
            text[:n]
            for text in (vocabulary.texts[i] for i in user_defined)
            for n in range(1, len(text) + 1)
        }
        self._merge_spaces = vocabulary.flag("remove_extra_whitespaces", False)
        self._add_space = vocabulary.flag("add_space_prefix", False)

    def __call__(self, text: str) -> str:
        text = self._replace(text)
        if self._merge_spaces:
            return "".join(["▁" + word for word in text.split(" ") if word])
        stripped = text.lstrip(" ")
        if self._add_space and stripped:
            spaces = len(text) - len(stripped)
            text = f"{text[:spaces]} {stripped}"
        return text.replace(" ", "▁")

    def _replace(self, text: str) -> str:
        if not self._map:
            return text
        longest, protected = self._map.longest, self._protected
        out: list[str] = []
        at, size = 0, len(text)
        while at < size:
            char = text[at]
            if char in protected:
                end = at + 1
                while end < size and text[at : end + 1] in protected:
                    end += 1
                out.append(text[at:end])
                at = end
                continue
            length, replacement = longest(text, at)
            out.append(replacement if length else char)
            at += length or 1
        return "".join(out)


class UnigramEncoder:
    """Plain text (no special tokens) to ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        unk_id = needed_unk_id(vocabulary)
        self._normalize = UnigramNormalizer(vocabulary)
        attrs, texts = vocabulary.attrs, vocabulary.texts
        normal = vocabulary.scores[attrs & NORMAL > 0]
        lowest = normal.min() if normal.size else np.float32(0)
        self._unk_id, self._unk_score = unk_id, float(lowest - _UNKNOWN_PENALTY)
        scores = vocabulary.scores.astype(np.float64)
        self._scores = np.where(attrs & USER_DEFINED, 0, scores).tolist()
        self._tokens = vocabulary.id_by_text.copy()
        for i in (attrs & (NORMAL | USER_DEFINED | UNUSED) == 0).nonzero()[0].tolist():
            self._tokens.pop(texts[i], None)
        self._lengths = PrefixLengths(self._tokens)
        # Scores are float32 and their sums float64, so exact: cutting a text where no token
        # crosses changes no choice.
        self._boundary = word_boundary("\0".join(self._tokens))
        self._cache = WordCache()

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        unk_id = self._unk_id
        for word in self._boundary.split(self._normalize(text)):
            known = self._cache.get(word)
            if known is None:
                known = self._encode_word(word)
                self._cache.put(word, known)
            # A run of unknown tokens is one, across words as well.
            ids += known[1:] if ids and known and ids[-1] == unk_id == known[0] else known
        return ids

    def _encode_word(self, word: str) -> list[int]:
        size = len(word)
        best = [0.0] + [_WORST] * size
        come_from = [(0, self._unk_id)] * (size + 1)
        tokens, scores, at_place = self._tokens, self._scores, self._lengths.at
        for begin in range(size):
            score_here = best[begin]
            unknown = True
            for length in at_place(word, begin):
                end = begin + length
                if end > size:
                    break
                token_id = tokens.get(word[begin:end])
                if token_id is not None:
                    if length == 1:
                        unknown = False
                    score = score_here + scores[token_id]
                    if score > best[end]:
                        best[end] = score
                        come_from[end] = begin, token_id
            if unknown:
                score = score_here + self._unk_score
                if score > best[begin + 1]:
                    best[begin + 1] = score
                    come_from[begin + 1] = begin, self._unk_id
        ids: list[int] = []
        end = size
        while end:
            end, token_id = come_from[end]
            if not (ids and ids[-1] == token_id == self._unk_id):
                ids.append(token_id)
        ids.reverse()
        return ids
