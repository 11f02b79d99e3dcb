"""Character classes as llama.cpp sees them: one character a class, so that `re` can match them.

Python's `re` knows no \\p{L}. llama.cpp's std::regex does not either: both replace every non-ASCII
character by one that stands for its category, and the classes of a pattern by those.
"""

import re
import unicodedata

# Stand-ins, as llama.cpp's. Other characters (unassigned, format, control) become OTHER.
_NUMBER, _LETTER, _PUNCTUATION, _MARK, _SYMBOL, _OTHER = "\xd1\xd2\xd3\xd4\xd5\xd0"
HAN_LETTER, HAN_OTHER = "\xd6\xd7"  # only where the rules ask for them
_HAN = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)
_STAND_IN = {"N": _NUMBER, "L": _LETTER, "P": _PUNCTUATION, "M": _MARK, "S": _SYMBOL}
_CLASS = {stand_in: name for name, stand_in in _STAND_IN.items()}
_SPACE = "\x0b"
_SPACES = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))

_CLASSES = {
    "N": _NUMBER + "0-9",
    "L": _LETTER + "A-Za-z",
    "Lu": _LETTER + "A-Za-z",  # llama.cpp does not tell the cases of letters apart
    "Ll": _LETTER + "A-Za-z",
    "Lt": _LETTER + "A-Za-z",
    "Lm": _LETTER + "A-Za-z",
    "Lo": _LETTER + "A-Za-z",
    "P": _PUNCTUATION + r"!-#%-*,-/:-;?-@\[-\]_\{\}",
    "M": _MARK,
    "S": _SYMBOL + r"$+<->^`|~",
}

# What Unicode 14 to 15.1 assigned, for Pythons that are older: last of a range, its category.
_NEWER = """
cf3-cf3M ece-eceM 2ffc-2fffS 31ef-31efS 10efd-10effM 1123f-11240L 11241-11241M 11b00-11b09P
11f00-11f01M 11f02-11f02L 11f03-11f03M 11f04-11f10L 11f12-11f33L 11f34-11f3aM 11f3e-11f42M
11f43-11f4fP 11f50-11f59N 1342f-1342fL 13440-13440M 13441-13446L 13447-13455M 1b132-1b132L
1b155-1b155L 1d2c0-1d2d3N 1df25-1df2aL 1e030-1e06dL 1e08f-1e08fM 1e4d0-1e4ebL 1e4ec-1e4efM
1e4f0-1e4f9N 1f6dc-1f6dcS 1f774-1f776S 1f77b-1f77fS 1f7d9-1f7d9S 1fa75-1fa77S 1fa87-1fa88S
1faad-1faafS 1fabb-1fabdS 1fabf-1fabfS 1face-1facfS 1fada-1fadbS 1fae8-1fae8S 1faf7-1faf8S
2b739-2b739L 2ebf0-2ee5dL 31350-323afL
"""


class _StandIns(dict[int, str]):
    """For str.translate: code point -> stand-in, filled as characters are met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        stand_in = char if code < 128 else _STAND_IN.get(unicodedata.category(char)[0], _OTHER)
        self[code] = stand_in
        return stand_in


class _HanStandIns(_StandIns):
    """The same, with Chinese characters apart from other letters."""

    def __missing__(self, code: int) -> str:
        stand_in = _stand_ins[code]
        if any(first <= code <= last for first, last in _HAN):
            stand_in = HAN_LETTER if stand_in == _LETTER else HAN_OTHER
        self[code] = stand_in
        return stand_in


_stand_ins = _StandIns({ord(char): _SPACE for char in _SPACES})
for _item in _NEWER.split():
    _first, _last = (int(part, 16) for part in _item[:-1].split("-"))
    _stand_ins.update({c: _STAND_IN[_item[-1]] for c in range(_first, _last + 1)})
_han_stand_ins = _HanStandIns()
_find_spaces = re.compile(f"[{_SPACES}]")


def is_space(char: str) -> bool:
    """Whether a character is whitespace."""
    return char in " \t\n\v\f\r" or char in _SPACES


def general_class(char: str) -> str:
    """The first letter of a character's category: N, L, P, M, S, Z, C; "" if unassigned."""
    if "\U00013439" <= char <= "\U0001343f":  # format characters since Unicode 15
        return "C"
    category = unicodedata.category(char)
    if category != "Cn":
        return category[0]
    return _CLASS.get(_stand_ins[ord(char)], "")


def lower(char: str) -> str:
    """The one-to-one lower case of a character."""
    if char == "\u0130":  # in full an i with a combining dot
        return "i"
    lowered = char.lower()
    return lowered if len(lowered) == 1 else char


def classes_text(text: str) -> str:
    """The text with each non-ASCII character replaced by its category's stand-in."""
    return text if text.isascii() else text.translate(_stand_ins)


def han_classes_text(text: str) -> str:
    """As `classes_text`, with HAN_LETTER and HAN_OTHER for Chinese characters."""
    return text if text.isascii() else text.translate(_han_stand_ins)


def spaces_text(text: str) -> str:
    """The text with non-ASCII whitespace replaced by a vertical tab."""
    return text if text.isascii() else _find_spaces.sub(_SPACE, text)


def compile_classes(pattern: str) -> tuple[re.Pattern[str], bool]:
    """A pattern with \\p{X}; (compiled, whether it is to be matched against `classes_text`)."""
    out, inside, i = "", False, 0
    while i < len(pattern):
        if pattern[i] == "\\":
            if match := re.match(r"\\p\{(\w+)\}", pattern[i:]):
                members = _CLASSES[match[1]]
                out += members if inside else f"[{members}]"
                i += match.end()
                continue
            out += pattern[i : i + 2]
            i += 2
            continue
        inside = pattern[i] == "[" or (inside and pattern[i] != "]")
        out += pattern[i]
        i += 1
    # ASCII: \s and \d mean what they mean in C.
    return re.compile(out, re.ASCII), out != pattern
