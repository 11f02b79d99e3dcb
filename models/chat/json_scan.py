"""JsonScanner: follows one JSON value character by character, so that its end can be seen."""

import re

_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _AFTER = range(6)
_STRING, _ESCAPE, _HEX, _NUMBER, _WORD, _DONE = range(6, 12)
_SPACE = " \t\n\r"
_CLOSER = {"{": "}", "[": "]"}
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_NUMBER_TEXT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_MAX_DEPTH = 256  # far below what makes json.loads recurse too deeply


class JsonScanner:
    """Strict JSON of one value that is an object, an array, a string, true, false or null.

    A bare number can't be followed, since nothing but the next character ends it.
    """

    def __init__(self) -> None:
        self._state = _VALUE
        self._closers: list[str] = []
        self._is_key = False
        self._rest = ""  # of a word, or the number so far
        self._digits = 0

    @property
    def done(self) -> bool:
        """Whether the value has ended."""
        return self._state == _DONE

    def push(self, char: str) -> bool:
        """Take the next character; False: it can't stand here (the scanner is of no use then)."""
        state = self._state
        if state == _STRING:
            if char == '"':
                self._end_string()
            elif char == "\\":
                self._state = _ESCAPE
            return char >= " "
        if state == _ESCAPE:
            self._state, self._digits = (_HEX, 4) if char == "u" else (_STRING, 0)
            return char in '"\\/bfnrtu'
        if state == _HEX:
            self._digits -= 1
            if not self._digits:
                self._state = _STRING
            return char in "0123456789abcdefABCDEF"
        if state == _WORD:
            if not self._rest.startswith(char):
                return False
            self._rest = self._rest[1:]
            if not self._rest:
                self._end_value()
            return True
        if state == _NUMBER:
            if char in "0123456789+-.eE":
                self._rest += char
                return len(self._rest) < 4096
            if not _NUMBER_TEXT.fullmatch(self._rest):
                return False
            self._end_value()
            return self._structure(char)
        return state != _DONE and self._structure(char)

    def _structure(self, char: str) -> bool:
        """A character between the values."""
        state = self._state
        if char in _SPACE:
            return True
        if char in "}]":
            first = _FIRST_KEY if char == "}" else _FIRST_VALUE
            if state not in (_AFTER, first) or not self._closers or self._closers[-1] != char:
                return False
            self._closers.pop()
            self._end_value()
            return True
        if state == _AFTER:
            self._state = _KEY if self._closers[-1] == "}" else _VALUE
            return char == ","
        if state == _COLON:
            self._state = _VALUE
            return char == ":"
        if state in (_KEY, _FIRST_KEY):
            self._state, self._is_key = _STRING, True
            return char == '"'
        return self._begin_value(char)

    def _begin_value(self, char: str) -> bool:
        if char in _CLOSER:
            self._closers.append(_CLOSER[char])
            self._state = _FIRST_KEY if char == "{" else _FIRST_VALUE
            return len(self._closers) <= _MAX_DEPTH
        if char == '"':
            self._state, self._is_key = _STRING, False
        elif char in _WORDS:
            self._state, self._rest = _WORD, _WORDS[char]
        elif char in "-0123456789" and self._closers:
            self._state, self._rest = _NUMBER, char
        else:
            return False
        return True

    def _end_string(self) -> None:
        if self._is_key:
            self._state = _COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        self._state = _AFTER if self._closers else _DONE
