"""The parts that an answer's text is split into, in order."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """A piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """A piece of what the model says to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins. index: counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of a call's arguments, JSON text exactly as generated."""

    index: int
    text: str


Part = ReasoningText | ContentText | ToolCallStart | ToolCallArguments


class PartList:
    """Collects parts; neighbouring pieces of one kind become one part."""

    def __init__(self) -> None:
        self._groups: list[tuple[type, int, list[str]]] = []

    def _add(self, kind: type, index: int, text: str) -> None:
        if not text:
            return
        if self._groups and self._groups[-1][:2] == (kind, index):
            self._groups[-1][2].append(text)
        else:
            self._groups.append((kind, index, [text]))

    def reasoning(self, text: str) -> None:
        """More thinking."""
        self._add(ReasoningText, 0, text)

    def content(self, text: str) -> None:
        """More content."""
        self._add(ContentText, 0, text)

    def start(self, index: int, name: str) -> None:
        """A call begins."""
        self._groups.append((ToolCallStart, index, [name]))

    def arguments(self, index: int, text: str) -> None:
        """More of a call's arguments."""
        self._add(ToolCallArguments, index, text)

    def take(self) -> list[Part]:
        """The parts since the last time."""
        groups, self._groups = self._groups, []
        out: list[Part] = []
        for kind, index, texts in groups:
            text = "".join(texts)
            if kind is ReasoningText:
                out.append(ReasoningText(text))
            elif kind is ContentText:
                out.append(ContentText(text))
            elif kind is ToolCallStart:
                out.append(ToolCallStart(index, text))
            else:
                out.append(ToolCallArguments(index, text))
        return out
