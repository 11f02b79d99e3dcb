"""SentencePiece's BPE: tokenizer.model, or what tokenizer.json makes of one -> tokenizer.ggml.*."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import InvalidModelFileError, UnsupportedModelError
from ..gguf_pairs import Pair, pair
from .vocab_bpe import check_vocabulary, merges
from .vocab_files import AddedToken, TokenizerFiles, read_object
from .vocab_proto import BPE, UNIGRAM, read_sentencepiece
from .vocab_special import SpecialTokens
from .vocab_tokens import (
    ADDED_SCORE,
    BYTE,
    BYTE_TOKEN,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Tokens,
    check_ids,
)

logger = logging.getLogger(__name__)

_SPACE = "\u2581"


@dataclass(frozen=True)
class SpmRules:
    """In what families differ from llama.

    add_prefix: the key add_space_prefix: a value, or None for what the settings say.
    says_prefix: that key is always written. json_added: added tokens of tokenizer.json count, too.
    renamed: pieces that get another text. unused: pieces that begin so are unused.
    """

    add_prefix: bool | None = None
    says_prefix: bool = False
    json_added: bool = False
    renamed: Mapping[str, str] | None = None
    unused: str | None = None


LLAMA = SpmRules()


def spm_pairs(
    files: TokenizerFiles, size: int, rules: SpmRules = LLAMA
) -> tuple[list[Pair], SpecialTokens]:
    """The keys of a vocabulary of tokenizer.model, and its special tokens, not among them yet.

    size: of the model's embeddings: rows without a token get unused ones, tokens beyond are left
    out.
    """
    model = read_sentencepiece(files.folder / "tokenizer.model")
    if model.kind not in (BPE, UNIGRAM):
        raise UnsupportedModelError(
            f"{files.folder / 'tokenizer.model'}: a SentencePiece model of {model.kind_name}; only "
            "BPE and unigram are converted"
        )
    tokens = Tokens.unused(size, scores=True)
    for i, text in enumerate(model.texts[:size]):
        kind = NORMAL if model.types[i] == USER_DEFINED else model.types[i]
        if rules.unused is not None and text.startswith(rules.unused):
            kind = UNUSED
        tokens.put(i, (rules.renamed or {}).get(text, text), kind, model.scores[i])
    left_out = max(0, len(model.texts) - size)
    for text, token_id in (read_object(files.folder / "added_tokens.json") or {}).items():
        if not isinstance(token_id, int) or token_id < 0:
            raise InvalidModelFileError(
                f"{files.folder / 'added_tokens.json'}: the token {text!r} has the id {token_id!r}"
            )
        if token_id < size:
            tokens.put(token_id, text, USER_DEFINED)
        else:
            left_out += 1
    for token in _added(files, rules):
        if token.id >= size:
            left_out += 1
        elif rules.json_added:
            tokens.put(token.id, token.text, CONTROL if token.special else USER_DEFINED)
        else:
            tokens.put_added(token)
    if left_out:
        logger.warning(
            "%s: %d tokens with ids from %d on are left out: the model has no rows for them",
            files.folder, left_out, size,
        )  # fmt: skip
    return _finish(files, tokens, rules, model.add_prefix)


def _added(files: TokenizerFiles, rules: SpmRules) -> list[AddedToken]:
    """Those of tokenizer_config.json, or tokenizer.json's without any or a family wants it."""
    if rules.json_added or not files.settings.get("added_tokens_decoder"):
        return [files.added[i] for i in sorted(files.added)]
    declared = {int(key) for key in files.settings["added_tokens_decoder"]}
    return [token for token in files.added.values() if token.id in declared]


def json_spm_pairs(
    files: TokenizerFiles, size: int, rules: SpmRules = LLAMA
) -> tuple[list[Pair], SpecialTokens]:
    """The same of a tokenizer.json alone: BPE on characters with bytes for what is unknown.

    Scores are ranks of the merges, which is what they are in tokenizer.model; llama.cpp's
    converter writes -1000 for each token, with which words are cut in another order.
    """
    vocabulary = check_vocabulary(files, size)
    id_of_text = {**vocabulary, **{t.text: t.id for t in files.added.values()}}
    check_ids(files.path, id_of_text, size)
    tokens = Tokens.unused(size, scores=True)
    scores = _scores(files, vocabulary)
    for text, token_id in vocabulary.items():
        kind = BYTE if BYTE_TOKEN.fullmatch(text) else NORMAL
        tokens.put(token_id, text, kind, scores.get(text, ADDED_SCORE))
    for token in files.added.values():
        tokens.put_added(token)
    for role in ("bos", "eos", "unk"):
        text = files.named(role)
        if text is not None and text in id_of_text:
            tokens.put(id_of_text[text], text, CONTROL)
    return _finish(files, tokens, rules, _puts_space(files))


def _scores(files: TokenizerFiles, vocabulary: Mapping[str, int]) -> dict[str, float]:
    """Minus the order in which merges make the tokens; 0 for what no merge makes: characters.

    Scores know no pairs: any two tokens whose text is a token may be merged. Where tokenizer.json
    does not list them all, as it does for SentencePiece's, that is said.
    """
    ways: dict[str, int] = {}  # in the order of the merges
    for line in merges(files):
        text = line.replace(" ", "")
        ways[text] = ways.get(text, 0) + 1
    if unknown := ways.keys() - vocabulary.keys():
        raise InvalidModelFileError(
            f"{files.path}: its merges make {min(unknown)!r}, which is no token"
        )
    if more := sum(listed < _num_ways(text, vocabulary) for text, listed in ways.items()):
        logger.warning(
            "%s: %d of its %d merged tokens could be put together otherwise than its merges do; "
            "this was not SentencePiece's vocabulary, and some texts may be cut into other tokens",
            files.path, more, len(ways),
        )  # fmt: skip
    rank = {text: -float(i) for i, text in enumerate(ways, 1)}
    return {text: rank.get(text, 0.0) for text in vocabulary}


def _num_ways(text: str, vocabulary: Mapping[str, int]) -> int:
    """Of cutting a text into two tokens."""
    return sum(text[:n] in vocabulary and text[n:] in vocabulary for n in range(1, len(text)))


def _puts_space(files: TokenizerFiles) -> bool:
    """Whether tokenizer.json puts a space before a text."""
    for step in [*files.steps("normalizer"), *files.steps("pre_tokenizer")]:
        if step.get("type") == "Prepend":
            return True
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme")
            return scheme != "never" if scheme else bool(step.get("add_prefix_space", True))
    return False


def _finish(
    files: TokenizerFiles, tokens: Tokens, rules: SpmRules, puts_space: bool
) -> tuple[list[Pair], SpecialTokens]:
    """puts_space: what the tokenizer itself does; runtimes do it where no key says otherwise."""
    found = tokens.pairs("llama", "default")
    add_prefix = rules.add_prefix
    if add_prefix is None and isinstance(said := files.settings.get("add_prefix_space"), bool):
        add_prefix = said
    if add_prefix is None and (rules.says_prefix or not puts_space):
        add_prefix = puts_space
    if add_prefix is not None:
        found.append(pair("tokenizer.ggml.add_space_prefix", "bool", add_prefix))
    _warn_of_twins(files, tokens)
    return found, SpecialTokens(files, len(tokens.texts))


def _warn_of_twins(files: TokenizerFiles, tokens: Tokens) -> None:
    """Texts that two ids have: the later one would never be made of a text."""
    used = [t for t, kind in zip(tokens.texts, tokens.types, strict=True) if kind != UNUSED]
    if (num := len(used) - len(set(used))) > 0:
        logger.warning("%s: %d tokens have the text of another one", files.folder, num)
