"""ContentParser: what an answer says to the user, and the calls in it."""

import re
from collections.abc import Collection

from .argument_reader import NotACall
from .call_reader import CallReader
from .parts import PartList
from .tool_format import ToolFormat

_SPACE = " \t\r\n"
# A call without its tags, perhaps in a block of code, as models of code like to write it.
_BARE_CALL = re.compile(r"(?:```(?:json)?[ \t\r\n]*)?(?=\{)")
_FENCE = re.compile(r"`{1,2}|```(?:j|js|jso|json)?[ \t\r\n]*")


class ContentParser:
    """The part of an answer after its thinking: text, and calls in it.

    frames: texts that are dropped. thinking: what begins more thinking; "": nothing does. The
    other arguments are AnswerParser's.
    """

    def __init__(
        self,
        form: ToolFormat | None,
        names: Collection[str] | None,
        parts: PartList,
        *,
        frames: tuple[str, ...] = (),
        thinking: str = "",
        whole_calls: bool,
        calls_only: bool,
    ) -> None:
        self._calls_only = calls_only
        self._form = form
        self._names = names
        self._parts = parts
        self._whole = whole_calls
        self._held = ""
        self._reader: CallReader | None = None
        self._num_calls = 0
        self._said = False  # some content was handed on
        self._after_call = False  # nothing but white space came since a call
        self._bare = form is not None and form.bare  # a call may begin here without its opening
        self._thinking = thinking
        self._frames = frozenset(frames)
        openings = form.openings if form is not None else ()
        self._tags = tuple(tag for tag in (*openings, *frames, thinking) if tag)
        longest_first = sorted(self._tags, key=len, reverse=True)
        self._tag = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def push(self, text: str) -> str | None:
        """More text; if thinking begins in it, what comes after that is returned."""
        if not self._tags and not self._bare:
            self._parts.content(text)
            return None
        return self._read(text, last=False)

    def _read(self, text: str, *, last: bool) -> str | None:
        while text:
            if self._reader is not None and self._form is not None:
                text = self._call(self._form, self._reader, text)
                continue
            rest, thinks = self._text(self._held + text, last=last)
            if thinks:
                return rest
            text = rest
        return None

    def flush(self, cut: bool) -> None:
        """The answer's end."""
        if self._reader is None and (held := self._held):
            self._held = ""
            self._read(held, last=True)
        rest, self._held = self._held, ""
        if self._reader is not None:
            called = self._reader.index > self._num_calls
            is_call = called or self._reader.tagged
            rest = self._reader.rest()
            self._after_call |= called
        else:
            tag = rest.lstrip(_SPACE)
            is_call = tag != "" and any(each.startswith(tag) for each in self._tags)
        if cut and (is_call or self._calls_only):
            return
        if rest.strip(_SPACE) or not self._after_call:
            self._say(rest)

    def _text(self, text: str, *, last: bool) -> tuple[str, bool]:
        """Hand on text up to where something begins; (the rest, whether it is thinking).

        last: nothing will follow that could make a tag a longer one.
        """
        self._held = ""
        if self._bare and self._form is not None:
            body = text.lstrip(_SPACE + ";" if self._num_calls else _SPACE)
            if not body:
                self._held = text
                return "", False
            if match := _BARE_CALL.match(body):
                begun = len(text) - len(body) + match.end()
                self._begin(self._form, text[:begun], fenced=match.end() > 0)
                return text[begun:], False
            # What begins both a block of code and the format's opening waits as such below.
            if _FENCE.fullmatch(body) and not last:
                self._held = text
                return "", False
            self._bare = False
        found = self._tag.search(text)
        if found is None:
            self._say_most(text)
            return "", False
        at, tag = found.start(), found[0]
        if not last and any(t.startswith(text[at:]) and t != tag for t in self._tags):
            # It may become a longer one. The white space before it waits as well.
            said = text[:at].rstrip(_SPACE)
            self._say(said)
            self._held = text[len(said) :]
            return "", False
        rest = text[found.end() :]
        if tag in self._frames:
            self._say(text[:at])
            return rest, False
        said = text[:at].rstrip(_SPACE)
        self._say(said)
        if tag == self._thinking:
            return rest, True
        assert self._form is not None
        self._begin(self._form, text[len(said) : found.end()], opening=tag)
        return rest, False

    def _call(self, form: ToolFormat, reader: CallReader, text: str) -> str:
        """Let the reader read; the rest is text again."""
        for at, char in enumerate(text):
            try:
                more = reader.push(char)
            except NotACall:
                # What was read of it is text, the character that does not fit is looked at again.
                self._end(reader, bare=False)
                begun = reader.num_begun
                self._say(reader.raw[:begun])
                self._say_most(reader.raw[begun:-1])
                return text[at:]
            if not more:
                self._end(reader, bare=form.bare)
                return text[at + 1 :]
        return ""

    def _begin(
        self, form: ToolFormat, raw: str, *, opening: str | None = None, fenced: bool = False
    ) -> None:
        self._reader = CallReader(
            form,
            self._names,
            self._parts,
            raw=raw,
            index=self._num_calls,
            opening=opening,
            fenced=fenced,
            # The grammar has no eye on calls that begin without the opening that it knows.
            whole=self._whole or fenced or (opening is None and form.opens),
        )

    def _end(self, reader: CallReader, *, bare: bool) -> None:
        self._reader = None
        self._bare = bare
        self._after_call |= reader.index > self._num_calls
        self._num_calls = reader.index

    def _say_most(self, text: str) -> None:
        """Hand on content, but for an end that may belong to the next tag."""
        keep = held_length(text, *self._tags)
        self._say(text[: len(text) - keep])
        self._held = text[len(text) - keep :]

    def _say(self, text: str) -> None:
        """Hand on content; of white space after a call, only what stands between two texts."""
        if text and self._after_call and not self._said:
            text = text.lstrip(_SPACE)
        if text:
            self._parts.content(text)
            self._said, self._after_call = True, False


def held_length(text: str, *tags: str) -> int:
    """How many characters at the end may be (white space before) the start of a tag."""
    length = max((_begun(text, tag) for tag in tags), default=0)
    return len(text) - len(text[: len(text) - length].rstrip(_SPACE))


def _begun(text: str, tag: str) -> int:
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
