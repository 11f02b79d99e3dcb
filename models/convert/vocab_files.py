"""The tokenizer's files of a Hugging Face folder, read and checked once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, ModelNotFoundError, UnsupportedModelError
from .vocab_txt import tokenizer_of_lines

_MAX_DIGITS = 10  # of an id


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in a text before anything else."""

    id: int
    text: str
    special: bool
    normalized: bool = True


@dataclass(frozen=True)
class TokenizerFiles:
    """What lies in a folder about its tokenizer.

    tokenizer: tokenizer.json, or BERT's vocab.txt as such a one; None without. settings:
    tokenizer_config.json, or {}. config: config.json. added: the added tokens by id, those of
    tokenizer.json before those that only tokenizer_config.json has.
    """

    folder: Path
    config: Mapping[str, Any]
    tokenizer: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    added: Mapping[int, AddedToken] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, config: Mapping[str, Any]) -> "TokenizerFiles":
        """Read what is there. InvalidModelFileError: a file is not what it should be."""
        tokenizer = read_object(folder / "tokenizer.json")
        settings = read_object(folder / "tokenizer_config.json") or {}
        lines = folder / "vocab.txt"
        if tokenizer is None and lines.is_file() and not (folder / "tokenizer.model").is_file():
            roles = ("pad", "unk", "cls", "sep", "mask")
            named = {role: token_text(settings.get(f"{role}_token")) for role in roles}
            texts = {role: text for role, text in named.items() if text is not None}
            tokenizer = tokenizer_of_lines(lines, texts, settings)
        if tokenizer is not None and not isinstance(tokenizer.get("model"), dict):
            raise InvalidModelFileError(f"{folder / 'tokenizer.json'}: it has no model")
        added = _added_tokens(folder / "tokenizer.json", (tokenizer or {}).get("added_tokens"))
        for token in _declared(folder / "tokenizer_config.json", settings):
            added.setdefault(token.id, token)
        return cls(folder, config, tokenizer, settings, added)

    @property
    def path(self) -> Path:
        """tokenizer.json, for messages."""
        return self.folder / "tokenizer.json"

    @property
    def model(self) -> Mapping[str, Any]:
        """The model part of tokenizer.json. ModelNotFoundError: there is no such file."""
        if self.tokenizer is None:
            raise ModelNotFoundError(
                f"{self.folder}: neither tokenizer.json nor tokenizer.model is there; save the "
                "tokenizer once more with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        return self.tokenizer["model"]

    @property
    def kind(self) -> str:
        """BPE, WordPiece, Unigram, ... : old files don't say it, and their keys do."""
        model = self.model
        kind = model.get("type")
        if kind is None:
            kind = "BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece"
        return str(kind)

    def named(self, role: str) -> str | None:
        """The text of a special token by its role ("bos"), as tokenizer_config.json has it."""
        return token_text(self.settings.get(f"{role}_token"))

    @property
    def num_token_types(self) -> int:
        """Kinds of segments that an encoder tells apart. InvalidModelFileError: no such number."""
        count = self.config.get("type_vocab_size", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 1 << 16:
            raise InvalidModelFileError(
                f"{self.folder / 'config.json'}: type_vocab_size is {count!r}, expected a number"
            )
        return count

    def steps(self, part: str) -> list[Mapping[str, Any]]:
        """A part of tokenizer.json (normalizer, pre_tokenizer, decoder) as a flat list of steps."""
        return list(_flattened((self.tokenizer or {}).get(part)))


def token_text(entry: Any) -> str | None:
    """The text of a token that is given as such or as an object with its properties."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is no such file.

    InvalidModelFileError: it is not JSON, no object, or has a key twice, which readers would
    understand differently.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidModelFileError(f"{path}: not UTF-8 ({error.reason})") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidModelFileError(f"{path}: not sound JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidModelFileError(f"{path}: not a JSON object")
    if "\\ud" in text.lower():  # halves of characters are written so, and lone ones are no text
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidModelFileError(f"{path}: a text has half of a surrogate pair") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _flattened(step: Any) -> list[Mapping[str, Any]]:
    if not isinstance(step, dict):
        return []
    for key in ("normalizers", "pretokenizers", "decoders"):
        if isinstance(step.get(key), list):
            return [inner for one in step[key] for inner in _flattened(one)]
    return [step]


def _added_tokens(path: Path, entries: Any) -> dict[int, AddedToken]:
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise InvalidModelFileError(f"{path}: added_tokens is not a list")
    found: dict[int, AddedToken] = {}
    texts: set[str] = set()
    for entry in entries:
        token = _token(path, entry, entry.get("id") if isinstance(entry, dict) else None)
        if token.id in found or token.text in texts:
            raise InvalidModelFileError(
                f"{path}: the added token {token.text!r} with id {token.id} is there twice"
            )
        found[token.id] = token
        texts.add(token.text)
    return found


def _declared(path: Path, settings: Mapping[str, Any]) -> list[AddedToken]:
    entries = settings.get("added_tokens_decoder") or {}
    if not isinstance(entries, dict):
        raise InvalidModelFileError(f"{path}: added_tokens_decoder is not an object")
    return [
        _token(path, entry, int(key) if key.isdecimal() and len(key) <= _MAX_DIGITS else key)
        for key, entry in entries.items()
    ]


def _token(path: Path, entry: Any, token_id: Any) -> AddedToken:
    text = token_text(entry)
    if text is None or not isinstance(token_id, int) or not 0 <= token_id < 1 << 31:
        raise InvalidModelFileError(
            f"{path}: an added token has the id {token_id!r:.40} and the text {text!r}; an id "
            "from 0 and a text are needed"
        )
    if not isinstance(entry, dict):
        return AddedToken(token_id, text, special=True)
    return AddedToken(
        token_id, text, bool(entry.get("special")), bool(entry.get("normalized", True))
    )


def tokenizers_package() -> Any:
    """The package tokenizers. UnsupportedModelError where it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise UnsupportedModelError(
            "the package tokenizers is needed for this vocabulary: pip install 'llamba[convert]'"
        ) from None
    return tokenizers
