"""The vocabulary of a Hugging Face folder -> the metadata `tokenizer.*` of a GGUF file.

What is written equals what llama.cpp's converter writes (commit 0c1e570: conversion/base.py and
each class' set_vocab, gguf-py/gguf/vocab.py), but for what docs/MAKE.md names.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, InvalidParameterError, UnsupportedModelError
from ..gguf_pairs import Pair, pair, replaced
from .vocab_bpe import bpe_pairs, check_affixes, whitespace_pairs, wordpiece_pairs
from .vocab_files import TokenizerFiles
from .vocab_gemma4 import gemma4_pairs, suppressed_pairs
from .vocab_proto import is_sentencepiece
from .vocab_special import SpecialTokens
from .vocab_spm import LLAMA, SpmRules, json_spm_pairs, spm_pairs
from .vocab_unigram import FILE as FAIRSEQ
from .vocab_unigram import unigram_pairs

_ENCODERS = frozenset(
    ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert")
)
_NO_PREFIX = SpmRules(add_prefix=False)
_SPM_RULES = {
    "gemma": _NO_PREFIX,
    "gemma2": _NO_PREFIX,
    "gemma3": _NO_PREFIX,
    "gemma3n": _NO_PREFIX,
    "gemma4": _NO_PREFIX,
    "gemma-embedding": _NO_PREFIX,
    "phi3": SpmRules(json_added=True),
    "internlm2": SpmRules(
        says_prefix=True, json_added=True, renamed={"\0": "\U0001f409"}, unused="[UNUSED"
    ),
}
# Architectures whose tokenizer.json is read even where a tokenizer.model lies beside it.
_JSON_ONLY = frozenset(
    "bloom cohere2 command-r eurobert exaone exaone-moe exaone4 falcon gemma4 glm4 glm4moe "
    "gpt-oss gpt2 gptneox minimax-m2 modern-bert olmo olmo2 olmoe qwen2moe qwen3 qwen3moe "
    "seed_oss smollm3 stablelm starcoder starcoder2".split()
)


def vocabulary_pairs(
    folder: Path,
    config: Mapping[str, Any],
    architecture: str,
    vocab_size: int,
    *,
    pre: str | None = None,
) -> list[Pair]:
    """The keys `tokenizer.*` of the folder's tokenizer.

    config: config.json. architecture: GGUF's name. vocab_size: rows of the embeddings, each of
    which gets a token. pre: the pre-tokenizer's name, of a byte-level BPE that isn't recognised.

    Raises:
        ModelNotFoundError: no tokenizer is there.
        InvalidModelFileError: a file is damaged or contradicts another.
        UnsupportedModelError: a kind of tokenizer that is not converted.
        InvalidParameterError: `pre` is no name, or of no use to this tokenizer.
    """
    files = TokenizerFiles.read(folder, config)
    kind = _kind(files, architecture)
    if pre is not None and kind != "BPE":
        raise InvalidParameterError(
            f"--pre {pre} is of no use: {folder} has a tokenizer of the kind {kind}, which has no "
            "pre-tokenizer"
        )
    rules = _SPM_RULES.get(architecture, LLAMA)
    if kind.startswith("BPE"):
        check_affixes(files)
    if kind == "BPE":
        found, special = bpe_pairs(files, vocab_size, pre=pre)
    elif kind == "BPE of words":
        found, special = whitespace_pairs(files, vocab_size)
    elif kind == "WordPiece":
        found, special = wordpiece_pairs(files, vocab_size)
    elif kind == "Unigram":
        found, special = unigram_pairs(files, vocab_size)
    elif kind == "SentencePiece":
        found, special = spm_pairs(files, vocab_size, rules)
    elif architecture == "gemma4":
        found, special = gemma4_pairs(files, vocab_size)
    else:
        found, special = json_spm_pairs(files, vocab_size, rules)
    change = _CHANGES.get(architecture)
    extra = [] if change is None else change(files, special, vocab_size, kind)
    return replaced(found, [*special.pairs(), *extra])


def _kind(files: TokenizerFiles, architecture: str) -> str:
    """SentencePiece (of tokenizer.model), its BPE in a tokenizer.json, or that file's kind."""
    model = files.folder / "tokenizer.model"
    if architecture in _ENCODERS:
        if (files.folder / FAIRSEQ).is_file():
            return "Unigram"
    elif model.is_file() and is_sentencepiece(model):
        if files.tokenizer is None or architecture not in _JSON_ONLY:
            return "SentencePiece"
    if files.tokenizer is None and (files.folder / "tekken.json").is_file():
        raise UnsupportedModelError(
            f"{files.folder}: only Mistral's own tekken.json is there, which is not read; take the "
            "repository's files for transformers (tokenizer.json)"
        )
    kind = files.kind
    if kind == "BPE" and files.model.get("byte_fallback"):
        return "BPE of SentencePiece"
    if kind == "BPE" and architecture == "jina-bert-v2" and _by_whitespace(files):
        return "BPE of words"
    if kind == "Unigram" and architecture not in _ENCODERS:
        raise UnsupportedModelError(
            f"{files.path}: a unigram tokenizer, but architecture {architecture!r} is run with BPE "
            "only; take the model's tokenizer.model where there is one"
        )
    if kind not in ("BPE", "WordPiece", "Unigram"):
        raise UnsupportedModelError(
            f"{files.path}: a tokenizer of the kind {kind!r} is not converted (only BPE, WordPiece "
            "and Unigram)"
        )
    return kind


def _by_whitespace(files: TokenizerFiles) -> bool:
    """Whether the rule Whitespace cuts words (see whitespace_pairs), and no bytes stand in."""
    return [step.get("type") for step in files.steps("pre_tokenizer")] == ["Whitespace"]


Change = Callable[[TokenizerFiles, SpecialTokens, int, str], Sequence[Pair]]


def _flags(**adds: bool) -> Change:
    """Flags that hold where tokenizer.json does not say otherwise."""

    def change(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
        for role, value in adds.items():
            special.adds.setdefault(role, value)
        return []

    return change


def _llama(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
    found: list[Pair] = []
    said = files.settings.get("add_prefix_space")
    if isinstance(said, bool) and kind == "BPE":
        found.append(pair("tokenizer.ggml.add_space_prefix", "bool", said))
    if size == 32016:  # CodeLlama
        found.append(_eot(32010))
    if size == 49152:  # granite's small ones
        found.append(pair("tokenizer.ggml.add_bos_token", "bool", False))
    return found


def _gemma(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
    return [_eot(107)] if size > 107 else []


def _gemma4(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
    return suppressed_pairs(files)


def _internlm2(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
    end = next((t.id for t in files.added.values() if t.text == "<|im_end|>"), None)
    if end is not None:
        special.ids["eos"] = end
    return []


def _glm(**roles: str) -> Change:
    """Roles that tokenizer_config.json doesn't give to tokens, by their texts."""

    def change(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
        ids = {t.text: t.id for t in files.added.values()}
        for role, text in roles.items():
            if text not in ids:
                raise InvalidModelFileError(f"{files.path}: the added token {text!r} is missing")
            special.set(role, ids[text], where="tokenizer.json")
        return []

    return change


def _jina(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
    by_words = kind in ("BPE", "BPE of words")
    return [pair("tokenizer.ggml.token_type_count", "u32", 2)] if by_words else []


def _token_types(files: TokenizerFiles, special: SpecialTokens, size: int, kind: str) -> list[Pair]:
    return (
        [pair("tokenizer.ggml.token_type_count", "u32", files.num_token_types)]
        if kind == "BPE"
        else []
    )


def _eot(token_id: int) -> Pair:
    return pair("tokenizer.ggml.eot_token_id", "u32", token_id)


_TEXT, _USER = "<|endoftext|>", "<|user|>"
_CHANGES: dict[str, Change] = {
    "llama": _llama,
    "granite": _llama,
    "granitemoe": _llama,
    "gemma": _gemma,
    "gemma4": _gemma4,
    "internlm2": _internlm2,
    "eurobert": _flags(bos=False),
    "modern-bert": _flags(bos=True, eos=True, sep=True),
    "bert": _token_types,
    "jina-bert-v2": _jina,
    "glm4": _glm(eos=_TEXT, eot=_USER, unk=_TEXT, bos=_TEXT),
    "glm4moe": _glm(bos="[gMASK]", eot=_USER, unk=_TEXT, eom="<|observation|>"),
    "chatglm": _glm(eos=_TEXT, eot=_USER, unk=_TEXT),
}
