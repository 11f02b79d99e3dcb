"""Cutting a text into the words inside which BPE merges, by `tokenizer.ggml.pre`.

Each name has a list of patterns, applied one after another: every match, and every stretch between
two matches, becomes a piece that the next pattern cuts further. The patterns are llama.cpp's
(src/llama-vocab.cpp, commit 0c1e570), with what its hand-written matchers add spelled out.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from .char_ranges import ASIAN, CASED_LETTERS, CJK, CJK_AND_KANA, DEEPSEEK_PUNCTUATION
from .unicode_classes import (
    HAN_LETTER,
    HAN_OTHER,
    classes_text,
    compile_classes,
    han_classes_text,
    spaces_text,
)

_CONTRACTION = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s+(?!\S)|\s+"
_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_WORDS_AND_MARKS = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_WORDS_AND_MARKS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
_SPARK = rf"{_WORDS_AND_MARKS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}"
_JAIS2 = rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|" + (
    "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"\s{1,2}(?!\S)|\s{1}"
)


def _cased(letters: str, contraction: str, digits: str, tail: str) -> str:
    """Words cut before a capital letter. `letters`: the non-ASCII part, which has no case here."""
    upper, lower = f"[A-Z{letters}]", f"[a-z{letters}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{start}{upper}*{lower}+{contraction}|{start}{upper}+{lower}*{contraction}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+{tail}|\s*[\r\n]+|{_SPACES}"
    )


# \xd2 and \xd4 are the stand-ins of non-ASCII letters and of marks, see unicode_classes.py.
_TEKKEN = _cased("\xd2", "", r"\p{N}", r"[\r\n/]*")
_GPT4O = _cased("\xd2", f"(?:{_CONTRACTION})?", r"\p{N}{1,3}", r"[\r\n/]*")
_GRANITE = _cased("\xd2\xd4", f"(?:{_CONTRACTION})?", r"\p{N}{1,3}", r"[\r\n/]*")
_ANY_CASE = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_CONTRACTION})?"
_YOUTU = rf"{_ANY_CASE}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
_TINY_AYA = rf"{_ANY_CASE}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
_KIMI = (
    rf"[{HAN_LETTER}{HAN_OTHER}]+|{_WORD}(?:{_CONTRACTION})?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}{HAN_LETTER}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
_LINES = r"[^\n]+|\n+"
_POEM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_FALCON_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"

# Not patterns: runs of digits cut into threes from the right (a look-ahead would be quadratic).
_THREES = "<runs of numbers in threes>"
_ASCII_THREES = "<runs of ascii digits in threes>"


@dataclass(frozen=True)
class Rules:
    """What a pre-tokenizer's name stands for."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token
    add_bos: bool = False  # where the file does not say
    raw_text: bool = False  # merges are on characters, not on bytes
    escape_spaces: bool = False  # with ▁ for space
    word_starts: bool = False  # ▁ starts a word, and each line starts with ▁
    whole_newlines: bool = False  # a run of newlines that is a token is that token
    han: bool = False  # the patterns tell Chinese characters from other letters
    add_sep: bool = False  # between the two texts of a pair, where the file does not say
    force_bos: bool = False  # whatever the file says


_DIGIT_GPT2 = Rules((r"\p{N}", _GPT2))
_RULES: dict[str, Rules] = {
    "default": Rules((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "llama-bpe": Rules((_LLAMA3,), ignore_merges=True, add_bos=True),
    "minicpm5": Rules(
        (r"\p{N}{1,3}", rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}+|{_TAIL}"), ignore_merges=True
    ),
    "dbrx": Rules((_LLAMA3,)),
    "glm4": Rules((_LLAMA3,), ignore_merges=True),
    "jais-2": Rules((_JAIS2,)),
    "deepseek-llm": Rules(
        (
            "[\r\n]",
            rf"\s?[{CASED_LETTERS}]+",
            rf"\s?[{DEEPSEEK_PUNCTUATION}]+",
            r"\s+\Z",
            f"[{CJK}]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Rules(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{CJK}]+", r"\p{N}")),
    "deepseek-v3": Rules((r"\p{N}{1,3}", f"[{CJK_AND_KANA}]+", _DEEPSEEK3)),
    "spark2_5": Rules((r"\p{N}{1,3}", f"[{CJK_AND_KANA}]+", _SPARK, r"\p{N}")),
    "youtu": Rules(
        (
            "[\uac00-\ud7a3\u3131-\u318e]+"
            "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
            "\u3001-\u303f\ufe30-\ufe4f]+"
            f"|[\u3105-\u312f]+|[{CJK_AND_KANA}]+",
            _YOUTU,
        ),
        ignore_merges=True,
    ),
    "falcon": Rules((_FALCON_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]")),
    "smollm": _DIGIT_GPT2,
    "gpt-2": Rules((_GPT2,)),
    "qwen2": Rules((_QWEN2,)),
    "qwen35": Rules((_QWEN35,)),
    "bloom": Rules((_POEM,)),
    "viking": Rules((_POEM, r"\p{N}")),
    "tekken": Rules((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": Rules((_GPT4O,)),
    "granite-embed-multi-97m": Rules((_GRANITE,), ignore_merges=True),
    "tiny_aya": Rules((_THREES, _TINY_AYA)),
    "superbpe": Rules((r"\p{N}+", _ASCII_THREES)),
    "bailingmoe": Rules(
        (
            rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|{_SPACES}",
        )
    ),
    "seed-coder": Rules(
        (rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{_SPACES}",)
    ),
    "ufakzeka": Rules((rf"{_WORD}|\p{{N}}|{_TAIL}",)),
    "afmoe": Rules((_THREES, f"[{ASIAN}]+", _DEEPSEEK3)),
    "laguna": Rules((_LINES, _QWEN2)),
    "exaone-moe": Rules(
        (
            rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
            rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
        )
    ),
    "gemma4": Rules(
        (_LINES,),
        raw_text=True,
        escape_spaces=True,
        whole_newlines=True,
        add_bos=True,
        force_bos=True,  # gemma4's own file says false, and the model needs it all the same
    ),
    "sarvam-moe": Rules((_LINES,), raw_text=True, escape_spaces=True),
    "mmbert": Rules(
        (_LINES,), raw_text=True, escape_spaces=True, whole_newlines=True, word_starts=True
    ),
    "whitespace": Rules((r"\S+",), raw_text=True),
    "kimi-k2": Rules((_KIMI,), han=True),
    "roberta-bpe": Rules((_GPT2,), add_sep=True),
    "chameleon": Rules(
        (
            "<sentinel:[0-9]+>",
            "(?:IMGIMG)(?:A|B|C|D|E|F|G|H|I){1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
}

_ALIASES = {
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "dbrx": "smaug-bpe chatglm-bpe",
    "glm4": "glm5",
    "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "gpt-2": "phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt "
    "olmo jais trillion granite-docling exaone4",
    "roberta-bpe": "jina-v1-en jina-v2-code",
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
    "bloom": "poro-chat gpt3-finnish",
    "gpt-4o": "llama4 kanana2 talkie minimax-m2",
    "tiny_aya": "cohere2moe",
    "bailingmoe": "bailingmoe2 llada-moe",
    "gemma4": "granite-embed-multi-311m",
}
for _name, _others in _ALIASES.items():
    _RULES.update(dict.fromkeys(_others.split(), _RULES[_name]))

PRE_TOKENIZERS = frozenset(_RULES)  # every name that is known


class PreTokenizer:
    """The rules of one `tokenizer.ggml.pre`. An unknown name warns and takes the default rules."""

    def __init__(self, name: str) -> None:
        if name not in _RULES:
            what = f"the pre-tokenizer {name!r} is unknown" if name else "no pre-tokenizer is named"
            warnings.warn(
                f"{what} (tokenizer.ggml.pre), so the default rules are used: tokens will differ "
                "from those the model was trained with, and its answers will be worse",
                stacklevel=4,
            )
        self.rules = rules = _RULES.get(name, _RULES["default"])
        self.ignore_merges = rules.ignore_merges
        self.raw_text = rules.raw_text
        self._patterns = [
            None if pattern in (_THREES, _ASCII_THREES) else compile_classes(pattern)
            for pattern in rules.patterns
        ]

    def split(self, text: str) -> list[str]:
        """The words of a text, in order; joined they are the text."""
        classes = han_classes_text(text) if self.rules.han else classes_text(text)
        spaces = spaces_text(text)
        cuts = [0, len(text)]
        for source, compiled in zip(self.rules.patterns, self._patterns, strict=True):
            if compiled is None:
                cuts = _cut_threes(classes, cuts, ascii_only=source == _ASCII_THREES)
            else:
                cuts = _cut(compiled[0], classes if compiled[1] else spaces, cuts)
        return [text[i:j] for i, j in zip(cuts, cuts[1:], strict=False) if i < j]


def _cut(pattern: re.Pattern[str], text: str, cuts: list[int]) -> list[int]:
    """`cuts` with the start and end of every match inside each piece added."""
    out = [0]
    for begin, end in zip(cuts, cuts[1:], strict=False):
        at = begin
        for match in pattern.finditer(text, begin, end):
            start, stop = match.span()
            if start > at:
                out.append(start)
            if stop > start:
                out.append(stop)
            at = stop
        if at < end:
            out.append(end)
    return out


_NUMBERS = compile_classes(r"\p{N}+")[0]
_ASCII_DIGITS = re.compile("[0-9]+")


def _cut_threes(text: str, cuts: list[int], *, ascii_only: bool) -> list[int]:
    """`cuts` with runs of digits cut into threes from the right.

    Odd but llama.cpp's: numbers stay attached to the text before them, ASCII digits to that after.
    """
    return sorted({*cuts, *_threes(text, cuts, ascii_only)})


def _threes(text: str, cuts: list[int], ascii_only: bool) -> Iterator[int]:
    pattern = _ASCII_DIGITS if ascii_only else _NUMBERS
    for begin, end in zip(cuts, cuts[1:], strict=False):
        for match in pattern.finditer(text, begin, end):
            start, stop = match.span()
            first = start + (stop - start) % 3
            if ascii_only:
                yield from range(first, stop, 3)
            else:
                yield from range(first if first > start else start + 3, stop + 1, 3)
