"""CallReader: reads a run of tool calls character by character, whatever their format."""

import json
from collections.abc import Collection, Generator
from typing import TYPE_CHECKING, Any

from .json_scan import JsonScanner
from .parts import PartList

if TYPE_CHECKING:
    from .tool_formats import ToolFormat

_SPACE = " \t\r\n"
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("id", "type")

# Takes one character at each `yield`; what it returns is the result of reading.
Reading = Generator[None, str, Any]


class NotACall(Exception):
    """What is being read is no (further) call; the reader's `raw` is text."""


class CallReader:
    """Reads calls into parts.

    A call counts from the moment that its name is known and its arguments begin; from there they
    are handed on as they come. Where they come first, or with `whole`, it counts from its end.

    raw: the text read so far that is in no part yet: content if the call fails. names: the tools
    there are; None: any. bare: it begins with the call itself, not with the opening text;
    fenced: in a block of code, which is read to its end.
    """

    def __init__(
        self,
        form: "ToolFormat",
        names: Collection[str] | None,
        parts: PartList,
        *,
        raw: str,
        index: int,
        bare: bool,
        fenced: bool,
        whole: bool,
    ) -> None:
        self._raw = [raw]
        self.index = index  # of the next call
        self._form = form
        self._names = names
        self._parts = parts
        self._bare = bare
        self._fenced = fenced
        self._whole = whole
        self._between = False  # a call has ended, and the format's own text is to come
        self._reading = self._run()
        next(self._reading)

    @property
    def raw(self) -> str:
        """The text that is in no part yet."""
        return "".join(self._raw)

    @property
    def tagged(self) -> bool:
        """Whether it began with the format's opening."""
        return not self._bare

    def push(self, char: str) -> bool:
        """Read one character; False: it was the last of these calls. NotACall: it doesn't fit."""
        self._raw.append(char)
        try:
            self._reading.send(char)
        except StopIteration:
            return False
        return True

    def rest(self) -> str:
        """What is left as text when the answer ends here."""
        return "" if self._between else self.raw  # a cut off closing text is no content

    def _run(self) -> Reading:
        if self._bare:
            yield from self._alone()
            return
        if self._form.shape == "named":
            yield from self._named()
            return
        char = yield from self._solid()
        if self._form.shape == "object" or char == "{":
            yield from self._object(char)
        else:
            _expect(char, "[")
            while char != "]":
                char = yield from self._solid()
                self._between = False
                yield from self._object(char)
                self._between = True
                char = yield from self._solid()
                if char not in ",]":
                    raise NotACall
        self._between = True
        self._raw.clear()
        if self._form.closing:
            yield from self._text(self._form.closing, (yield from self._solid()))

    def _alone(self) -> Reading:
        """A call without tags, or some in a block of code."""
        char = yield from self._solid()
        yield from self._object(char)
        while self._fenced:
            self._between = True
            char = yield from self._solid()
            if char != "{":
                yield from self._text("```", char)
                return
            self._between = False
            yield from self._object(char)

    def _named(self) -> Reading:
        """name[ARGS]{...}, perhaps with an id of its own before [ARGS]."""
        char = yield from self._solid()
        name = ""
        while char in _NAME_CHARS and len(name) < 64:
            name += char
            char = yield
        self._known(name)
        separator, id_mark = self._form.separator, self._form.id_mark
        text = char
        while not text.endswith(separator):
            own = id_mark and (text.startswith(id_mark) or id_mark.startswith(text))
            if len(text) > 64 or not (own or separator.startswith(text)):
                raise NotACall
            text += yield
        yield from self._arguments(name, (yield from self._solid()))
        self._raw.clear()

    def _object(self, char: str) -> Reading:
        """{"name": ..., "arguments": {...}}, in any order; `char` is its first character."""
        _expect(char, "{")
        name: str | None = None
        late: str | None = None  # arguments that wait for the name
        index = self.index
        while char != "}":
            key = json.loads((yield from self._value((yield from self._solid()), '"')))
            _expect((yield from self._solid()), ":")
            char = yield from self._solid()
            if key == "name" and name is None:
                name = self._known(json.loads((yield from self._value(char, '"'))))
            elif key in _ARGUMENTS and self.index == index and late is None:
                if char == "{" and name is not None and not self._whole:
                    yield from self._arguments(name, char)
                else:
                    late = _as_object((yield from self._value(char, '{"n')))
            elif self._bare and key not in _IGNORED:
                raise NotACall  # some other JSON
            else:
                yield from self._value(char, '{["tfn')
            char = yield from self._solid()
            if char not in ",}":
                raise NotACall
        if self.index == index:
            if name is None or (late is None and self._bare):
                raise NotACall
            self._start(name)
            self._parts.arguments(index, "{}" if late is None else late)
            self.index += 1
        self._raw.clear()

    def _arguments(self, name: str, char: str) -> Reading:
        """Arguments that are handed on as they come, unless calls are wanted whole."""
        _expect(char, "{")
        if self._whole:
            text = yield from self._value(char, "{")
            self._start(name)
            self._parts.arguments(self.index, text)
        else:
            self._start(name)
            scanner = JsonScanner()
            scanner.push(char)
            self._parts.arguments(self.index, char)
            while not scanner.done:
                char = yield
                if not scanner.push(char):
                    self.index += 1
                    raise NotACall
                self._parts.arguments(self.index, char)
                self._raw.clear()
        self.index += 1

    def _value(self, char: str, first: str) -> Generator[None, str, str]:
        """The text of a JSON value that begins with `char`, one of `first`."""
        if char not in first:
            raise NotACall
        scanner, text = JsonScanner(), [char]
        scanner.push(char)
        while not scanner.done:
            char = yield
            if not scanner.push(char):
                raise NotACall
            text.append(char)
        return "".join(text)

    def _text(self, text: str, char: str) -> Reading:
        """The format's own text, after the last call; `char` is its first character."""
        for expected in text[:-1]:
            _expect(char, expected)
            char = yield
        _expect(char, text[-1])
        self._raw.clear()

    def _solid(self) -> Generator[None, str, str]:
        """The next character that is no white space."""
        while (char := (yield)) in _SPACE:
            pass
        return char

    def _start(self, name: str) -> None:
        self._parts.start(self.index, name)
        self._raw.clear()

    def _known(self, name: str) -> str:
        if not name or (self._names is not None and name not in self._names):
            raise NotACall
        return name


def _expect(char: str, expected: str) -> None:
    if char != expected:
        raise NotACall


def _as_object(text: str) -> str:
    """Arguments as an object's JSON text: some models write them as a string, or null for none."""
    value = json.loads(text)
    if value is None:
        return "{}"
    if isinstance(value, str):
        try:
            inner = json.loads(value or "{}")
        except (ValueError, RecursionError):
            raise NotACall from None
        if not isinstance(inner, dict):
            raise NotACall
        return value or "{}"
    return text
