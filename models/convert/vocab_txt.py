"""BERT's vocab.txt, a token a line, as the tokenizer.json that transformers would make of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError

_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def tokenizer_of_lines(path: Path, texts: Mapping[str, str], settings: Mapping[str, Any]) -> Any:
    """What tokenizer.json would hold.

    texts: special tokens by their roles, where the settings name them. InvalidModelFileError: the
    file is not text, a token is there twice, or a special one is missing.
    """
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidModelFileError(f"{path}: not UTF-8 ({error.reason})") from None
    ids: dict[str, int] = {}
    for i, line in enumerate(lines):
        if ids.setdefault(line.rstrip("\r"), i) != i:
            raise InvalidModelFileError(f"{path}: line {i + 1} has the token {line!r} once more")
    special = {role: texts.get(role, usual) for role, usual in _ROLES.items()}
    if missing := [text for text in special.values() if text not in ids]:
        raise InvalidModelFileError(f"{path}: the special token {missing[0]!r} is missing")
    cls, sep = special["cls"], special["sep"]
    first, last = ({"SpecialToken": {"id": text, "type_id": 0}} for text in (cls, sep))
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": ids[text], "content": text, "special": True, "normalized": False,
                "single_word": False, "lstrip": False, "rstrip": False,
            }
            for text in dict.fromkeys(special.values())
        ],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True,
            "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": bool(settings.get("do_lower_case", True)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": [first, a, last],
            "pair": [first, a, last, b, last],
            "special_tokens": {
                text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (cls, sep)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": special["unk"], "vocab": ids,
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        },
    }  # fmt: skip
