"""The tokens of a vocabulary on their way into a GGUF file."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InvalidModelFileError
from ..gguf_pairs import Pair, array_pair, pair
from .vocab_files import AddedToken

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # GGUF's, and SentencePiece's
BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")

# Scores of what SentencePiece did not score: an added token, and a row that no token has.
ADDED_SCORE, UNUSED_SCORE = -1000.0, -10000.0
_SPACE = "\u2581"
_SPECIAL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_SPECIAL_SHAPES = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))


@dataclass
class Tokens:
    """Texts, GGUF's types and scores (None: the vocabulary has none), by id."""

    texts: list[str]
    types: list[int]
    scores: list[float] | None = None

    @classmethod
    def unused(cls, size: int, *, scores: bool) -> "Tokens":
        """Rows that no token has yet, named as llama.cpp's converter names them."""
        return cls(
            [f"[PAD{i}]" for i in range(size)],
            [UNUSED] * size,
            [UNUSED_SCORE] * size if scores else None,
        )

    def put(self, token_id: int, text: str, kind: int, score: float = ADDED_SCORE) -> None:
        """Set one token."""
        self.texts[token_id], self.types[token_id] = text, kind
        if self.scores is not None:
            self.scores[token_id] = score

    def put_added(self, token: AddedToken) -> None:
        """Set an added token; one that isn't special has spaces where its text has U+2581."""
        if token.special or looks_special(token.text):
            self.put(token.id, token.text, CONTROL)
        else:
            self.put(token.id, token.text.replace(_SPACE, " "), USER_DEFINED)

    def pairs(self, model: str, pre: str | None) -> list[Pair]:
        """The keys of a vocabulary of this kind."""
        named = [pair("tokenizer.ggml.model", "str", model)]
        if pre is not None:
            named.append(pair("tokenizer.ggml.pre", "str", pre))
        named.append(array_pair("tokenizer.ggml.tokens", "str", self.texts))
        if self.scores is not None:
            scores = np.array(self.scores, np.float32)
            named.append(array_pair("tokenizer.ggml.scores", "f32", scores))
        return [*named, array_pair("tokenizer.ggml.token_type", "i32", self.types)]


def looks_special(text: str) -> bool:
    """Whether a token that isn't marked as special is one all the same.

    Facts of llama.cpp's converter: command-r, deepseek-coder and gemma mark such tokens wrongly.
    """
    return text in _SPECIAL_TEXTS or any(
        text.startswith(first) and text.endswith(last) for first, last in _SPECIAL_SHAPES
    )


def check_ids(path: Path, id_of_text: dict[str, int], size: int) -> None:
    """InvalidModelFileError: an id is out of the model's range, or two tokens have the same."""
    text_of_id: dict[int, str] = {}
    for text, token_id in id_of_text.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise InvalidModelFileError(f"{path}: the token {text!r} has the id {token_id!r}")
        if token_id >= size:
            raise InvalidModelFileError(
                f"{path}: the token {text!r} has the id {token_id}, but the model has {size} "
                "tokens: the tokenizer belongs to another model, or the embeddings were not "
                "enlarged when tokens were added"
            )
        if token_id in text_of_id:
            raise InvalidModelFileError(
                f"{path}: the tokens {text_of_id[token_id]!r} and {text!r} have the same id "
                f"{token_id}"
            )
        text_of_id[token_id] = text
