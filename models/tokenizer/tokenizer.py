"""Tokenizer: the front door of text, the same for every kind of vocabulary."""

import re
import sys
import threading
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol, Self

from ...errors import InvalidModelFileError, UnsupportedModelError
from ..gguf import GGUFFile
from .bpe import BYTE_OF_CHAR, BytePairEncoder
from .pretokenize import PreTokenizer
from .special import Guard, SpecialTokens
from .spm import ScoreEncoder
from .stream import StreamDecoder
from .unigram import UnigramEncoder
from .vocab import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Container,
    Vocabulary,
    needed_unk_id,
)
from .wordpiece import WordPieceEncoder

_KINDS = {
    "llama": "SPM",
    "gpt2": "BPE",
    "gemma4": "BPE",
    "whitespace": "BPE",
    "bert": "WPM",
    "t5": "UGM",
}
_REFUSED = {"rwkv": "RWKV", "plamo2": "PLaMo 2", "hybriddna": "BPE and DNA"}


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """Text to token ids and back. Immutable after construction; every method is thread-safe.

    vocab_size: int. bos_id, eos_id, eot_id, eom_id, unk_id, pad_id, sep_id, mask_id: int, or None
    where the file has none. add_bos, add_eos: whether `encode` adds them (BERT's kind always adds
    BOS, which is its CLS, and SEP). stop_ids: every id that ends a turn. suppress_ids: those that
    the file says are never to be generated.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        kind = _KINDS.get(vocabulary.model)
        if kind is None:
            raise UnsupportedModelError(
                f"tokenizers of the kind {vocabulary.model!r}"
                + (f" ({_REFUSED[vocabulary.model]})" if vocabulary.model in _REFUSED else "")
                + f" are not supported; these are: {', '.join(sorted(_KINDS))}"
            )
        self.vocabulary = vocabulary
        self.vocab_size: int = vocabulary.size
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.eot_id, self.eom_id = vocabulary.eot_id, vocabulary.eom_id
        self.unk_id, self.pad_id = vocabulary.unk_id, vocabulary.pad_id
        self.stop_ids: frozenset[int] = vocabulary.stop_ids
        self.suppress_ids: frozenset[int] = vocabulary.suppress_ids
        self.sep_id, self.mask_id = vocabulary.sep_id, vocabulary.mask_id
        self._kind = kind
        self._spm = kind == "SPM"
        rules = None
        self._pre = None
        if kind == "BPE":
            self._pre = PreTokenizer("gemma4" if vocabulary.model == "gemma4" else vocabulary.pre)
            rules = self._pre.rules
        add_bos = kind in ("SPM", "WPM") or (rules is not None and rules.add_bos)
        forced = rules is not None and rules.force_bos
        self.add_bos: bool = self.bos_id is not None and (
            forced or vocabulary.flag("add_bos_token", add_bos)
        )
        self.add_eos: bool = self.eos_id is not None and vocabulary.flag(
            "add_eos_token", kind == "UGM"
        )
        add_sep = kind == "WPM" or (rules is not None and rules.add_sep)
        self.add_sep: bool = self.sep_id is not None and vocabulary.flag("add_sep_token", add_sep)
        # What `encode` puts around a text; BERT's two whatever the flags say, as llama.cpp.
        self._before = self.bos_id if self.add_bos or kind == "WPM" else None
        self._after = self.sep_id if kind == "WPM" else self.eos_id if self.add_eos else None
        if kind in ("WPM", "UGM"):
            needed_unk_id(vocabulary)
        if kind == "WPM" and (self._before is None or self._after is None):
            raise InvalidModelFileError(
                "tokenizer.ggml.cls_token_id and seperator_token_id must name tokens of the "
                f"vocabulary of {vocabulary.size}: BERT's texts stand between the two"
            )
        self._space_prefix = self._spm and vocabulary.flag("add_space_prefix", True)
        self._lock = threading.Lock()
        self._encoder_and_special: tuple[_Encoder, SpecialTokens] | None = None
        self._bytes: dict[int, bytes] = {}
        self._warned_double_bos = False

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """The tokenizer of a GGUF file, which may hold a vocabulary and nothing else."""
        with GGUFFile.open(path) as gguf:
            return cls.from_gguf(gguf)

    @classmethod
    def from_gguf(cls, gguf: Container) -> Self:
        """The tokenizer of an open GGUF file.

        UnsupportedModelError: a kind of vocabulary that is not run. InvalidModelFileError: a
        vocabulary that contradicts itself.
        """
        return cls(Vocabulary(gguf))

    def _ready(self) -> tuple[_Encoder, SpecialTokens]:
        """What encoding needs, made on first use: decoding alone should not wait for it."""
        with self._lock:
            if self._encoder_and_special is None:
                if self._pre is not None:
                    encoder: _Encoder = BytePairEncoder(self.vocabulary, self._pre)
                elif self._kind == "WPM":
                    encoder = WordPieceEncoder(self.vocabulary)
                elif self._kind == "UGM":
                    encoder = UnigramEncoder(self.vocabulary)
                else:
                    encoder = ScoreEncoder(self.vocabulary)
                self._encoder_and_special = encoder, SpecialTokens(self.vocabulary)
            return self._encoder_and_special

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        guards: Sequence[Guard] = (),
    ) -> list[int]:
        """The ids of a text; equal to llama.cpp's.

        add_special: put BOS first and EOS (BERT: SEP) last, where the model wants them.
        parse_special: the texts of control tokens become those tokens; user-defined tokens are
        always matched.
        guards: (start, end, ids): no stretch that touches text[start:end] becomes one of `ids`.
        """
        encoder, special = self._ready()
        text = _well_formed(text)
        ids: list[int] = []
        if add_special and self._before is not None:
            ids.append(self._before)
        after_special = True
        for piece in special.partition(text, parse_special, guards):
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
                continue
            plain = text[piece[0] : piece[1]]
            if self._spm:
                # SentencePiece's dummy prefix, after each special token as well (llama.cpp's rule)
                plain = (" " + plain if self._space_prefix and after_special else plain).replace(
                    " ", "▁"
                )
            ids += encoder.encode(plain)
            after_special = False
        if add_special and self._after is not None:
            ids.append(self._after)
        if add_special and self.add_bos and ids[1:2] == [self.bos_id]:
            self._warn_double_bos()
        return ids

    def encode_pair(self, query: str, document: str, *, template: str | None = None) -> list[int]:
        """The ids of a query and a document, for a model that scores how well they fit.

        [BOS] query [EOS] [SEP] document [EOS], each only if the vocabulary adds it, or the file's
        own rerank template filled in: as llama.cpp's server. No text becomes a control token.
        template: instead, with {query} and {document}.
        """
        template = self.vocabulary.rerank_template if template is None else template
        if template is not None:
            return self._encode_rerank_template(template, query, document)
        eos = [self.sep_id if self.eos_id is None else self.eos_id]
        parts = (
            [self.bos_id] if self.add_bos else [],
            self.encode(query, add_special=False),
            eos if self.add_eos else [],
            [self.sep_id] if self.add_sep else [],
            self.encode(document, add_special=False),
            eos if self.add_eos else [],
        )
        return [token_id for part in parts for token_id in part if token_id is not None]

    def _encode_rerank_template(self, template: str, query: str, document: str) -> list[int]:
        texts = {"{query}": _well_formed(query), "{document}": _well_formed(document)}
        prompt = ""
        guards: list[Guard] = []
        for part in re.split(r"(\{query\}|\{document\})", template):
            text = texts.get(part)
            if text:
                guards.append((len(prompt), len(prompt) + len(text), self.vocabulary.controls))
            prompt += part if text is None else text
        return self.encode(prompt, add_special=False, parse_special=True, guards=guards)

    def _warn_double_bos(self) -> None:
        """Once a tokenizer: the caller is obeyed, but hears of it (PAINS P20)."""
        if not self._warned_double_bos:
            self._warned_double_bos = True
            warnings.warn(
                "the prompt starts with a BOS token already and the model's settings add another; "
                "leave it out of the text or pass add_special=False",
                stacklevel=3,
            )

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD.

        skip_special: leave control tokens out. The space that SentencePiece models put before a
        text is part of their first token's text and kept, since ids may continue another text.
        """
        pieces = self._piece if not skip_special else self.token_bytes
        return b"".join([pieces(int(token_id)) for token_id in ids]).decode("utf-8", "replace")

    def stream(self, *, skip_special: bool = True, show: Collection[int] = ()) -> StreamDecoder:
        """A decoder for ids that arrive one at a time.

        skip_special: leave control tokens out, except those in `show`.
        """
        if not skip_special:
            return StreamDecoder(self._piece)
        shown = frozenset(show)
        return StreamDecoder(lambda i: self._piece(i) if i in shown else self.token_bytes(i))

    @property
    def longest_token(self) -> int:
        """Characters of text that a token stands for at most."""
        if self._kind in ("WPM", "UGM"):
            return sys.maxsize  # one unknown token for a word or run of any length
        return max(map(len, self.vocabulary.texts))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; b"" for control tokens. IndexError: no such id."""
        known = self._bytes.get(token_id)
        if known is None:
            special = self._attr(token_id) & (CONTROL | UNKNOWN)
            known = self._bytes[token_id] = b"" if special else self._piece(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """The vocabulary's own text of a token, for display. IndexError: no such id."""
        self._attr(token_id)
        return (
            self.vocabulary.texts[token_id]
            .encode("utf-8", "surrogateescape")
            .decode("utf-8", "replace")
        )

    def shown_special_tokens(self) -> list[tuple[int, str]]:
        """(id, text) of the special tokens that are matched in any text and shown in answers."""
        vocabulary = self.vocabulary
        ids = (vocabulary.attrs & USER_DEFINED).nonzero()[0].tolist()
        return [(i, vocabulary.texts[i]) for i in ids]

    def special_in(self, text: str) -> list[tuple[int, str]]:
        """(id, text) of the special tokens whose text occurs in `text`, longest first."""
        found = self._ready()[1].in_text(text, parse_special=True)
        return [(token_id, token) for _, token_id, token, _ in found]

    def _attr(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(f"token {token_id} is outside the vocabulary of {self.vocab_size}")
        return int(self.vocabulary.attrs[token_id])

    def _piece(self, token_id: int) -> bytes:
        """The bytes of a token, those of control tokens included."""
        attr = self._attr(token_id)
        text = self.vocabulary.texts[token_id]
        if attr & (CONTROL | UNKNOWN | USER_DEFINED):
            return text.encode("utf-8", "surrogateescape")
        if attr & NORMAL:
            if self._pre is None or self._pre.raw_text:
                return text.replace("▁", " ").encode("utf-8", "surrogateescape")
            return b"".join(
                bytes((BYTE_OF_CHAR[ord(char)],))
                if ord(char) in BYTE_OF_CHAR
                else char.encode("utf-8", "surrogateescape")
                for char in text
            )
        if attr & BYTE:
            try:
                return bytes((int(text[3:5], 16),))
            except ValueError:
                return b""
        return b""


def _well_formed(text: str) -> str:
    """The text with surrogate pairs joined and lone ones replaced: JSON can carry them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
