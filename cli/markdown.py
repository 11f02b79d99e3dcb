"""Markdown rendered while it streams: finished blocks are printed, only the last one is live."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown
    from rich.segment import Segment

REFRESH_S = 0.08  # a redraw of the live block; faster flickers, slower stutters


def split_finished(text: str) -> tuple[str, str]:
    """(blocks that later text can't change, the rest). Only top-level blocks are told apart."""
    starts = [
        token.map[0]
        for token in _parser().parse(text)
        if token.map and token.level == 0 and token.nesting >= 0
    ]
    if len(starts) < 2:
        return "", text
    lines = text.splitlines(keepends=True)
    return "".join(lines[: starts[-1]]), "".join(lines[starts[-1] :])


class MarkdownStream:
    """Writes Markdown to a terminal piece by piece; a context manager.

    The terminal's scroll-back holds every block once: a block is redrawn in place while it grows
    and printed for good when the next one starts. Of a block taller than the screen the end shows.
    """

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        self.console = console
        self.live = Live(
            console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
        )
        self.pending = ""
        self.thought = ""  # the line of thinking that isn't finished
        self.printed = False
        self.drawn_at = 0.0

    def __enter__(self) -> "MarkdownStream":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Prints what is pending, whatever ended the stream."""
        self._end_thinking()
        self.live.update("")
        self._print(self.pending)
        self.pending = ""
        self.live.stop()

    def write(self, text: str) -> None:
        """The next piece of the answer."""
        self._end_thinking()
        self.pending += text
        now = time.monotonic()
        if now - self.drawn_at < REFRESH_S:
            return
        self.drawn_at = now
        finished, self.pending = split_finished(self.pending)
        shown = _Lines(render(self.pending), gap=self.printed or bool(finished.strip()), fit=True)
        if finished.strip():
            # Live prints it above itself and redraws in the same write: nothing flickers.
            self.live.update(shown)
            self._print(finished)
        else:
            self.live.update(shown, refresh=True)

    def think(self, text: str) -> None:
        """The next piece of the model's thinking: plain text, dimmed."""
        from rich.text import Text

        *lines, self.thought = (self.thought + text).split("\n")
        for line in lines:
            self.console.print(Text(line, style="dim"))
            self.printed = True
        self.live.update(Text(self.thought, style="dim"), refresh=True)

    def _end_thinking(self) -> None:
        if self.thought:
            self.think("\n")

    def _print(self, text: str) -> None:
        if text.strip():
            self.console.print(_Lines(render(text), gap=self.printed), end="")
            self.printed = True


class _Lines:
    """The lines of a renderable without empty ones around it, after one empty line if `gap`.

    With `fit` only the last ones, as many as the screen holds.
    """

    def __init__(self, inner: "Markdown", *, gap: bool, fit: bool = False) -> None:
        self.inner = inner
        self.gap = gap
        self.fit = fit

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.segment import Segment

        lines = console.render_lines(self.inner, options.update(height=None), pad=False)
        while lines and _is_empty(lines[0]):
            lines.pop(0)
        while lines and _is_empty(lines[-1]):
            lines.pop()
        if self.gap and lines:
            lines.insert(0, [])
        for line in lines[-max(console.height - 2, 1) :] if self.fit else lines:
            yield from line
            yield Segment.line()


def _is_empty(line: "list[Segment]") -> bool:
    return not any(segment.text.strip() for segment in line)


def render(text: str) -> "Markdown":
    """Markdown as chat models write it: raw HTML is text (rich would drop it), links show whole,

    headings stand at the left edge.
    """
    from rich.markdown import Heading, Markdown

    class LeftHeading(Heading):
        def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
            self.text.justify = "left"
            yield self.text

    class ChatMarkdown(Markdown):
        elements = {**Markdown.elements, "heading_open": LeftHeading}

    markdown = ChatMarkdown(text, code_theme="ansi_dark", hyperlinks=False)
    markdown.parsed = _parser().enable("strikethrough").parse(text)
    return markdown


def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table")
