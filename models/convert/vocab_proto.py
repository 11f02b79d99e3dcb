"""SentencePiece's model file, read without its package: a protobuf of pieces and two short specs.

Fields by number, as in sentencepiece_model.proto: 1 a piece (1 text, 2 score, 3 type), 2 the
trainer's spec (3 the kind of model), 3 the normalizer's (2 charsmap, 3 and 4 flags).
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import InvalidModelFileError

UNIGRAM, BPE = 1, 2
_KINDS = {UNIGRAM: "unigram", BPE: "BPE", 3: "words", 4: "characters"}
_NORMAL, _UNUSED, _BYTE = 1, 5, 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class SentencePieceModel:
    """texts, scores, types: of the pieces by id, types as GGUF has them. kind: UNIGRAM or BPE.

    charsmap: of the normalizer, b"" without one. add_prefix: a space is put before a text.
    remove_spaces: runs of spaces become one, those around a text none.
    """

    texts: list[str]
    scores: list[float]
    types: list[int]
    kind: int
    charsmap: bytes
    add_prefix: bool
    remove_spaces: bool

    @property
    def kind_name(self) -> str:
        """For messages."""
        return _KINDS.get(self.kind, str(self.kind))


def is_sentencepiece(path: Path) -> bool:
    """Whether a tokenizer.model is SentencePiece's: some are lists of base64 (tiktoken)."""
    with path.open("rb") as file:
        head = file.read(1)
    return head == b"\x0a"


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a model. InvalidModelFileError: it is cut off, or not one."""
    try:
        return _model(path, memoryview(path.read_bytes()))
    except (IndexError, struct.error, UnicodeDecodeError, _BadProto):
        raise InvalidModelFileError(
            f"{path}: not a sound SentencePiece model; fetch it once more"
        ) from None


class _BadProto(Exception):
    """A protobuf that contradicts itself."""


def _model(path: Path, data: memoryview) -> SentencePieceModel:
    texts: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    kind, charsmap = UNIGRAM, b""
    flags = {3: True, 4: True}  # what the format has where the file is silent
    for field, value in _fields(data):
        if field == 1:
            text, score, type_id = _piece(_message(value))
            if not math.isfinite(score):
                raise InvalidModelFileError(f"{path}: the piece {text!r} has the score {score}")
            texts.append(text)
            scores.append(score)
            types.append(type_id)
        elif field == 2:
            kind = _last(_message(value), 3, UNIGRAM)
        elif field == 3:
            for inner, what in _fields(_message(value)):
                if inner == 2:
                    charsmap = bytes(_message(what))
                elif inner in flags:
                    flags[inner] = bool(what)
    if not texts:
        raise _BadProto
    if "\0" in texts and _BYTE in types:  # SentencePiece takes the byte's token then
        types[texts.index("\0")] = _UNUSED
    if len(set(texts)) < len(texts):
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))
        raise InvalidModelFileError(f"{path}: the piece {twice!r} is there twice")
    return SentencePieceModel(texts, scores, types, kind, charsmap, flags[3], flags[4])


def _piece(data: memoryview) -> tuple[str, float, int]:
    text, score, type_id = "", 0.0, _NORMAL
    for field, value in _fields(data):
        if field == 1:
            text = bytes(_message(value)).decode()
        elif field == 2:
            (score,) = struct.unpack("<f", _message(value))
        elif field == 3 and isinstance(value, int):
            type_id = value
    if not _NORMAL <= type_id <= _BYTE:
        raise _BadProto
    return text, score, type_id


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _BadProto
    return value


def _last(data: memoryview, wanted: int, default: int) -> int:
    for field, value in _fields(data):
        if field == wanted and isinstance(value, int):
            default = value
    return default


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: a number, or the bytes of what isn't a varint."""
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise _BadProto
        if length > size - at:
            raise _BadProto
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise _BadProto
