"""The terminal loop of a chat: editing, history, several lines, keys."""

import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from . import settings, slash

if TYPE_CHECKING:
    from .session import Session

HINT = "Ctrl-D or /exit leaves, /help shows the commands"


def loop(session: "Session") -> None:
    """Reads and handles entries until /exit or Ctrl-D."""
    prompt = PromptSession(
        history=_history(),
        key_bindings=_keys(session),
        completer=_Commands(),
        complete_while_typing=False,
        multiline=True,  # Enter is ours, see _keys
        prompt_continuation=lambda width, line, wrapped: "" if wrapped else ". ".rjust(width),
        placeholder=HTML("<ansibrightblack>ask something, /help for help</ansibrightblack>"),
        enable_open_in_editor=True,
    )
    # At the prompt Ctrl-C is a key. A signal that comes just before or after it would end asyncio's
    # loop half-way and leave a prompt that takes no keys (seen with prompt_toolkit 3.0.53).
    signal.signal(signal.SIGINT, lambda *_: None)
    while True:
        try:
            text = prompt.prompt(">>> ")
        except KeyboardInterrupt:
            # prompt_toolkit clears the line; on an empty one the user wanted out.
            if not prompt.default_buffer.text:
                session.tell(HINT)
            continue
        except EOFError:
            return
        if not session.handle(finished_text(text)):
            return


def finished_text(text: str) -> str:
    """The entry without the marks that made it several lines."""
    stripped = text.strip()
    if len(stripped) >= 6 and stripped.startswith('"""') and stripped.endswith('"""'):
        return stripped[3:-3].strip("\n")
    return text.replace("\\\n", "\n")


def is_open(text: str) -> bool:
    r"""Whether an entry goes on after Enter: it ends in `\`, or triple quotes are open."""
    stripped = text.strip()
    if stripped.startswith('"""'):
        return len(stripped) < 6 or not stripped.endswith('"""')
    return text.endswith("\\")


def _keys(session: "Session") -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        at_end = not buffer.document.text_after_cursor.strip()
        command = slash.is_command(buffer.text)
        if (session.multiline and not command) or (at_end and is_open(buffer.text)):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        if session.multiline:
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    return keys


def _history() -> History:
    """In the cache; a home that can't be written (or read) is no reason to fail."""
    from ..models.store import cache_dir

    try:
        path = cache_dir() / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
        with path.open("ab"):
            return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()


class _Commands(Completer):
    """Tab: commands, parameter names, paths."""

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text.partition(" ")
        if not space:
            for command in slash.HELP:
                command = command.split()[0]
                if command.startswith(name):
                    yield Completion(command, start_position=-len(name))
        elif name == "/set" and " " not in rest:
            for parameter in sorted({*settings.ALIASES.values(), "stop", "logit_bias"}):
                if parameter.startswith(rest):
                    yield Completion(parameter, start_position=-len(rest))
        elif name in ("/save", "/load"):
            inner = Document(rest, len(rest))
            yield from PathCompleter(expanduser=True).get_completions(inner, complete_event)
