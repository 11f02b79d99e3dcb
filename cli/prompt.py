"""What `llamba run` was asked: which argument is the model, and where the prompt comes from."""

import os
import re
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelNotFoundError, RequestError
from ..models.catalogue import CATALOGUE, DEFAULT_MODEL
from .console import note

# How long a pipe that came with a prompt may stay silent before we go on without it, counted
# from the start: a forgotten open pipe (a service, a container) must not hang the command.
PIPE_PATIENCE = 1.0


@dataclass(frozen=True)
class Question:
    """The model's name, the prompt's words, and whether `-` asked for stdin."""

    model: str
    text: str
    stdin: bool


def known_names() -> list[str]:
    """Names that need no path: the catalogue's and the store's."""
    from ..errors import ModelError
    from ..models import store

    names = dict.fromkeys(CATALOGUE)
    with suppress(ModelError):  # no home folder, hence no store
        names.update((model.name, None) for model in store.list_models())
    return list(names)


def is_model(argument: str) -> bool:
    """Whether an argument is a model: hf:..., a .gguf path, a folder with one, a known name."""
    if argument.startswith("hf:") or argument.lower().endswith(".gguf"):
        return "\n" not in argument
    if re.match(r"(https?://)?(www\.)?(hf\.co|huggingface\.co)/\S+$", argument):
        return True
    if not argument or any(c.isspace() for c in argument):
        return False
    if os.path.isdir(argument) and (os.sep in argument or _holds_a_model(Path(argument))):
        return True
    return argument in CATALOGUE or argument in known_names()


def _holds_a_model(folder: Path) -> bool:
    """Whether a folder, named by one word, is meant as the model, also where it isn't GGUF yet."""
    with suppress(OSError):
        return any(
            path.suffix.lower() == ".gguf" or path.name == "config.json"
            for path in folder.iterdir()
        )
    return False


def split(arguments: Sequence[str], model: str | None) -> Question:
    """Tell MODEL from PROMPT.

    The first argument is the model if it is one (`is_model`), or if exactly one more follows that
    is quoted (has a space): then an unknown name raises ModelNotFoundError, because
    `llamba run mistral "Why is ..."` must not quietly ask another model about "mistral". All else
    is the prompt, for the default model. With -m/--model all arguments are the prompt.
    """
    words = [clean(argument) for argument in arguments]
    if model is None and words and words[0] != "-":
        if is_model(words[0]):
            model, words = words[0], words[1:]
        elif len(words) == 2 and " " not in words[0].strip() and " " in words[1].strip():
            import difflib

            near = difflib.get_close_matches(words[0], known_names(), n=3, cutoff=0.5)
            raise ModelNotFoundError(
                f"no model {words[0]!r}"
                + (f" (near: {', '.join(near)})" if near else "")
                + "; `llamba list` shows the names; quote the whole prompt if it is not a model"
            )
    text = " ".join(word for word in words if word != "-")
    return Question(model or DEFAULT_MODEL, text, "-" in words)


def clean(text: str) -> str:
    """Arguments that are not UTF-8 arrive as lone surrogates, which no tokenizer takes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_files(paths: Sequence[Path]) -> list[str]:
    """The files' texts; `-` is not special here."""
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


def read_stdin() -> str:
    """All of stdin, undecodable bytes shown as U+FFFD."""
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        return sys.stdin.read()
    return stream.read().decode("utf-8-sig", "replace")


def assemble(
    question: Question, files: Sequence[Path], *, started: float, raw: bool = False
) -> str:
    """The whole prompt: the words, the files, stdin, with an empty line between.

    Stdin is read when `-` asks for it, when there is nothing else, or when something is piped in.
    Raises RequestError when nothing is left to answer.
    """
    parts = [question.text, *read_files(files)]
    alone = not any(part.strip() for part in parts)
    if question.stdin or (not sys.stdin.isatty() and (alone or _has_input(started))):
        parts.append(read_stdin())
    if len([p for p in parts if p]) > 1:
        parts = [part.strip("\n") for part in parts]
    text = "\n\n".join(part for part in parts if part)
    if not raw:
        text = text.strip("\n")
    if not text.strip():
        raise RequestError(
            f'no prompt: llamba run {question.model} "your question"; for a conversation: '
            f"llamba chat {question.model}"
        )
    return text


def _has_input(started: float) -> bool:
    """Whether a redirected stdin belongs to the prompt: a file, or a pipe that somebody writes."""
    try:
        fd = sys.stdin.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):  # closed, or not a real file (a test's)
        return not sys.stdin.closed
    if stat.S_ISREG(mode):
        return True
    if not stat.S_ISFIFO(mode):
        return False
    if os.name == "nt":
        return True
    import select

    wait = max(0.0, started + PIPE_PATIENCE - time.monotonic())
    if select.select([fd], [], [], wait)[0]:
        return True
    note("nothing came through the pipe on stdin: going on without it (- waits for it)")
    return False
