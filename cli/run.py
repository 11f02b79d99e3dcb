"""`llamba run`: one prompt, one answer."""

import dataclasses
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import loading
from .answer import Answer, Interrupt, collect, stats_line
from .console import describe_sizes, has_color, note, print_json, show_warnings
from .main import INTERRUPTED
from .options import (
    constraint_from,
    constraint_options,
    engine_from,
    engine_options,
    prompt_cache_option,
    sampling_options,
    sampling_values,
)
from .prompt import assemble, split
from .thoughts import Thoughts

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.params import SamplingParams


@click.command("run")
@click.argument("arguments", nargs=-1, metavar="[MODEL] PROMPT...")
@click.option("-m", "--model", metavar="MODEL", help="Then all arguments are the prompt.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Append a file to the prompt; repeatable.",
)
@click.option("-sys", "--system", metavar="TEXT", help="System message.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without a chat template.")
@click.option("--stats/--no-stats", help="Show speeds on stderr.")
@click.option("-v", "--verbose", is_flag=True, help="Show the model and speeds on stderr.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, when the answer is done.")
@prompt_cache_option
@engine_options
@sampling_options
@constraint_options
def command(
    arguments: tuple[str, ...],
    model: str | None,
    files: tuple[Path, ...],
    system: str | None,
    raw: bool,
    stats: bool,
    verbose: bool,
    as_json: bool,
    prompt_cache: Path | None,
    **options: Any,
) -> None:
    """Answer one prompt, streamed to the terminal.

    \b
      llamba run "Why is the sky blue?"
      llamba run smollm2 "Hi"          llamba run hf:owner/repo:Q4_K_M "Hi"
      llamba run ./model.gguf "Hi"     git diff | llamba run "Describe this change:"

    The first argument is MODEL when it is a .gguf path, a folder with one, hf:..., or a name from
    `llamba list`; or when exactly one quoted prompt follows it. Everything else is the prompt, for
    the default model smollm2. -m says it outright.

    The prompt is followed by the files of -f and by what comes through a pipe; `-` waits for stdin.
    Only the answer goes to stdout.
    """
    started = time.monotonic()
    engine = engine_from(options)
    loading.check_prompt_cache(prompt_cache, engine)
    question = split(arguments, model)
    form = constraint_from(options)
    values = sampling_values(options | form)
    nothing = not question.text.strip() and not files
    # With nothing to say yet, the prompt (or the error) comes first; else stdin gets the load time.
    prompt = assemble(question, files, started=started, raw=raw) if nothing else None
    show_warnings(details=verbose)
    with (
        closing(loading.open_llm(question.model, engine)) as llm,
        loading.prompt_cache(llm, prompt_cache),
    ):
        if prompt is None:
            prompt = assemble(question, files, started=started, raw=raw)
        if verbose:
            note(f"model {question.model}, {describe_sizes(llm.config)}")
        raw = raw or _has_no_template(llm, question.model)
        if raw and system:
            note("--system is left out: without a chat template there is no system message")
        params = dataclasses.replace(llm.default_params, **values)
        answer = _ask(llm, prompt, params, system=system, raw=raw, quiet=as_json)
        if as_json:
            print_json(_as_json(answer, question.model))
        elif answer.text and not answer.text.endswith("\n"):
            click.echo()
        if stats or verbose:
            note(stats_line(answer))
        limit = llm.config.max_sequence_length
        full = answer.num_prompt_tokens + len(answer.token_ids) >= limit
        if answer.finish_reason == "length" and full:
            flag = "-c" if limit == llm.context_length else "--kv-tokens"
            note(
                f"the answer was cut: the context of {limit} tokens is full ({flag} makes it "
                "longer, -n limits answers)"
            )
    if answer.finish_reason == "abort":
        raise SystemExit(INTERRUPTED)


def _has_no_template(llm: "LLM", model: str) -> bool:
    """Whether the prompt must be continued as it is, which is said; not for a broken template."""
    if llm.chat_template is not None or loading.has_broken_template(llm):
        return False
    note(f"{model} has no chat template: it continues the prompt as it is (--raw)")
    return True


def _ask(
    llm: "LLM",
    prompt: str,
    params: "SamplingParams",
    *,
    system: str | None,
    raw: bool,
    quiet: bool,
) -> Answer:
    """The answer, written to stdout while it comes unless `quiet`."""

    def write(text: str) -> None:
        if not quiet:
            sys.stdout.write(text)
            sys.stdout.flush()

    def think(text: str) -> None:
        """Thinking is no part of the answer: people see it come, programs don't."""
        if sys.stderr.isatty() and not quiet:
            click.echo(click.style(text, dim=True) if has_color() else text, nl=False, err=True)

    with Interrupt() as interrupt:
        if raw:
            stream = llm.generate(prompt, params, stream=True)
        else:
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": prompt})
            stream = llm.chat(messages, params, stream=True)
        thoughts = None if raw else Thoughts(llm, think)
        return collect(stream, write, interrupt, thoughts)


def _as_json(answer: Answer, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "text": answer.text,
        "thinking": answer.thinking,
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        "num_prompt_tokens": answer.num_prompt_tokens,
        "num_tokens": len(answer.token_ids),
        "token_ids": answer.token_ids,
        "timings": answer.timings,
    }
