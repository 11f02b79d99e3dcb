"""The vocabulary of a GGUF file: texts, types and special ids, read by llama.cpp's rules."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ...errors import InvalidModelFileError, UnsupportedModelError
from .charsmap import CharsMap
from .known_tokens import EOM, EOT, FIM_PAD, FIM_REP, FIM_SEP, FIM_TEXTS, STOP_TEXTS

# Attribute bits of a token; the first seven are GGUF's token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE, LSTRIP, RSTRIP = (1 << i for i in range(8))
# GGUF's type number -> bit; 0 and unknown numbers mean "undefined", which has no text.
_BIT_OF_TYPE = np.array([0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE], np.uint8)

_USUAL_IDS = {
    "bert": {"bos": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


class Container(Protocol):
    """What is needed of a GGUF file."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key -> value; a string array is a list of str, or of bytes where one is not UTF-8."""
        ...


class Vocabulary:
    """Token texts (str, invalid bytes as surrogates), attribute bits, special ids, flags.

    texts: list of str, one a token. attrs: uint8, shape (size,). scores: float32, shape (size,),
    0 where the file has none. merges: list of "left right", [] where the file has none.
    controls: ids of control tokens, also of those that are shown; content never produces them.
    Raises InvalidModelFileError for a vocabulary that contradicts itself.
    """

    def __init__(self, gguf: Container) -> None:
        self.metadata = metadata = gguf.metadata
        model = metadata.get("tokenizer.ggml.model")
        if not isinstance(model, str):
            raise UnsupportedModelError(
                "this file has no tokenizer (tokenizer.ggml.model is missing): "
                "it is not a complete language model"
            )
        self.model: str = model
        self.pre: str = str(metadata.get("tokenizer.ggml.pre") or "")
        self.texts = _texts(metadata.get("tokenizer.ggml.tokens"))
        self.size = len(self.texts)
        self.id_by_text: dict[str, int] = dict(zip(self.texts, range(self.size), strict=True))
        self.attrs = self._attrs()
        # All are read now: the file may be closed before the first text is encoded.
        self.merges = _merges(metadata.get("tokenizer.ggml.merges"))
        scores = self._array("scores")
        self.scores = np.zeros(self.size, np.float32)
        if scores is not None:
            self.scores[:] = scores
        self.charsmap = CharsMap(None)
        if model == "t5":
            if scores is None or not np.isfinite(self.scores).all():
                raise InvalidModelFileError(
                    "tokenizer.ggml.scores must hold a finite number for each token: "
                    "a unigram vocabulary can't be used without its scores"
                )
            self.charsmap = CharsMap(metadata.get("tokenizer.ggml.precompiled_charsmap"))
        template = metadata.get("tokenizer.chat_template.rerank")
        self.rerank_template = template if isinstance(template, str) else None
        self._special_ids()
        self.stop_ids = self._stop_ids()
        self.suppress_ids = self._suppress_ids()
        self._strip_attributes()

    def _array(self, name: str) -> np.ndarray | None:
        """A numeric array with at least one value a token; None where the file has none."""
        key = f"tokenizer.ggml.{name}"
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) < self.size:
            raise InvalidModelFileError(
                f"{key} must be an array with a number for each of the {self.size} tokens"
            )
        return value[: self.size]

    def _attrs(self) -> np.ndarray:
        types = self._array("token_type")
        if types is None:
            return np.full(self.size, NORMAL, np.uint8)
        known = (types >= 1) & (types < len(_BIT_OF_TYPE))
        return _BIT_OF_TYPE[np.where(known, types, 0).astype(np.intp)]

    def _key_id(self, *names: str) -> int | None:
        """The first valid id among the metadata keys `tokenizer.ggml.<name>_token_id`."""
        for name in names:
            value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
            if isinstance(value, int) and 0 <= value < self.size:
                return value
        return None

    def _default_id(self, token_id: int, bits: int) -> int | None:
        """SentencePiece's conventional id, if the token there is of that kind."""
        spm = self.model == "llama" and token_id < self.size
        return token_id if spm and self.attrs[token_id] & bits else None

    def _usual_id(self, name: str) -> int | None:
        """The id that BERT's or T5's files have; llama.cpp takes it whatever the token there is."""
        token_id = _USUAL_IDS.get(self.model, {}).get(name)
        return token_id if token_id is not None and token_id < self.size else None

    def _detect(self, texts: tuple[str, ...]) -> int | None:
        """The first of these texts in the vocabulary; it is a control token from then on."""
        for text in texts:
            token_id = self.id_by_text.get(text)
            if token_id is not None:
                self.attrs[token_id] |= CONTROL
                return token_id
        return None

    def _special_ids(self) -> None:
        def first(*ids: int | None) -> int | None:
            return next((i for i in ids if i is not None), None)

        # BERT's files name their first token CLS.
        bos = ("bos", "cls") if self.model == "bert" else ("bos",)
        self.bos_id = first(self._key_id(*bos), self._default_id(1, CONTROL), self._usual_id("bos"))
        self.eos_id = first(
            self._key_id("eos"), self._default_id(2, CONTROL), self._usual_id("eos")
        )
        self.unk_id = first(
            self._key_id("unknown"),
            self._default_id(0, UNKNOWN | CONTROL),
            self._usual_id("unk"),
        )
        self.pad_id = first(self._key_id("padding"), self._usual_id("pad"))
        self.sep_id = first(self._key_id("seperator"), self._usual_id("sep"))  # GGUF's spelling
        self.mask_id = first(self._key_id("mask"), self._usual_id("mask"))
        eot, eom = self._key_id("eot"), self._key_id("eom")
        self.eot_id = self._detect(EOT) if eot is None else eot
        self.eom_id = self._detect(EOM) if eom is None else eom
        self.fim_ids: dict[str, int] = {}
        for name, (old, texts) in FIM_TEXTS.items():
            token_id = self._key_id(f"fim_{name}", *old)
            token_id = self._detect(texts) if token_id is None else token_id
            if token_id is not None:
                self.fim_ids[name] = token_id

    def _stop_ids(self) -> frozenset[int]:
        """Every id that ends a turn (PAINS P22): llama.cpp's list of texts, and its exceptions."""
        ids = {self.fim_ids[name] for name in (FIM_PAD, FIM_REP, FIM_SEP) if name in self.fim_ids}
        for text in STOP_TEXTS:
            token_id = self.id_by_text.get(text)
            if token_id is not None:
                ids.add(token_id)
                self.attrs[token_id] |= CONTROL
        self.controls = frozenset(np.flatnonzero(self.attrs & (CONTROL | UNKNOWN)).tolist())
        for text in _HARMONY:  # gpt-oss: these are shown, and matched, always
            if text in self.id_by_text:
                self.attrs[self.id_by_text[text]] = USER_DEFINED
        ids.update(i for i in (self.eos_id, self.eot_id, self.eom_id) if i is not None)
        here = {self.texts[i] for i in ids}
        calls = "<|call|>" in here or "<|calls|>" in here
        if "<|end|>" in here and calls and ("<|return|>" in here or "<|flush|>" in here):
            end = self.id_by_text["<|end|>"]  # ends a part of a message there, not the turn
            ids.discard(end)
            self.attrs[end] = USER_DEFINED
        if "</s>" in here and ("<|tool_response>" in here or "<|plamo:eos|>" in here):
            plain = self.id_by_text["</s>"]  # HTML's strikethrough there
            ids.discard(plain)
            self.attrs[plain] = NORMAL
            self.controls -= {plain}
        return frozenset(ids)

    def _suppress_ids(self) -> frozenset[int]:
        """Ids that the file says are never to be generated: those of pictures and sounds."""
        key = "tokenizer.ggml.suppress_tokens"
        value = self.metadata.get(key)
        if value is None or isinstance(value, list | np.ndarray) and not len(value):
            return frozenset()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise InvalidModelFileError(f"{key} is {value!r:.60}, must be an array of token ids")
        ids = frozenset(value[(value >= 0) & (value < self.size)].tolist())
        if len(ids) == self.size:
            raise InvalidModelFileError(f"{key} has all {self.size} tokens, and none may be given")
        return ids

    def _strip_attributes(self) -> None:
        """Whitespace that special tokens swallow: not in the files, known by the models' names."""
        name = str(self.metadata.get("general.name") or "").lower()
        architecture = str(self.metadata.get("general.architecture") or "")
        special = np.flatnonzero(self.attrs & (CONTROL | USER_DEFINED | UNKNOWN))
        lstrip = ""
        pres = ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")
        if any(part in self.pre for part in pres) or any(
            part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")
        ):
            lstrip = "<mask>"
        elif "phi-3" in name or "phi3" in name:
            self.attrs[special] |= RSTRIP
            if "</s>" in self.id_by_text:
                self.attrs[self.id_by_text["</s>"]] |= RSTRIP
            for text in ("<unk>", "<s>", "<|endoftext|>"):
                if text in self.id_by_text:
                    self.attrs[self.id_by_text[text]] &= 255 - RSTRIP
        elif "modern-bert" in name:
            lstrip = "[MASK]"
        if lstrip in self.id_by_text:
            self.attrs[self.id_by_text[lstrip]] |= LSTRIP

    def flag(self, name: str, default: bool) -> bool:
        """A boolean of the metadata, `tokenizer.ggml.<name>`."""
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        return default if value is None else bool(value)


def needed_unk_id(vocabulary: Vocabulary) -> int:
    """The unknown token's id, for the kinds that can't do without one."""
    if vocabulary.unk_id is None:
        raise InvalidModelFileError(
            "tokenizer.ggml.unknown_token_id is missing, and the vocabulary of "
            f"{vocabulary.size} tokens is too small for the usual one"
        )
    return vocabulary.unk_id


def _texts(tokens: Any) -> list[str]:
    """The token texts as str; an empty one is named by its position, as llama.cpp does."""
    if not isinstance(tokens, list) or not tokens:
        raise InvalidModelFileError(
            "tokenizer.ggml.tokens must be an array of the tokens' texts; it is missing or empty"
        )
    if isinstance(tokens[0], bytes):
        tokens = [token.decode("utf-8", "surrogateescape") for token in tokens]
    if "" in tokens:
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    return tokens


def _merges(merges: Any) -> list[str]:
    if merges is None:
        return []
    if not isinstance(merges, list):
        raise InvalidModelFileError("tokenizer.ggml.merges must be an array of strings")
    if merges and isinstance(merges[0], bytes):
        return [line.decode("utf-8", "surrogateescape") for line in merges]
    return merges
