"""SentencePiece's unigram model, as XLM-RoBERTa's family has it -> tokenizer.ggml.* of kind t5."""

import base64
import binascii
from typing import Any

from ...errors import InvalidModelFileError, UnsupportedModelError
from ..gguf_pairs import Pair, array_pair, pair
from .vocab_files import TokenizerFiles
from .vocab_proto import UNIGRAM, read_sentencepiece
from .vocab_special import SpecialTokens
from .vocab_tokens import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Tokens

FILE = "sentencepiece.bpe.model"  # its name in fairseq; the model is a unigram one all the same


def unigram_pairs(files: TokenizerFiles, size: int) -> tuple[list[Pair], SpecialTokens]:
    """The keys of the vocabulary, and its special tokens, not among them yet.

    size: of the model's embeddings; a vocabulary may be larger. InvalidModelFileError: a file
    contradicts itself.
    """
    if (files.folder / FILE).is_file():
        tokens, charsmap, add_prefix, remove_spaces = _of_proto(files, size)
    else:
        tokens, charsmap, add_prefix, remove_spaces = _of_json(files, size)
    found = tokens.pairs("t5", "default")
    found += [
        pair("tokenizer.ggml.add_space_prefix", "bool", add_prefix),
        pair("tokenizer.ggml.token_type_count", "u32", files.num_token_types),
        pair("tokenizer.ggml.remove_extra_whitespaces", "bool", remove_spaces),
    ]
    if charsmap:
        found.append(array_pair("tokenizer.ggml.precompiled_charsmap", "u8", list(charsmap)))
    return found, SpecialTokens(files, len(tokens.texts))


def _of_proto(files: TokenizerFiles, size: int) -> tuple[Tokens, bytes, bool, bool]:
    """SentencePiece's pieces by fairseq's ids: four special tokens first, the others one later."""
    path = files.folder / FILE
    model = read_sentencepiece(path)
    if model.kind != UNIGRAM:
        raise UnsupportedModelError(
            f"{path}: a SentencePiece model of {model.kind_name}; XLM-RoBERTa's is a unigram one"
        )
    count = max(size, len(model.texts))
    tokens = Tokens.unused(count, scores=True)
    for text, token_id, kind in (
        ("<s>", 0, CONTROL), ("<pad>", 1, CONTROL), ("</s>", 2, CONTROL), ("<unk>", 3, UNKNOWN),
    ):  # fmt: skip
        tokens.put(token_id, text, kind, 0.0)
    # Rows beyond are named by where they lay before all moved by one.
    for i in range(3, count - 1):
        if i < len(model.texts):
            kind = NORMAL if model.types[i] == USER_DEFINED else model.types[i]
            tokens.put(i + 1, model.texts[i], kind, model.scores[i])
        else:
            tokens.texts[i + 1] = f"[PAD{i}]"
    return tokens, model.charsmap, model.add_prefix, model.remove_spaces


def _of_json(files: TokenizerFiles, size: int) -> tuple[Tokens, bytes, bool, bool]:
    vocabulary = files.model.get("vocab")
    if not isinstance(vocabulary, list) or not all(map(_is_piece, vocabulary)):
        raise InvalidModelFileError(f"{files.path}: vocab is not a list of [text, finite score]")
    unk_id = files.model.get("unk_id")
    tokens = Tokens.unused(max(size, len(vocabulary)), scores=True)
    for i, (text, score) in enumerate(vocabulary):
        added = files.added.get(i)
        kind = NORMAL
        if i == unk_id:
            kind = UNKNOWN
        elif added is not None:
            kind = CONTROL if added.special else USER_DEFINED
        tokens.put(i, text, kind, float(score))
    for token in files.added.values():
        if token.id >= len(vocabulary):
            if token.id >= len(tokens.texts):
                raise InvalidModelFileError(
                    f"{files.path}: the added token {token.text!r} has the id {token.id}, but the "
                    f"model has {size} tokens"
                )
            tokens.put(token.id, token.text, CONTROL if token.special else USER_DEFINED)
    steps = [*files.steps("normalizer"), *files.steps("pre_tokenizer")]
    kinds = [step.get("type") for step in steps]
    spaces = "WhitespaceSplit" in kinds or any(map(_joins_spaces, steps))
    prefix = any(
        step.get("type") == "Metaspace"
        and step.get("prepend_scheme", "always") != "never"
        and step.get("add_prefix_space", True)
        for step in steps
    )
    return tokens, _charsmap(files, steps), prefix, spaces


def _is_piece(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], (int, float))
        and abs(entry[1]) < 3.4e38  # what float32 holds; no NaN
    )


def _joins_spaces(step: Any) -> bool:
    pattern = step.get("pattern")
    return (
        step.get("type") == "Replace"
        and isinstance(pattern, dict)
        and pattern.get("Regex") in (" {2,}", "\\s+", " +")
    )


def _charsmap(files: TokenizerFiles, steps: list[Any]) -> bytes:
    for step in steps:
        if step.get("type") == "Precompiled":
            try:
                return base64.b64decode(step.get("precompiled_charsmap") or "", validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise InvalidModelFileError(
                    f"{files.path}: precompiled_charsmap is not base64"
                ) from None
    return b""
