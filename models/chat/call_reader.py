"""CallReader: reads a run of tool calls character by character, whatever their format."""

import json
from collections.abc import Collection, Generator, Mapping
from typing import Any

from .argument_reader import (
    Emit,
    NotACall,
    Reading,
    one_of,
    read_python,
    read_quoted,
    read_tags,
    solid,
)
from .json_scan import JsonScanner
from .parts import PartList
from .tool_format import Arguments, QuotedArguments, ToolFormat

_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("id", "type")


class CallReader:
    """Reads calls into parts.

    A call counts from the moment that its name is known and its arguments begin; from there they
    are handed on as they come. Where they come first, or with `whole`, it counts from its end.

    raw: the text read so far that is in no part yet: content if the call fails. names: the tools
    there are, perhaps with the schemas of their arguments; None: any. opening: the text that it
    began with; None: with the call itself. fenced: in a block of code, which is read to its end.
    """

    def __init__(
        self,
        form: ToolFormat,
        names: Collection[str] | None,
        parts: PartList,
        *,
        raw: str,
        index: int,
        opening: str | None,
        fenced: bool,
        whole: bool,
    ) -> None:
        self._raw = [raw]
        self._begun = raw
        self.index = index  # of the next call
        self._form = form
        self._names = names
        self._parts = parts
        self._opening = opening
        self._bare = opening is None
        self._fenced = fenced
        self._whole = whole
        self._between = False  # a call has ended, and the format's own text is to come
        self._started = False  # a call's arguments are being handed on
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

    @property
    def num_begun(self) -> int:
        """How much of `raw` is the opening, which can't begin anything else again."""
        return len(self._begun) if self.tagged and self.raw.startswith(self._begun) else 0

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
        # Neither a cut off closing text is content, nor what is held back of an argument.
        return "" if self._between or self._started else self.raw

    def _run(self) -> Reading:
        form, opening = self._form, self._opening
        if opening is None:
            yield from self._alone()
            return
        end = form.section[1].strip()
        begin = (form.opening.strip() or form.prefix).strip()
        if end and opening == form.section[0].strip():
            yield from one_of((begin,), (yield from solid()))
        has_prefix = not form.opening
        while True:
            yield from self._marked(has_prefix or opening in form.others)
            if not end:
                return
            self._between = True
            if (yield from one_of((begin, end), (yield from solid()))) == end:
                self._raw.clear()
                return
            self._between = False
            opening = begin

    def _marked(self, has_prefix: bool) -> Reading:
        """A call, or an array of some, after its opening; its prefix may be read already."""
        form = self._form
        if form.shape == "named":
            yield from self._named(has_prefix)
        else:
            char = yield from solid()
            if form.shape == "object" or char == "{":
                yield from self._object(char)
            else:
                yield from self._array(char)
            yield from self._close()

    def _array(self, char: str) -> Reading:
        _expect(char, "[")
        while char != "]":
            char = yield from solid()
            self._between = False
            yield from self._object(char)
            self._between = True
            char = yield from solid()
            if char not in ",]":
                raise NotACall

    def _close(self) -> Reading:
        self._between = True
        self._raw.clear()
        if closing := self._form.closing.strip():
            yield from one_of((closing,), (yield from solid()))
            self._raw.clear()

    def _alone(self) -> Reading:
        """A call without tags, or some in a block of code."""
        char = yield from solid()
        yield from self._object(char)
        while self._fenced:
            self._between = True
            char = yield from solid()
            if char != "{":
                yield from one_of(("```",), char)
                self._raw.clear()
                return
            self._between = False
            yield from self._object(char)

    def _named(self, has_prefix: bool) -> Reading:
        """The name, perhaps something of the model's own, and the arguments."""
        form = self._form
        char = yield from solid()
        if not has_prefix and (prefix := form.prefix.strip()):
            yield from one_of((prefix,), char)
            char = yield from solid()
        name = ""
        while char in _NAME_CHARS and len(name) < 64:
            name += char
            char = yield
        self._known(name)
        char = yield from self._separated(char)
        yield from self._arguments(name, char, form.arguments)
        self._raw.clear()
        if self._between:
            return
        self._between = True
        if form.arguments == "json" and (ending := form.ending.strip()):
            yield from one_of((ending,), (yield from solid()))
        yield from self._close()

    def _separated(self, char: str) -> Generator[None, str, str]:
        """What stands between name and arguments; the first character of these is returned."""
        form = self._form
        separator = form.separator.strip()
        if not separator:
            return (yield from solid()) if char in " \t\r\n" else char
        stop, text = form.stop or separator, ""
        if not form.marks and char in " \t\r\n":
            char = yield from solid()
        text = char
        while text not in (separator, stop):
            own = _begins(text, form.marks)
            if own and text.endswith(stop):
                break
            fits = own or any(t.startswith(text) for t in (separator, stop, *form.marks))
            if len(text) > 64 or not fits:
                raise NotACall
            text += yield
        return (yield from solid())

    def _object(self, char: str) -> Reading:
        """{"name": ..., "arguments": {...}}, in any order; `char` is its first character."""
        _expect(char, "{")
        name: str | None = None
        late: str | None = None  # arguments that wait for the name
        index = self.index
        while char != "}":
            key = json.loads((yield from self._value((yield from solid()), '"')))
            _expect((yield from solid()), ":")
            char = yield from solid()
            if key in ("name", self._form.name_key) and name is None:
                name = self._known(json.loads((yield from self._value(char, '"'))))
            elif key in _ARGUMENTS and self.index == index and late is None:
                if char == "{" and name is not None and not self._whole:
                    yield from self._arguments(name, char)
                else:
                    late = _as_object((yield from self._value(char, '{"n')))
            elif self._bare and key not in (*_IGNORED, self._form.id_key):
                raise NotACall  # some other JSON
            else:
                yield from self._value(char, '{["tfn')
            char = yield from solid()
            if char not in ",}":
                raise NotACall
        if self.index == index:
            if name is None or (late is None and self._bare):
                raise NotACall
            self._start(name)
            self._parts.arguments(index, "{}" if late is None else late)
            self._end_call()
        self._raw.clear()

    def _arguments(self, name: str, char: str, notation: Arguments = "json") -> Reading:
        """Arguments that are handed on as they come, unless calls are wanted whole."""
        late: list[str] = []
        # What Python's arguments are is known at their end only.
        emit: Emit = late.append if self._whole or notation == "python" else self._hand_on(name)
        try:
            if notation == "json":
                yield from self._json_arguments(emit, char)
            elif notation == "python":
                yield from read_python(self._schema(name), emit, char)
            elif isinstance(notation, QuotedArguments):
                yield from read_quoted(notation.quote, emit, char)
            else:
                ending = self._form.ending.strip()
                end = ending or self._form.closing.strip()
                yield from read_tags(notation, end, self._schema(name), emit, char)
                self._between = not ending
        except NotACall:
            if self._started:
                self._end_call()
            raise
        if late:
            self._start(name)
            self._parts.arguments(self.index, "".join(late))
        self._end_call()

    def _json_arguments(self, emit: Emit, char: str) -> Reading:
        _expect(char, "{")
        scanner = JsonScanner()
        scanner.push(char)
        emit(char)
        while not scanner.done:
            char = yield
            if not scanner.push(char):
                raise NotACall
            emit(char)

    def _hand_on(self, name: str) -> Emit:
        """Hands arguments on as they come; the first of them make the call count."""

        def emit(text: str) -> None:
            if not self._started:
                self._start(name)
            self._parts.arguments(self.index, text)
            self._raw.clear()

        return emit

    def _end_call(self) -> None:
        self._started = False
        self.index += 1

    def _schema(self, name: str) -> Mapping[str, Any]:
        schema = self._names.get(name) if isinstance(self._names, Mapping) else None
        return schema if isinstance(schema, Mapping) else {}

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

    def _start(self, name: str) -> None:
        self._started = True
        self._parts.start(self.index, name)
        self._raw.clear()

    def _known(self, name: str) -> str:
        if not name or (self._names is not None and name not in self._names):
            raise NotACall
        return name


def _begins(text: str, marks: tuple[str, ...]) -> bool:
    return any(text.startswith(mark) for mark in marks)


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
