"""The command `llamba`: a group that imports each command only when it is called."""

import contextlib
import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from .. import __version__
from ..errors import LlambaError, RequestError, ResourceError

# The help's groups: name -> its line in `llamba --help`. Kept here so that the help needs no
# command's imports; the module has the command's name and holds a click command called `command`.
GROUPS = {
    "Run": {
        "run": "Answer one prompt, streamed to the terminal.",
        "chat": "Talk with a model.",
        "serve": "Answer the clients of OpenAI, Anthropic and Ollama, and a chat page.",
        "embed": "Turn texts into vectors.",
        "rerank": "Sort documents by how well they fit a query.",
    },
    "Models": {
        "pull": "Fetch a model into the cache.",
        "list": "Show the models in the cache.",
        "rm": "Delete a model from the cache.",
        "show": "Show what is in a model file and what it needs.",
        "tokenize": "Show the tokens of a text.",
    },
    "Make and judge models": {
        "convert": "Make a GGUF file of a model as it is on Hugging Face.",
        "imatrix": "Collect the importance matrix that good quantization needs.",
        "quantize": "Make a model's file smaller: other types for its tensors, as llama-quantize "
        "does.",
        "split": "Divide a model's file into shards.",
        "merge": "Join the shards of a model into one file.",
        "perplexity": "Measure how well a model predicts a text, as llama-perplexity does.",
        "compare": "Compare quants with a base: perplexity, KL divergence, agreement.",
        "eval": "Answer multiple-choice questions of a file, and count the right ones.",
    },
    "This machine": {
        "bench": "Measure prefill and decode speed, as llama-bench does.",
        "doctor": "Show what llamba found on this machine, and why it is slow.",
        "kernels": "Compile ahead what models need: for an image, or for all users.",
    },
}
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}

EPILOG = """\b
MODEL is a .gguf file, a folder with one, a name from the catalogue, or hf:OWNER/REPO[:QUANT].
Shell completion: eval "$(_LLAMBA_COMPLETE=bash_source llamba)"   (or zsh_source, fish_source)
"""

# Those that may write files: to them SIGTERM and SIGHUP are what Ctrl-C is (signals.py).
WRITING = {
    *("pull", "convert", "imatrix", "quantize", "split", "merge", "perplexity", "compare", "eval"),
    *("bench", "kernels"),
}

INTERRUPTED = 130  # 128 + SIGINT
OUT_OF_MEMORY = "not enough memory: use a shorter context or prompt, or a smaller model"
BROKEN_PIPE = 141  # 128 + SIGPIPE: what a program that was told nothing would die of


class LlambaGroup(click.Group):
    """Imports commands late and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command's module is imported here and nowhere else."""
        if cmd_name not in COMMANDS:
            return None
        from .. import check_cpu

        try:
            check_cpu()
        except LlambaError as error:
            raise click.exceptions.Exit(report(error)) from None
        return importlib.import_module(f".{cmd_name}", __package__).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the near matches that click looks for only in loaded commands."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=2)
            hint = f": did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"no command {name!r}{hint}")
        if name in WRITING:
            from .signals import ended_in_order

            ctx.with_resource(ended_in_order())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, so that `--help` imports nothing."""
        width = max(map(len, COMMANDS))  # the lines of all groups begin in one column
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Wrong options of the group itself: one line as well."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            raise click.exceptions.Exit(report_usage(error)) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; every error leaves as one line on stderr and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except click.ClickException as error:
            raise click.exceptions.Exit(report_usage(error)) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except BaseException as error:
            raise click.exceptions.Exit(report(error)) from None


def report_usage(error: click.ClickException) -> int:
    """A wrong command line in one line (click's own has four); returns the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return 0
    from .console import fail

    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    fail(error.format_message().rstrip(".") + hint)
    return error.exit_code


def report(error: BaseException) -> int:
    """Tell the user about `error` in one line on stderr; returns the exit code."""
    if isinstance(error, SystemExit):
        raise error
    if os.environ.get("LLAMBA_DEBUG") and not isinstance(error, BrokenPipeError):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        return _report_end(error)
    if isinstance(error, BrokenPipeError):
        # The reader left (`| head -1`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    from .console import fail

    if isinstance(error, (RequestError, ResourceError)):
        from .flags import in_flags

        fail(in_flags(str(error)))
        return error.exit_code
    if isinstance(error, LlambaError):
        fail(str(error))
        return error.exit_code
    what = " ".join(str(error).split())
    what = f"{type(error).__name__}: {what}" if what else type(error).__name__
    hint = "" if os.environ.get("LLAMBA_DEBUG") else " (LLAMBA_DEBUG=1 shows the traceback)"
    if isinstance(error, OSError):
        if error.errno == errno.ENOMEM:
            return report(ResourceError(OUT_OF_MEMORY))
        if error.errno == errno.ENOSPC and error.filename is None:  # it has no name: stdout
            what = f"can't write the output: {error.strerror}"
            # Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        fail(f"{what}{hint}")
    elif isinstance(error, MemoryError):
        return report(ResourceError(OUT_OF_MEMORY))
    else:
        fail(f"unexpected {what}: this is a fault in llamba{hint}")
    return 1


def _report_end(error: KeyboardInterrupt) -> int:
    """Ctrl-C, or a signal that counts as one."""
    from .signals import Ended

    with contextlib.suppress(OSError):  # who read stderr may have been ended, too
        if not isinstance(error, Ended):
            click.echo(err=True)  # closes the line of the terminal's ^C
            return INTERRUPTED
        from .console import note

        note(f"stopped by {error.name}")
    return error.exit_code if isinstance(error, Ended) else INTERRUPTED


@click.group(
    cls=LlambaGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="llamba")
def cli() -> None:
    """Run local GGUF language models."""


def main() -> None:
    """The console script."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 shows ? for what it can't, instead of ending the answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        cli.main(prog_name="llamba")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:  # in the help text already
        sys.exit(report(error))


def _open_closed_streams() -> None:
    """`llamba ... >&-`: a stream that was closed becomes /dev/null.

    Python leaves None there, and the next file that is opened would get the stream's number.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))
