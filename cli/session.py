"""A chat under way: the model, the conversation, the parameters, and how answers are shown."""

import dataclasses
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import click

from ..errors import ContextLengthError, LlambaError
from . import slash
from .answer import Answer, Interrupt, collect, silent_keys, stats_line
from .console import fail, has_color, note
from .conversation import Conversation
from .flags import in_flags
from .main import report
from .thoughts import Thoughts

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.request import SamplingParams


class Writer(Protocol):
    """Where an answer goes while it comes."""

    def write(self, text: str, /) -> object: ...

    def think(self, text: str, /) -> object: ...


class PlainWriter:
    """The answer as it is, at once; the thinking before it on terminals only, and dimmed."""

    def __init__(self) -> None:
        self._thinks = False

    def write(self, text: str, /) -> None:
        """Piece by piece."""
        if self._thinks and text:
            text, self._thinks = f"\n\n{text}", False
        sys.stdout.write(text)
        sys.stdout.flush()

    def think(self, text: str, /) -> None:
        """A piece of the model's thinking."""
        if sys.stdout.isatty():
            self._thinks = True
            plain = "NO_COLOR" in os.environ
            sys.stdout.write(text if plain else click.style(text, dim=True))
            sys.stdout.flush()


class Session:
    """One conversation with one model; used by the terminal loop and by piped input alike."""

    def __init__(
        self,
        llm: "LLM",
        model: str,
        params: "SamplingParams",
        *,
        system: str | None = None,
        markdown: bool = False,
        stats: bool = False,
    ) -> None:
        self.llm = llm
        self.model = model
        self.params = params
        self.conversation = Conversation(system)
        self.markdown = markdown
        self.stats = stats
        self.multiline = False
        self.last: Answer | None = None
        self.num_again = 0
        self.failed = False
        self._before: list[dict[str, str]] = []

    def tell(self, text: str) -> None:
        """What the program itself says (not the model)."""
        click.echo(click.style(text, dim=True) if has_color() else text, err=True)

    def handle(self, text: str) -> bool:
        """One entry, a command or a message; False ends the session. An error never does."""
        text = text.strip("\n")
        if not text.strip():
            return True
        self._before = list(self.conversation.turns)
        try:
            if slash.is_command(text):
                return slash.execute(self, text)
            if slash.is_unknown(text):
                self.tell(slash.unknown(text))
                return True
            self.conversation.say(text[1:] if text.startswith("//") else text)
            self.answer()
        except ContextLengthError as error:
            self.failed = True
            fail(in_flags(str(error), sampling=False))
            self.tell(
                "The context is full. /clear starts afresh, /undo takes back a turn, /save FILE "
                "keeps it all; -c/--ctx-size gives a longer context at the next start."
            )
        except LlambaError as error:
            self.failed = True
            fail(str(error))
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            self.tell("\n[stopped; the question is taken back]")
        except Exception as error:  # a fault of ours must not cost the user the conversation
            self.failed = True
            report(error)
        return True

    def answer(self, *, again: bool = False) -> None:
        """Generates the next answer and shows it; Ctrl-C keeps what there is.

        Without a word of an answer, whatever the cause, the conversation is as it was before:
        templates insist on turns that alternate.
        """
        params = self.params
        self.num_again = self.num_again + 1 if again else 0
        if self.num_again and params.seed is not None:  # the same seed would say the same again
            params = dataclasses.replace(params, seed=params.seed + self.num_again)
        writer = PlainWriter()
        with Interrupt() as interrupt, silent_keys():
            shown: list[str] = []

            def write(text: str) -> None:
                shown.append(text)
                target.write(text)

            try:
                stream = self.llm.chat(self.conversation.messages, params, stream=True)
                with self._screen(writer) as target:
                    thoughts = Thoughts(self.llm, target.think)
                    answer = collect(stream, write, interrupt, thoughts)
            finally:
                if shown:
                    self.conversation.answered("".join(shown))
                else:
                    self.conversation.turns[:] = self._before
        self.last = answer
        unended = answer.text or (answer.thinking and sys.stdout.isatty())
        if not self.markdown and unended and not answer.text.endswith("\n"):
            click.echo()
        if answer.finish_reason == "abort":
            self.tell("[stopped]")
        elif not answer.text and answer.thinking:
            self.tell("[the model thought and said nothing; the question is taken back]")
        elif not answer.text:
            self.tell("[the model had nothing to say; the question is taken back]")
        elif answer.finish_reason == "length":
            self.tell(
                "[cut: the context is full; /clear starts afresh, /undo takes back a turn]"
                if self.num_used >= self.llm.config.max_sequence_length
                else "[cut at max_tokens]"
            )
        if self.stats:
            note(stats_line(answer))

    def _screen(self, plain: PlainWriter) -> AbstractContextManager[Writer]:
        if not self.markdown:
            return nullcontext(plain)
        from rich.console import Console

        from .markdown import MarkdownStream

        return MarkdownStream(Console())

    @property
    def num_used(self) -> int:
        """Tokens of context that the last turn used."""
        return self.last.num_prompt_tokens + len(self.last.token_ids) if self.last else 0

    def context_line(self) -> str:
        """How full the context is."""
        total = self.llm.config.max_sequence_length
        return f"context: {self.num_used} of {total} tokens used"
