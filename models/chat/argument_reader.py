"""Arguments of calls that models don't write as JSON, read into JSON character by character."""

import ast
import json
import re
import sys
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from .tool_schema import kinds_of

if TYPE_CHECKING:
    from .tool_format import ArgumentTags

_SPACE = " \t\r\n"
_MAX_KEY = 256
_MAX_DEPTH = 64
_MAX_CALL = 1 << 16  # characters of a call of a Python function
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_KEYWORD = re.compile(r"\s*([a-zA-Z_][\w.\-]*)\s*=(?!=)")
_PYTHON = {"True": "true", "False": "false", "None": "null"}

# Takes one character at each `yield`; what it returns is the result of reading.
Reading = Generator[None, str, Any]
Emit = Callable[[str], None]


class NotACall(Exception):
    """What is being read is no (further) call; the reader's `raw` is text."""


def solid() -> Generator[None, str, str]:
    """The next character that is no white space."""
    while (char := (yield)) in _SPACE:
        pass
    return char


def one_of(texts: tuple[str, ...], char: str) -> Generator[None, str, str]:
    """Which of these texts comes, none of which begins another; `char` is its first character."""
    text = char
    while text not in texts:
        if not any(each.startswith(text) for each in texts):
            raise NotACall
        text += yield
    return text


def read_tags(
    tags: "ArgumentTags", end: str, schema: Mapping[str, Any], emit: Emit, char: str
) -> Reading:
    """Arguments between tags, and the text that ends them."""
    count = 0
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    while (yield from one_of((tags.key_open, end), char)) != end:
        key = (yield from _until(tags.key_close, _MAX_KEY)).strip()
        if value_open := tags.value_open.strip():
            yield from one_of((value_open,), (yield from solid()))
        emit(f"{', ' if count else '{'}{_text(key)}: ")
        kinds = kinds_of(properties.get(key), schema) if schema else kinds_of(None, {})
        if kinds == {"string"}:
            yield from _text_value(tags, emit)
        else:
            text = yield from _until(tags.value_close, None)
            emit(_value(_unlined(text, tags), kinds))
        count += 1
        char = yield from solid()
    emit("}" if count else "{}")


def _until(end: str, limit: int | None) -> Generator[None, str, str]:
    """The text up to this end."""
    chars: list[str] = []
    while True:
        chars.append((yield))
        if chars[-1] == end[-1] and "".join(chars[-len(end) :]) == end:
            return "".join(chars[: -len(end)])
        if limit is not None and len(chars) > limit:
            raise NotACall


def _unlined(text: str, tags: "ArgumentTags") -> str:
    return text.removeprefix("\n").removesuffix("\n") if tags.lines else text


def _text_value(tags: "ArgumentTags", emit: Emit) -> Reading:
    """A text, handed on as it comes but for what may be its end."""
    end, held, begun = tags.value_close, "", False
    keep = len(end) + tags.lines
    emit('"')
    while True:
        char = yield
        if tags.lines and not begun and char == "\n":
            begun = True
            continue
        begun = True
        held += char
        if char == end[-1] and held.endswith(end):
            held = held[: -len(end)]
            emit(_text(held.removesuffix("\n") if tags.lines else held)[1:])
            return
        if len(held) > keep:
            emit(_text(held[:-keep])[1:-1])
            held = held[-keep:]


def _value(text: str, kinds: set[str]) -> str:
    """A value as JSON: what is no JSON of a kind that may be there is a text."""
    body = text.strip()
    body = body if "string" in kinds else _PYTHON.get(body, body)
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _text(text)
    if isinstance(value, str) and "string" in kinds:
        return _text(text)  # quotation marks of its own
    if "string" in kinds and kinds != kinds_of(None, {}) and not _is_kind(value, kinds):
        return _text(text)
    return body


def _is_kind(value: Any, kinds: set[str]) -> bool:
    found = kinds_of({"const": value}, {})
    return bool(found & kinds) or ("number" in kinds and "integer" in found)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read_quoted(quote: str, emit: Emit, char: str, depth: int = 0) -> Reading:
    """{key:value,...} with bare keys and this quotation mark; `char` is the brace."""
    if char != "{" or depth > _MAX_DEPTH:
        raise NotACall
    emit("{")
    char, count = (yield from solid()), 0
    while char != "}":
        key = yield from _key(quote, char)
        emit(f"{', ' if count else ''}{_text(key)}: ")
        char = yield from _quoted_value(quote, emit, (yield from solid()), depth)
        count += 1
        if char == ",":
            char = yield from solid()
        elif char != "}":
            raise NotACall
    emit("}")


def _key(quote: str, char: str) -> Generator[None, str, str]:
    """A key and its colon."""
    for mark in (quote, '"'):
        if char == mark[0]:
            yield from one_of((mark,), char)
            key = yield from _until(mark, _MAX_KEY)
            if (yield from solid()) != ":":
                raise NotACall
            return key
    key = char + (yield from _until(":", _MAX_KEY)) if char != ":" else ""
    if not key or any(c in key for c in "{}[],"):
        raise NotACall
    return key.strip()


def _quoted_value(quote: str, emit: Emit, char: str, depth: int) -> Generator[None, str, str]:
    """A value; the character after it (that is no white space) is returned."""
    if char == quote[0]:
        yield from one_of((quote,), char)
        yield from _quoted_text(quote, emit)
    elif char == '"':
        yield from _json_text(emit)
    elif char == "{":
        yield from read_quoted(quote, emit, char, depth + 1)
    elif char == "[":
        if depth > _MAX_DEPTH:
            raise NotACall
        emit("[")
        char, count = (yield from solid()), 0
        while char != "]":
            emit(", " if count else "")
            char = yield from _quoted_value(quote, emit, char, depth + 1)
            count += 1
            if char == ",":
                char = yield from solid()
            elif char != "]":
                raise NotACall
        emit("]")
    else:
        text = ""
        while char not in ",}]" and len(text) < 4096:
            text += char
            char = yield
        text = text.strip()
        if not _SCALAR.fullmatch(text):
            raise NotACall
        emit(text)
        return char
    return (yield from solid())


def _quoted_text(quote: str, emit: Emit) -> Reading:
    held = ""
    emit('"')
    while True:
        held += yield
        if held.endswith(quote):
            emit(_text(held[: -len(quote)])[1:])
            return
        if len(held) >= len(quote):
            emit(_text(held[0])[1:-1])
            held = held[1:]


def _json_text(emit: Emit) -> Reading:
    text = '"'
    escaped = False
    while True:
        char = yield
        text += char
        if char == '"' and not escaped:
            break
        escaped = char == "\\" and not escaped
    try:
        json.loads(text)
    except ValueError:
        raise NotACall from None
    emit(text)


def read_python(schema: Mapping[str, Any], emit: Emit, char: str) -> Reading:
    """Keyword arguments of a call up to its closing bracket; `char` comes after the opening one."""
    arguments: list[list[str]] = [[]]
    depth = count = 0
    quote, escaped = "", False
    while depth or char != ")" or quote:
        if char == "," and not depth and not quote:
            arguments.append([])
        else:
            arguments[-1].append(char)
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
        count += 1
        if count > _MAX_CALL or not 0 <= depth <= _MAX_DEPTH:
            raise NotACall
        char = yield
    emit(_python_arguments(["".join(each) for each in arguments], schema))


def _python_arguments(arguments: list[str], schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    values: dict[str, Any] = {}
    if not arguments[-1].strip():
        arguments.pop()  # none at all, or a comma at the end
    try:
        for i, argument in enumerate(arguments):
            if match := _KEYWORD.match(argument):  # Python's own words too
                values[match[1]] = _evaluated(argument[match.end() :])
            else:
                values[names[i]] = _evaluated(argument)
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, IndexError, RecursionError, MemoryError):
        raise NotACall from None


def _evaluated(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _literal(ast.parse(text.strip(), mode="eval").body)


def _literal(node: ast.expr) -> Any:
    """A literal's value; JSON's names for constants too."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        # A number beyond all others has no JSON of its own.
        return sys.float_info.max if node.value == float("inf") else node.value
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(each) for each in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_literal(key)): _literal(value) for key, value in pairs if key is not None}
    raise ValueError(ast.dump(node)[:60])
