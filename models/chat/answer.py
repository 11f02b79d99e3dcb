"""AnswerParser: an answer's text split into thinking, content and tool calls (PAINS P30)."""

from collections.abc import Collection

from .content import ContentParser, held_length
from .parts import Part, PartList
from .reasoning import ReasoningFormat
from .tool_format import ToolFormat

_SPACE = " \t\r\n"


class AnswerParser:
    """Takes the text in pieces of any size; all that it returns depends on the whole text alone.

    Text is held back only while it may be the start of a tag (or white space before one).

    Args:
        reasoning: the model's way of thinking; None: it doesn't think.
        opened: the prompt opened the thinking (`reasoning.is_open`).
        tools: the format of calls; None: calls are not looked for.
        names: the tools that there are, perhaps with the schemas of their arguments; a call of
            anything else is content. None: any name.
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
        again = reasoning.start if reasoning is not None and reasoning.again else ""
        self._content = ContentParser(
            tools,
            names,
            self._parts,
            frames=() if reasoning is None else reasoning.frames,
            thinking=again,
            whole_calls=whole_calls,
            calls_only=calls_only,
        )
        self._reasoning = reasoning
        self._inline = inline
        self._held = ""
        # Before: the thinking may begin. Trim: its white space at the start is dropped.
        # Inside: it goes on until the end text. Gap: newlines after it are dropped. Then: content.
        self._state = "opened" if opened else "before"
        if reasoning is None or (again and not opened):
            self._state = "content"
        if reasoning is not None and opened and inline:
            self._parts.content(reasoning.start + "\n")
        elif reasoning is not None and not opened and reasoning.begun:
            self._split(reasoning.begun)

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
        while text:
            text = self._say(text) if self._state == "content" else self._reason(text)

    def _say(self, text: str) -> str:
        """Content; what comes after the start of more thinking is left."""
        rest = self._content.push(text)
        if rest is None:
            return ""
        assert self._reasoning is not None
        if self._inline:
            self._think(self._reasoning.start)
        self._state = "trim"
        return rest

    def _reason(self, text: str) -> str:
        """Thinking, or what comes before and after it; what is content is left."""
        form = self._reasoning
        assert form is not None
        text, self._held = self._held + text, ""
        if self._state in ("before", "opened"):
            # Some models repeat a tag that the prompt has given them already.
            body = text.lstrip(_SPACE)
            if len(body) < len(form.start) and form.start.startswith(body):
                self._held = text
                return ""
            if body.startswith(form.start):
                if self._inline and self._state == "before":
                    self._think(text[: len(text) - len(body) + len(form.start)])
                text = body[len(form.start) :]
                self._state = "trim"
            elif self._state == "opened":
                self._state = "trim"
            else:
                self._state = "content"
                return text
        if self._state == "trim" and not self._inline:
            text = text.lstrip(_SPACE)
            if not text:
                return ""
        if self._state in ("trim", "inside"):
            self._state = "inside"
            end = text.find(form.end)
            if end < 0:
                keep = held_length(text, form.end)
                self._think(text[: len(text) - keep])
                self._held = text[len(text) - keep :]
                return ""
            if self._inline:
                self._think(text[: end + len(form.end)])
            else:
                self._think(text[:end].rstrip(_SPACE))
            text = text[end + len(form.end) :]
            self._state = "content" if self._inline else "gap"
        if self._state == "gap":
            text = text.lstrip("\r\n")
            if text:
                self._state = "content"
        return text

    def _think(self, text: str) -> None:
        if self._inline:
            self._parts.content(text)
        else:
            self._parts.reasoning(text)
