"""Byte-level BPE and WordPiece: tokenizer.json -> tokenizer.ggml.*.

What llama.cpp's converter takes from transformers' AutoTokenizer is found with the package
tokenizers, on which that is built.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, UnsupportedModelError
from ..gguf_pairs import Pair, array_pair, pair
from .vocab_files import AddedToken, TokenizerFiles, tokenizers_package
from .vocab_pre import find_name, known_name
from .vocab_special import ROLES, SpecialTokens
from .vocab_tokens import CONTROL, NORMAL, USER_DEFINED, Tokens, check_ids, looks_special

_SPACE = "\u2581"
# Special tokens of transformers' classes where the settings don't name them.
_BERT = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
_DEFAULTS = {
    "Bert": _BERT,
    "DistilBert": _BERT,
    "GPT2": ("<|endoftext|>",),
    "Qwen2": ("<|endoftext|>",),
    "Roberta": ("<s>", "</s>", "<unk>", "<pad>", "<mask>"),
}


class PackageTokenizer:
    """tokenizer.json in the package tokenizers, with the tokens that transformers would add.

    added: the added tokens by id.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        package = tokenizers_package()
        self.tokenizer = _loaded(package, files)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._files = files
        self._add(package, [t for t in files.added.values() if t.special], special=True)
        self._add(package, [t for t in files.added.values() if not t.special], special=False)
        for text in _named_special(files):
            if all(text != t.content for t in self.tokenizer.get_added_tokens_decoder().values()):
                self.tokenizer.add_special_tokens([text])
        self.added = {
            token_id: AddedToken(token_id, t.content, t.special, t.normalized)
            for token_id, t in self.tokenizer.get_added_tokens_decoder().items()
        }

    def _add(self, package: Any, tokens: Sequence[AddedToken], *, special: bool) -> None:
        """Add what the package does not have yet; each token must get the id that its file says."""
        here = self.tokenizer.get_added_tokens_decoder()
        for token in tokens:
            if token.id in here and here[token.id].content == token.text:
                continue
            self.tokenizer.add_tokens(
                [package.AddedToken(token.text, special=special, normalized=token.normalized)]
            )
            found = self.tokenizer.token_to_id(token.text)
            if found != token.id:
                raise InvalidModelFileError(
                    f"{self._files.folder}: the added token {token.text!r} has the id {token.id}, "
                    f"but comes to {found}: added tokens must follow the vocabulary without holes"
                )

    def around(self) -> list[list[int]]:
        """What the settings put before a text where tokenizer.json may not."""
        bos = self._files.named("bos")
        bos_id = None if bos is None else self.tokenizer.token_to_id(bos)
        return [] if bos_id is None else [[bos_id]]

    def tokens(self, size: int) -> Tokens:
        """The vocabulary, with unused tokens where no text has an id."""
        id_of_text = self.tokenizer.get_vocab(with_added_tokens=True)
        check_ids(self._files.path, id_of_text, size)
        tokens = Tokens.unused(size, scores=False)
        for text, token_id in id_of_text.items():
            added = self.added.get(token_id)
            if added is None:
                tokens.put(token_id, text, NORMAL)
            else:
                tokens.put(token_id, *self._added(added))
        return tokens

    def _added(self, token: AddedToken) -> tuple[str, int]:
        text = token.text
        if not token.normalized:  # llama.cpp matches the text that comes out again
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            text = self.tokenizer.decode(ids, skip_special_tokens=False)
        if token.special or looks_special(text):
            return text, CONTROL
        return text.replace(_SPACE, " "), USER_DEFINED


def _loaded(package: Any, files: TokenizerFiles) -> Any:
    """The tokenizer, tried once. InvalidModelFileError: the package can't do anything with it."""
    try:
        if files.path.is_file():
            tokenizer = package.Tokenizer.from_file(str(files.path))
        else:  # it was made of a vocab.txt
            tokenizer = package.Tokenizer.from_str(json.dumps(files.tokenizer))
        tokenizer.encode("a")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Exception itself, and a panic of Rust's, which is none
        reason = " ".join(str(error).split())
        raise InvalidModelFileError(f"{files.path}: not a sound tokenizer ({reason})") from None
    return tokenizer


def bpe_pairs(
    files: TokenizerFiles, size: int, *, pre: str | None = None
) -> tuple[list[Pair], SpecialTokens]:
    """The keys of a byte-level BPE vocabulary, and its special tokens, not among them yet.

    size: of the model's embeddings. pre: the pre-tokenizer's name where the user says it.
    InvalidModelFileError: the file contradicts itself or the model. UnsupportedModelError: another
    kind of BPE, or a pre-tokenizer that has no name.
    """
    model = files.model
    check_vocabulary(files, size)
    steps = [*files.steps("pre_tokenizer"), *files.steps("decoder")]
    by_bytes = any(step.get("type") == "ByteLevel" for step in steps)
    package = PackageTokenizer(files)
    ignore_merges = bool(model.get("ignore_merges", False))
    name, known = find_name(
        files.path, package.tokenizer, ignore_merges=ignore_merges, given=pre,
        extra=package.around(),
    )  # fmt: skip
    if not by_bytes and not known and pre is None:
        raise UnsupportedModelError(
            f"{files.path}: a BPE vocabulary that is neither of bytes (ByteLevel) nor one of "
            "SentencePiece (byte_fallback): such are not converted"
        )
    special = SpecialTokens(files, size)
    if not known and "bos" not in special.adds:
        # Names of rules bring a default that holds for the tokenizer they are named after.
        first = package.tokenizer.encode("a").ids[:1]
        special.adds["bos"] = first == [special.ids.get("bos")]
    found = package.tokens(size).pairs("gpt2", name)
    return [*found, array_pair("tokenizer.ggml.merges", "str", merges(files))], special


def whitespace_pairs(files: TokenizerFiles, size: int) -> tuple[list[Pair], SpecialTokens]:
    """The keys of a BPE on characters inside of words; no bytes stand in for what is unknown.

    Its rule in tokenizer.json, Whitespace, cuts at whitespace and around punctuation, that of the
    file at whitespace alone: as long as no merge joins punctuation with letters the ids are equal.
    """
    check_vocabulary(files, size)
    check_steps(files, "Lowercase", "NFC")
    found = PackageTokenizer(files).tokens(size).pairs("whitespace", "whitespace")
    lines = array_pair("tokenizer.ggml.merges", "str", merges(files))
    return [*found, lines], SpecialTokens(files, size)


def check_vocabulary(files: TokenizerFiles, size: int) -> dict[str, int]:
    """The ids by text of tokenizer.json's model. InvalidModelFileError: they can't be."""
    vocabulary = files.model.get("vocab")
    if not isinstance(vocabulary, dict):
        raise InvalidModelFileError(f"{files.path}: the model's vocab is not an object")
    if not vocabulary:
        raise InvalidModelFileError(f"{files.path}: the model's vocab is empty")
    check_ids(files.path, vocabulary, size)
    return vocabulary


def check_affixes(files: TokenizerFiles) -> None:
    """UnsupportedModelError: words are marked by what a BPE of GGUF's kinds has no name for."""
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if value := files.model.get(key):
            raise UnsupportedModelError(
                f"{files.path}: the model's {key} is {value!r:.40}: such a BPE is not converted "
                "(only one without)"
            )


def check_steps(files: TokenizerFiles, *known: str) -> None:
    """UnsupportedModelError: the normalizer changes a text in ways that the file can't say."""
    for step in files.steps("normalizer"):
        if step.get("type") not in known:
            raise UnsupportedModelError(
                f"{files.path}: the normalizer has a step {step.get('type')!r:.40}, which is not "
                f"converted (only {', '.join(known)})"
            )


def merge_parts(files: TokenizerFiles) -> list[tuple[str, str]]:
    """The merges, first ones first. InvalidModelFileError: there is none, or one isn't any."""
    given = files.model.get("merges") or _merges_of_text(files.folder / "merges.txt")
    if not isinstance(given, list):
        raise InvalidModelFileError(f"{files.path}: merges is not a list")
    found: list[tuple[str, str]] = []
    for entry in given:
        match entry:
            case str() if entry.count(" ") == 1 and entry[0] != " " != entry[-1]:
                left, _, right = entry.partition(" ")
            case [str(left), str(right)] if left and right:
                pass
            case _:
                raise InvalidModelFileError(
                    f"{files.path}: a merge is {entry!r}, expected two parts"
                )
        found.append((left, right))
    if not found:
        raise InvalidModelFileError(
            f"{files.path}: merges is empty, without which a BPE makes no tokens; is merges.txt "
            "missing beside it?"
        )
    return found


def merges(files: TokenizerFiles) -> list[str]:
    """The merges as "left right", where a space in a part is written as the bytes' stand-in."""
    return [" ".join(part.replace(" ", "\u0120") for part in parts) for parts in merge_parts(files)]


def _merges_of_text(path: Path) -> list[str]:
    """Lines of a merges.txt, without its first one that names a version."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise InvalidModelFileError(f"{path}: not UTF-8 ({error.reason})") from None
    return [line.strip() for line in lines[lines[0].startswith("#") :] if line.strip()]


def wordpiece_pairs(files: TokenizerFiles, size: int) -> tuple[list[Pair], SpecialTokens]:
    """The keys of BERT's vocabulary: words begin with U+2581, pieces inside with nothing."""
    check_vocabulary(files, size)
    package = PackageTokenizer(files)
    tokens = package.tokens(size)
    prefix = files.model.get("continuing_subword_prefix", "##")
    for i, text in enumerate(tokens.texts):
        if tokens.types[i] == CONTROL:
            continue
        inside = isinstance(prefix, str) and text.startswith(prefix)
        tokens.texts[i] = text[len(prefix) :] if inside else _SPACE + text
    # No runtime reads the name for this kind; an unknown one is no reason to refuse.
    name = known_name(package.tokenizer) or "default"
    return [
        pair("tokenizer.ggml.token_type_count", "u32", files.num_token_types),
        *tokens.pairs("bert", name),
    ], SpecialTokens(files, size)


def _named_special(files: TokenizerFiles) -> list[str]:
    """The special tokens that have a role, by the settings or by the tokenizer's class."""
    found = [text for role in ROLES if (text := files.named(role)) is not None]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = files.settings.get(key)
        for entry in more if isinstance(more, list) else []:
            if isinstance(entry, dict):
                entry = entry.get("content")
            if isinstance(entry, str):
                found.append(entry)
    name = str(files.settings.get("tokenizer_class") or "").partition("Tokenizer")[0]
    vocabulary = files.model.get("vocab")
    if isinstance(vocabulary, dict):
        found += [text for text in _DEFAULTS.get(name, ()) if text in vocabulary]
    return list(dict.fromkeys(found))
