"""The /commands of a chat."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import settings
from .answer import stats_line

if TYPE_CHECKING:
    from .session import Session

HELP = {
    "/help": "this list",
    "/system [TEXT]": "show or set the system message; /system none removes it",
    "/set [NAME VALUE]": "show or change sampling parameters; NAME none resets one",
    "/regen": "answer the last question again",
    "/undo": "take the last question and its answer back",
    "/clear": "forget the conversation",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "read one",
    "/stats": "speeds of the last answer, room left in the context",
    "/multiline": "switch: Enter starts a new line and Alt-Enter sends",
    "/exit": "leave (also Ctrl-D)",
}


def is_command(line: str) -> bool:
    """Whether a line is one of ours; other texts that start with / go to the model."""
    return line.partition(" ")[0].strip() in COMMANDS


def is_unknown(text: str) -> bool:
    """Whether an entry looks like a command and is none; paths and longer texts do not."""
    return re.fullmatch(r"/[a-zA-Z?][\w-]*([ \t].*)?", text.strip()) is not None


def unknown(text: str) -> str:
    """What to say of such an entry."""
    names = " ".join(name.split()[0] for name in HELP)
    return f"there is no command {text.split()[0]}; there are {names}; // begins a text with /"


def execute(session: "Session", line: str) -> bool:
    """Runs one; returns False when the session ends. Raises RequestError."""
    name, _, rest = line.strip().partition(" ")
    return COMMANDS[name](session, rest.strip()) is not False


def _help(session: "Session", rest: str) -> None:
    for name, what in HELP.items():
        session.tell(f"{name:20} {what}")
    session.tell("")
    session.tell('Alt-Enter, \\ at a line\'s end, or """ around it: several lines.')
    session.tell("A text that begins with // is sent with one /.")
    session.tell("Ctrl-C stops an answer and keeps what was said.")


def _system(session: "Session", rest: str) -> None:
    if rest:
        session.conversation.system = None if rest in ("none", '""') else rest
    session.tell(f"system message: {session.conversation.system or 'none'}")


def _set(session: "Session", rest: str) -> None:
    if rest:
        session.params = settings.change(session.params, rest)
        rest = rest.replace("=", " ").split()[0].lstrip("-").replace("-", "_")
        rest = settings.ALIASES.get(rest, rest)
    for shown in settings.show(session.params):
        if not rest or shown.split()[0] == rest:
            session.tell(shown)


def _regen(session: "Session", rest: str) -> None:
    if session.conversation.take_back_answer():
        session.answer(again=True)
    else:
        session.tell("nothing was asked yet")


def _undo(session: "Session", rest: str) -> None:
    session.tell("taken back" if session.conversation.undo() else "nothing to take back")
    for turn in session.conversation.turns[-1:]:
        session.tell(f"the last answer is now: {turn['content'].strip()[:70]}")


def _clear(session: "Session", rest: str) -> None:
    session.conversation.turns.clear()
    session.last = None
    session.tell("the conversation starts afresh; system message and parameters stay")


def _save(session: "Session", rest: str) -> None:
    if not rest:
        session.tell("/save FILE")
        return
    path = Path(rest).expanduser()
    session.conversation.save(path, model=session.model)
    session.tell(f"saved {len(session.conversation.turns)} messages to {path}")


def _load(session: "Session", rest: str) -> None:
    if not rest:
        session.tell("/load FILE")
        return
    session.conversation.load(Path(rest).expanduser())
    session.last = None
    session.tell(f"{len(session.conversation.turns)} messages loaded")
    for turn in session.conversation.turns[-2:]:
        session.tell(f"{turn['role']}: {turn['content'].strip()[:70]}")


def _stats(session: "Session", rest: str) -> None:
    session.tell(stats_line(session.last) if session.last else "nothing was answered yet")
    session.tell(session.context_line())


def _multiline(session: "Session", rest: str) -> None:
    session.multiline = not session.multiline
    session.tell("Enter starts a new line, Alt-Enter sends" if session.multiline else "Enter sends")


def _exit(session: "Session", rest: str) -> bool:
    return False


COMMANDS: "dict[str, Callable[[Session, str], bool | None]]" = {
    "/help": _help,
    "/?": _help,
    "/system": _system,
    "/set": _set,
    "/regen": _regen,
    "/undo": _undo,
    "/clear": _clear,
    "/save": _save,
    "/load": _load,
    "/stats": _stats,
    "/multiline": _multiline,
    "/exit": _exit,
    "/quit": _exit,
    "/bye": _exit,
}
