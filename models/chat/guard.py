"""Which stretches of a rendered prompt came out of messages and must stay plain text (PAINS P27).

A control token's text inside a message ("<|im_end|>") must not become that token, but the prompt
must read exactly as the template renders it, whatever the template does with its messages: trims,
splits, tests. So the conversation is rendered a second time with each character of such a text
replaced by a private-use character that stands for it. Where the two renderings agree, up to these
replacements, the private-use characters show where message text went. All that is tokenised is the
whole prompt, as one text: no boundary appears that plain tokenising would not have.
"""

from collections.abc import Callable
from typing import Any

from ..tokenizer import Tokenizer
from ..tokenizer.special import Guard

_PRIVATE = range(0xF0000, 0xFFFFD)
Path = tuple[Any, ...]
Render = Callable[[Any], str]


class Guarded:
    """The texts that must not be read as tokens when they stand in messages.

    Control tokens everywhere; other special tokens that look like markup and that the template
    itself writes ("</think>", "<tool_call>") everywhere but in the assistant's own messages.
    """

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        self._controls = tokenizer.vocabulary.controls
        self._markup = frozenset(
            token_id
            for token_id, text in tokenizer.shown_special_tokens()
            if len(text) > 2 and text[0] in "<[" and text in template
        )
        self.ids = self._controls | self._markup

    def present(self, rendered: str) -> list[tuple[str, bool]]:
        """(text, whether it is a control token's) of the guarded texts that a prompt contains."""
        return [
            (text, token_id in self._controls)
            for token_id, text in self._tokenizer.special_in(rendered)
            if token_id in self.ids
        ]


def _touches(text: str, name: str) -> bool:
    """Whether a string contains a guarded text, or half of one at an edge."""
    return name in text or any(
        text.endswith(name[:n]) or text.startswith(name[-n:]) for n in range(1, len(name))
    )


def guards_of(
    rendered: str, given: Any, render: Render, guarded: Guarded
) -> tuple[str, list[Guard]]:
    """The prompt to tokenise and the stretches in it that came out of `given`.

    rendered: render(given). given: {"messages": ..., "tools": ..., ...}, any tree of strings.
    The prompt is `rendered`, except where the template's own logic acts on a control token's text
    inside a message (looks for it, changes its case): then it is rendered as if that text were an
    ordinary word that the template does not know.
    """
    present = guarded.present(rendered)
    hits = [
        (path, name)
        for path, text, assistant in _strings(given)
        for name, control in present
        if (control or not assistant) and _touches(text, name)
    ]
    if not hits:
        return rendered, []
    marks = _Marks(rendered)
    shadow = render(marks.mark(given, hits))
    if marks.restore(shadow) != rendered:
        # The template acts on one of these texts: find which, and leave those of the assistant.
        keep = []
        for hit in hits[:16]:
            same = marks.restore(render(marks.mark(given, [hit]))) == rendered
            if same or not _is_assistants(given, hit[0]):
                keep.append(hit)
        shadow = render(marks.mark(given, keep + hits[16:]))
    return marks.restore(shadow), [
        (start, stop, guarded.ids) for start, stop in marks.stretches(shadow)
    ]


class _Marks:
    """Private-use stand-ins for characters, none of which the text has itself."""

    def __init__(self, text: str) -> None:
        used = set(text)
        self._free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        self._mark_of: dict[str, str] = {}

    def _marked(self, text: str) -> str:
        for char in text:
            if char not in self._mark_of:
                self._mark_of[char] = next(self._free)
        return "".join(self._mark_of[char] for char in text)

    def mark(self, given: Any, hits: list[tuple[Path, str]]) -> Any:
        """A copy of `given` with these texts replaced by stand-ins."""
        by_path: dict[Path, list[str]] = {}
        for path, name in hits:
            by_path.setdefault(path, []).append(name)
        return self._copy(given, (), by_path)

    def _copy(self, value: Any, path: Path, by_path: dict[Path, list[str]]) -> Any:
        if isinstance(value, dict):
            out = {}
            for key, item in value.items():
                names = by_path.get((*path, ("key", key)), [])
                marked = self._mark_text(key, names) if isinstance(key, str) else key
                out[marked] = self._copy(item, (*path, key), by_path)
            return out
        if isinstance(value, list | tuple):
            return [self._copy(item, (*path, i), by_path) for i, item in enumerate(value)]
        return self._mark_text(value, by_path.get(path, [])) if isinstance(value, str) else value

    def _mark_text(self, text: str, names: list[str]) -> str:
        chars = list(text)
        for name in names:
            at = text.find(name)
            while at >= 0:
                chars[at : at + len(name)] = self._marked(name)
                at = text.find(name, at + 1)
            for n in range(1, len(name)):
                if text.endswith(name[:n]):
                    chars[len(text) - n :] = self._marked(name[:n])
                if text.startswith(name[-n:]):
                    chars[:n] = self._marked(name[-n:])
        return "".join(chars)

    def restore(self, text: str) -> str:
        """The text with every stand-in replaced by its character."""
        return text.translate({ord(mark): char for char, mark in self._mark_of.items()})

    def stretches(self, text: str) -> list[tuple[int, int]]:
        """Where stand-ins are: (start, stop) of each run."""
        marks = set(self._mark_of.values())
        out: list[tuple[int, int]] = []
        for i, char in enumerate(text):
            if char in marks:
                if out and out[-1][1] == i:
                    out[-1] = (out[-1][0], i + 1)
                else:
                    out.append((i, i + 1))
        return out


def _strings(value: Any, path: Path = (), assistant: bool = False) -> list[tuple[Path, str, bool]]:
    """(path, string, whether in an assistant's message) of every string in a tree, keys too."""
    if isinstance(value, str):
        return [(path, value, assistant)]
    out: list[tuple[Path, str, bool]] = []
    if isinstance(value, dict):
        assistant = assistant or value.get("role") == "assistant"
        for key, item in value.items():
            if isinstance(key, str):
                out.append(((*path, ("key", key)), key, assistant))
            out += _strings(item, (*path, key), assistant)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            out += _strings(item, (*path, i), assistant)
    return out


def _is_assistants(given: Any, path: Path) -> bool:
    """Whether a path leads into an assistant's message."""
    value = given
    for key in path:
        if isinstance(value, dict) and value.get("role") == "assistant":
            return True
        if isinstance(key, tuple):
            return False
        value = value[key]
    return False
