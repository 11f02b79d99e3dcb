"""AnswerParser: an answer's text split into thinking, content and tool calls (PAINS P30)."""

import re
from collections.abc import Collection

from .call_reader import CallReader, NotACall
from .parts import Part, PartList
from .reasoning import ReasoningFormat
from .tool_formats import ToolFormat

_SPACE = " \t\r\n"
# A call without its tags, perhaps in a block of code, as models of code like to write it.
_BARE_CALL = re.compile(r"(?:```(?:json)?[ \t\r\n]*)?(?=\{)")
_FENCE = re.compile(r"`{1,2}|```(?:j|js|jso|json)?[ \t\r\n]*")


class AnswerParser:
    """Takes the text in pieces of any size; all that it returns depends on the whole text alone.

    Text is held back only while it may be the start of a tag (or white space before one).

    Args:
        reasoning: the model's way of thinking; None: it doesn't think.
        opened: the prompt opened the thinking (`reasoning.is_open`).
        tools: the format of calls; None: calls are not looked for.
        names: the tools that there are; a call of anything else is content. None: any name.
        inline: thinking stays in the content, tags and all, the opening one included (llama-server
            calls that reasoning_format "none").
        whole_calls: a call is handed on when it is complete, so that a broken one is all content;
            otherwise its arguments come as they are generated. For answers without a grammar.
        calls_only: the grammar lets nothing but calls through, so that half of one is no content.
    """

    def __init__(
        self,
        *,
        reasoning: ReasoningFormat | None,
        opened: bool,
        tools: ToolFormat | None,
        names: Collection[str] | None = None,
        inline: bool = False,
        whole_calls: bool = False,
        calls_only: bool = False,
    ) -> None:
        self._parts = PartList()
        self._content = _ContentParser(tools, names, self._parts, whole_calls, calls_only)
        self._reasoning = reasoning
        self._inline = inline
        self._held = ""
        # Before: the thinking may begin. Trim: its white space at the start is dropped.
        # Inside: it goes on until the end text. Gap: newlines after it are dropped. Then: content.
        self._state = "content" if reasoning is None else "opened" if opened else "before"
        if reasoning is not None and opened and inline:
            self._parts.content(reasoning.start + "\n")

    def push(self, text: str) -> list[Part]:
        """The parts that are certain by now."""
        self._split(text)
        return self._parts.take()

    def flush(self, *, cut: bool = False) -> list[Part]:
        """The rest, at the answer's end. The parser is of no use after that.

        cut: the answer's length or time was up. What had begun as a call, by its tag or a part of
        it, and was none yet, is dropped; otherwise it is content.
        """
        held, self._held = self._held, ""
        if self._state == "before":
            self._content.push(held)
        elif self._state in ("opened", "trim", "inside") and (self._inline or held.strip(_SPACE)):
            self._think(held)
        self._content.flush(cut)
        return self._parts.take()

    def _split(self, text: str) -> None:
        if self._state == "content":
            self._content.push(text)
            return
        form = self._reasoning
        assert form is not None
        text, self._held = self._held + text, ""
        if self._state in ("before", "opened"):
            # Some models repeat a tag that the prompt has given them already.
            body = text.lstrip(_SPACE)
            if len(body) < len(form.start) and form.start.startswith(body):
                self._held = text
                return
            if body.startswith(form.start):
                if self._inline and self._state == "before":
                    self._think(text[: len(text) - len(body) + len(form.start)])
                text = body[len(form.start) :]
                self._state = "trim"
            elif self._state == "opened":
                self._state = "trim"
            else:
                self._state = "content"
                self._content.push(text)
                return
        if self._state == "trim" and not self._inline:
            text = text.lstrip(_SPACE)
            if not text:
                return
        if self._state in ("trim", "inside"):
            self._state = "inside"
            end = text.find(form.end)
            if end < 0:
                keep = _held_length(text, form.end)
                self._think(text[: len(text) - keep])
                self._held = text[len(text) - keep :]
                return
            if self._inline:
                self._think(text[: end + len(form.end)])
            else:
                self._think(text[:end].rstrip(_SPACE))
            text = text[end + len(form.end) :]
            self._state = "content" if self._inline else "gap"
        if self._state == "gap":
            text = text.lstrip("\r\n")
            if not text:
                return
            self._state = "content"
        self._content.push(text)

    def _think(self, text: str) -> None:
        if self._inline:
            self._parts.content(text)
        else:
            self._parts.reasoning(text)


class _ContentParser:
    """The part of an answer after its thinking: text, and calls in it."""

    def __init__(
        self,
        form: ToolFormat | None,
        names: Collection[str] | None,
        parts: PartList,
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

    def push(self, text: str) -> None:
        """More text."""
        if self._form is None:
            self._parts.content(text)
            return
        while text:
            if self._reader is None:
                text = self._text(self._form, self._held + text)
            else:
                text = self._call(self._form, self._reader, text)

    def flush(self, cut: bool) -> None:
        """The answer's end."""
        rest, self._held = self._held, ""
        if self._reader is not None:
            called = self._reader.index > self._num_calls
            is_call = called or self._reader.tagged
            rest = self._reader.rest()
            self._after_call |= called
        else:
            tag = rest.lstrip(_SPACE)
            is_call = self._form is not None and tag != "" and self._form.opening.startswith(tag)
        if cut and (is_call or self._calls_only):
            return
        if rest.strip(_SPACE) or not self._after_call:
            self._say(rest)

    def _text(self, form: ToolFormat, text: str) -> str:
        """Hand on text up to where a call may begin; the rest is what its reader has to read."""
        self._held = ""
        if self._bare:
            body = text.lstrip(_SPACE + ";" if self._num_calls else _SPACE)
            if not body:
                self._held = text
                return ""
            if match := _BARE_CALL.match(body):
                begun = len(text) - len(body) + match.end()
                self._begin(form, text[:begun], bare=True, fenced=match.end() > 0)
                return text[begun:]
            if _FENCE.fullmatch(body):
                self._held = text
                return ""
            self._bare = False
        at = text.find(form.opening)
        if at >= 0:
            said = text[:at].rstrip(_SPACE)
            after = at + len(form.opening)
            self._say(said)
            self._begin(form, text[len(said) : after])
            return text[after:]
        self._say_most(form, text)
        return ""

    def _call(self, form: ToolFormat, reader: CallReader, text: str) -> str:
        """Let the reader read; the rest is text again."""
        for at, char in enumerate(text):
            try:
                more = reader.push(char)
            except NotACall:
                # What was read of it is text, the character that does not fit is looked at again.
                self._end(reader, bare=False)
                self._say_most(form, reader.raw[:-1])
                return text[at:]
            if not more:
                self._end(reader, bare=form.bare)
                return text[at + 1 :]
        return ""

    def _begin(
        self, form: ToolFormat, raw: str, *, bare: bool = False, fenced: bool = False
    ) -> None:
        self._reader = CallReader(
            form,
            self._names,
            self._parts,
            raw=raw,
            index=self._num_calls,
            bare=bare,
            fenced=fenced,
            # The grammar has no eye on calls that begin without the opening that it knows.
            whole=self._whole or fenced or (bare and form.opens),
        )

    def _end(self, reader: CallReader, *, bare: bool) -> None:
        self._reader = None
        self._bare = bare
        self._after_call |= reader.index > self._num_calls
        self._num_calls = reader.index

    def _say_most(self, form: ToolFormat, text: str) -> None:
        """Hand on content, but for an end that may belong to the next call."""
        keep = _held_length(text, form.opening)
        self._say(text[: len(text) - keep])
        self._held = text[len(text) - keep :]

    def _say(self, text: str) -> None:
        """Hand on content; of white space after a call, only what stands between two texts."""
        if text and self._after_call and not self._said:
            text = text.lstrip(_SPACE)
        if text:
            self._parts.content(text)
            self._said, self._after_call = True, False


def _held_length(text: str, tag: str) -> int:
    """How many characters at the end may be (white space before) the start of a tag."""
    length = next(
        (n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0
    )
    return len(text) - len(text[: len(text) - length].rstrip(_SPACE))
