"""Special tokens, what is put around a text, chat templates: as llama.cpp's converter finds them.

The rules are those of gguf-py's SpecialVocab (commit 0c1e570): tokenizer.json says what is added,
tokenizer_config.json names the tokens, config.json's ids fill what is left.
"""

import logging
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError
from ..gguf_pairs import Pair, array_pair, pair
from .vocab_files import TokenizerFiles, read_object, token_text

logger = logging.getLogger(__name__)

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# What GGUF calls a role; others are written as they are, and cls not at all: bos stands for it.
_KEYS = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
_WRITTEN = frozenset("bos eos unk sep pad mask eot eom".split())
_NAME = frozenset(string.ascii_letters + string.digits)


class SpecialTokens:
    """ids: token id by role. adds: whether bos, eos, sep are put around a text, where it is known.

    template: the chat template, or several by name; None where there is none.
    """

    def __init__(self, files: TokenizerFiles, size: int, roles: Sequence[str] = ROLES) -> None:
        """size: of the vocabulary; ids out of it are left out with a warning."""
        self.ids: dict[str, int] = {}
        self.adds: dict[str, bool] = {}
        self.template: str | list[Any] | None = None
        self._files, self._size, self._roles = files, size, list(roles)
        self._texts = {key: value for key, value in files.settings.items() if value}
        if files.tokenizer is not None:
            self._read_post_processor(files.tokenizer.get("post_processor"))
        self.template = _template(files)
        if files.settings:
            self._read_settings()
        self._read_config()

    def set(self, role: str, token_id: Any, *, where: str = "config.json") -> None:
        """The first id that a role gets is kept; what isn't a whole number is no id."""
        if not isinstance(token_id, int) or isinstance(token_id, bool) or role in self.ids:
            return
        if 0 <= token_id < self._size:
            self.ids[role] = token_id
        else:
            logger.warning(
                "%s: %s_token_id %d is left out: the vocabulary has %d tokens",
                self._files.folder / where, role, token_id, self._size,
            )  # fmt: skip

    def pairs(self) -> list[Pair]:
        """The keys, those of the normalizer and of chat templates among them."""
        found = [
            pair(f"tokenizer.ggml.{_KEYS.get(role, role)}_token_id", "u32", token_id)
            for role, token_id in self.ids.items()
            if role in _WRITTEN
        ]
        found += [
            pair(f"tokenizer.ggml.add_{role}_token", "bool", value)
            for role, value in self.adds.items()
            if role in ("bos", "eos", "sep")
        ]
        found += template_pairs(self.template)
        flags = _normalizer_flags(self._files)
        return found + [
            pair(f"tokenizer.ggml.normalizer.{name}", "bool", on) for name, on in flags.items()
        ]

    def _text(self, role: str) -> str | None:
        return token_text(self._texts.get(f"{role}_token"))

    def _name(self, role: str, text: str | None) -> None:
        if text is not None:
            self._texts[f"{role}_token"] = text

    def _read_post_processor(self, post: Any) -> None:
        if not self._text("bos"):
            self._name("bos", self._text("cls"))
        if not self._text("eos"):
            self._name("eos", self._text("sep"))
        if not isinstance(post, dict):
            return
        for step in post.get("processors") or [post]:
            kind = step.get("type")
            if kind == "ByteLevel":
                self.adds.setdefault("bos", False)
                self.adds.setdefault("eos", False)
            elif kind == "RobertaProcessing":
                self.adds.update(bos=True, eos=True, sep=True)
                for role, fallback in (("cls", "bos"), ("sep", "eos")):
                    if not self._text(role):
                        self._name(role, (step.get(role) or [self._text(fallback)])[0])
            elif kind == "TemplateProcessing":
                single, both = (_listed(step.get(key)) for key in ("single", "pair"))
                self._read_single(single)
                self._read_pair(single, both)

    def _read_single(self, single: Sequence[Any]) -> None:
        """What is put before and after one text."""
        if len(single) < 2:
            return
        first, last = _special(single[0]), _special(single[-1])
        if first:
            if first not in (self._text("bos"), self._text("cls")):
                for role in ("bos", "cls"):
                    if not self._text(role):
                        self._name(role, first)
            self.adds["bos"] = first in (self._text("bos"), self._text("cls"))
        if last:
            old = self._text("eos")
            if old is not None and last != old:  # a text ends otherwise than a turn
                turn = next((role for role in ("eot", "eom") if role not in self._roles), None)
                if turn is not None:
                    self._roles.append(turn)
                    self._name(turn, old)
            self._name("eos", last)
            self.adds["eos"] = True

    def _read_pair(self, single: Sequence[Any], both: Sequence[Any]) -> None:
        """Whether a separator stands between two texts."""
        first = _special(single[0]) if len(single) > 1 else None
        last = _special(single[-1]) if len(single) > 1 else None
        if both and first and _special(both[0]) == first:
            both = both[1:]
        if both and last and _special(both[-1]) == last:
            both = both[:-1]
        if len(both) < 3 or _sequence(both[0]) != "A" or _sequence(both[-1]) != "B":
            return
        between = [_special(item) for item in both[1:-1]]
        ends = (self._text("sep"), self._text("eos"))
        add = between[0] is not None and between[0] in ends and not last
        if len(between) == 2 and between[1] is not None and between[1] in ends:
            add = True
        self.adds["sep"] = add
        if add and not self._text("sep"):
            self._name("sep", self._text("eos"))

    def _read_settings(self) -> None:
        ids = {token.text: token.id for token in self._in_tokenizer_json()}
        for role in self._roles:
            flag = self._files.settings.get(f"add_{role}_token")
            if isinstance(flag, bool) and self.adds.setdefault(role, flag) != flag:
                logger.warning(
                    "%s: add_%s_token is %s, but tokenizer.json does the opposite, which is kept",
                    self._files.folder / "tokenizer_config.json", role, flag,
                )  # fmt: skip
            if (text := self._text(role)) is not None:
                self.set(role, ids.get(text), where="tokenizer.json")

    def _in_tokenizer_json(self) -> list[Any]:
        if self._files.tokenizer is None:
            return []
        here = {entry["id"] for entry in self._files.tokenizer.get("added_tokens") or []}
        return [token for token in self._files.added.values() if token.id in here]

    def _read_config(self) -> None:
        config = self._files.config
        text_config = config.get("text_config")
        inner = text_config if isinstance(text_config, Mapping) else {}
        for role in self._roles:
            key = f"{role}_token_id"
            value = config.get(key)
            self.set(role, inner.get(key) if value is None else value)


def template_pairs(template: str | list[Any] | None) -> list[Pair]:
    """The keys of a chat template, or of several that have names."""
    if template is None:
        return []
    key = "tokenizer.chat_template"
    if isinstance(template, str):
        return [pair(key, "str", template)]
    by_name: dict[str, str] = {}
    for entry in template:
        entry = entry if isinstance(entry, dict) else {}
        name, text = entry.get("name"), entry.get("template")
        if isinstance(name, str) and name and isinstance(text, str):
            by_name["".join(c if c in _NAME else "_" for c in name)] = text
    default = by_name.pop("default", None)
    found = [pair(f"{key}.{name}", "str", text) for name, text in by_name.items()]
    if by_name:
        found.append(array_pair("tokenizer.chat_templates", "str", sorted(by_name)))
    return found if default is None else [*found, pair(key, "str", default)]


def _template(files: TokenizerFiles) -> str | list[Any] | None:
    """tokenizer_config.json's chat template, else that of a file of its own."""
    found = files.settings.get("chat_template")
    if found is None:
        found = _template_file(files.folder)
    if found is not None and not isinstance(found, (str, list)):
        raise InvalidModelFileError(
            f"{files.folder / 'tokenizer_config.json'}: chat_template is neither a text nor a list"
        )
    return found


def _template_file(folder: Path) -> str | list[Any] | None:
    main = folder / "chat_template.jinja"
    if not main.is_file():
        found = read_object(folder / "chat_template.json")
        return None if found is None else found.get("chat_template")
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    if not more:
        return _text_of(main)
    named = [("default", main), *((path.stem, path) for path in more)]
    return [{"name": name, "template": _text_of(path)} for name, path in named]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidModelFileError(f"{path}: not UTF-8 ({error.reason})") from None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _special(item: Any) -> str | None:
    return _part(item, "SpecialToken")


def _sequence(item: Any) -> str | None:
    return _part(item, "Sequence")


def _part(item: Any, kind: str) -> str | None:
    inner = item.get(kind) if isinstance(item, dict) else None
    return inner.get("id") if isinstance(inner, dict) else None


def _normalizer_flags(files: TokenizerFiles) -> dict[str, bool]:
    """What BERT's normalizer does to case and accents, where tokenizer.json says it."""
    flags: dict[str, bool] = {}
    for step in files.steps("normalizer"):
        kind = step.get("type")
        if kind == "Lowercase":
            flags["lowercase"] = True
        elif kind == "StripAccents":
            flags["strip_accents"] = True
        elif kind == "BertNormalizer":
            for name in ("lowercase", "strip_accents"):
                if isinstance(step.get(name), bool):
                    flags[name] = step[name]
    return flags
