"""`llamba chat`: a conversation in the terminal."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import ChatTemplateError
from ..models.catalogue import DEFAULT_MODEL
from . import loading
from .answer import silent_keys
from .console import describe_sizes
from .options import (
    engine_from,
    engine_options,
    prompt_cache_option,
    sampling_options,
    sampling_values,
)
from .prompt import clean, read_stdin


@click.command("chat")
@click.argument("model", default=DEFAULT_MODEL, metavar="[MODEL]")
@click.option("-sys", "--system", metavar="TEXT", help="System message.")
@click.option(
    "--load",
    "load_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Go on with a conversation that /save wrote.",
)
@click.option("--plain", is_flag=True, help="Show the model's text as it is, not as Markdown.")
@click.option("--stats/--no-stats", help="Show speeds after every answer.")
@prompt_cache_option
@engine_options
@sampling_options
def command(
    model: str,
    system: str | None,
    load_path: Path | None,
    plain: bool,
    stats: bool,
    prompt_cache: Path | None,
    **options: Any,
) -> None:
    """Talk with a model.

    /help shows the commands. Ctrl-C stops an answer and keeps the conversation, Ctrl-D leaves.

    Without a terminal, stdin is one message; lines with a /command (such as /system, /set, /save)
    are carried out in their order and separate messages.
    """
    engine = engine_from(options)
    loading.check_prompt_cache(prompt_cache, engine)
    values = sampling_values(options)
    interactive = sys.stdin.isatty()
    text = "" if interactive else read_stdin()
    if not interactive and not text.strip():
        return  # `</dev/null`: nothing was asked, so no model is loaded
    with silent_keys():  # what is typed meanwhile waits for the prompt
        llm = loading.open_llm(model, engine)
    try:
        llm.check_generates()
        if llm.chat_template is None and not loading.has_broken_template(llm):
            raise ChatTemplateError(
                f"{model} has no chat template, so it can't chat: "
                f'llamba run {model} "some text" continues a text; --chat-template FILE or NAME '
                "gives it one"
            )
        if loading.has_broken_template(llm):
            llm.chat([{"role": "user", "content": "?"}], stream=True)  # raises what is wrong
        from .session import Session

        session = Session(
            llm,
            model,
            dataclasses.replace(llm.default_params, **values),
            system=clean(system) if system else None,
            markdown=not plain and sys.stdout.isatty(),
            stats=stats,
        )
        if load_path:
            session.conversation.load(load_path)
        with loading.prompt_cache(llm, prompt_cache):
            if interactive:
                from .repl import loop

                session.tell(f"{model}, {describe_sizes(llm.config)}. /help for help")
                loop(session)
            else:
                for entry in entries(text):
                    if not session.handle(entry):
                        break
                if session.failed:
                    raise SystemExit(1)
    finally:
        llm.close()


def entries(text: str) -> list[str]:
    """Piped input as entries: command lines, and the text between them as one message each."""
    from .slash import is_command

    found: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        if is_command(line):
            found += ["\n".join(lines), line]
            lines = []
        else:
            lines.append(line)
    found.append("\n".join(lines))
    return [entry for entry in found if entry.strip()]
