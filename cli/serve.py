"""`llamba serve`: a server for the clients of OpenAI, Anthropic and Ollama, and a page to chat."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import InvalidParameterError, LlambaError
from . import loading
from .console import note, warn
from .environment import EnvironmentCommand
from .lora import lora_of_models
from .options import engine_from, engine_options, parallel_option
from .progress import progress
from .units import SIZE, TIME, Time

if TYPE_CHECKING:
    from .server.settings import ServerSettings

_F = TypeVar("_F", bound=Callable[..., Any])

MISSING = "llamba serve needs: pip install 'llamba[server]'"
DEFAULT_MODEL = "smollm2"  # when none is named and the cache is empty


def _network(command: _F) -> _F:
    files = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in reversed(
        (
            click.option(
                "--host", default="127.0.0.1", show_default=True, help="Address to listen at."
            ),
            click.option(
                "--port", type=int, default=8080, show_default=True, help="0 takes a free one."
            ),
            click.option(
                "--api-key",
                "api_keys",
                multiple=True,
                metavar="KEY",
                help="Ask for this key; repeatable. LLAMBA_API_KEY does the same, unseen by `ps`.",
            ),
            click.option(
                "--api-key-file", type=files, help="Keys, one a line; # begins a comment."
            ),
            click.option("--tls-cert", "--ssl-cert-file", type=files, help="Certificate (PEM)."),
            click.option("--tls-key", "--ssl-key-file", type=files, help="Its key (PEM)."),
            click.option(
                "--allow-host",
                "allowed_hosts",
                multiple=True,
                metavar="NAME",
                help="A name that the server is reached by; *.example.com, or * for any. "
                "Repeatable.",
            ),
            click.option(
                "--allow-origin",
                "allowed_origins",
                multiple=True,
                metavar="URL",
                help="A web page that may ask, such as https://chat.example.com; * for any. "
                "Repeatable.",
            ),
        )
    ):
        command = option(command)
    return command


def _limits(command: _F) -> _F:
    for option in reversed(
        (
            click.option(
                "--keep-alive",
                type=TIME,
                default="30m",
                show_default=True,
                help="How long a model stays in memory unused; never keeps it, 0 does not.",
            ),
            click.option(
                "--max-queue",
                type=int,
                metavar="N",
                default=64,
                show_default=True,
                help="Requests that may wait; more are told to come again.",
            ),
            click.option(
                "--timeout",
                type=Time(can_be_zero=False),
                default="10m",
                show_default=True,
                help="Longest time of a request; then it ends with what there is. never: no limit.",
            ),
            click.option(
                "--max-body", type=SIZE, default="16M", show_default=True, help="Of one request."
            ),
            click.option(
                "--shutdown-grace",
                type=TIME,
                default="30s",
                show_default=True,
                help="Time that answers get to finish after SIGTERM or Ctrl-C.",
            ),
        )
    ):
        command = option(command)
    return command


def _behaviour(command: _F) -> _F:
    for option in reversed(
        (
            click.option(
                "--strict", is_flag=True, help="Refuse requests with fields that are not known."
            ),
            click.option(
                "--merge-roles",
                is_flag=True,
                help="Join neighbouring messages of one role, for templates that want turns.",
            ),
            click.option("--no-web", is_flag=True, help="No chat page at /."),
            click.option(
                "--log-file",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Append the log to FILE instead of stderr.",
            ),
            click.option("--no-access-log", is_flag=True, help="No line for each request."),
        )
    ):
        command = option(command)
    return command


@click.command("serve", cls=EnvironmentCommand)
@click.argument("models", nargs=-1, metavar="[MODEL...]", envvar="LLAMBA_SERVE_MODELS")
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="NAME=MODEL",
    help="Another name of a model, such as gpt-4o=smollm2; repeatable.",
)
@_network
@parallel_option
@engine_options
@_limits
@_behaviour
def command(**options: Any) -> None:
    """Serve models to other programs, and a chat page at http://127.0.0.1:8080.

    \b
      llamba serve                        every model of `llamba list`, each loaded when asked for;
                                          with none there: smollm2, which is fetched
      llamba serve smollm2                one model, loaded at the start
      llamba serve small=./a.gguf hf:owner/repo:Q4_K_M      under a name of your own
      llamba serve small=./a.gguf other=./b.gguf --lora small=./sql.gguf:0.5
                                          with a LoRA adapter; requests may choose others' scales

    \b
    Clients of OpenAI use     http://127.0.0.1:8080/v1
    Clients of Anthropic use  http://127.0.0.1:8080
    Clients of Ollama use     http://127.0.0.1:8080

    Only this machine can reach it unless --host says otherwise; think of --api-key then. SIGTERM
    or Ctrl-C lets answers finish; a second Ctrl-C does not.

    Every option can be given as a variable: LLAMBA_SERVE_PORT=8081, LLAMBA_SERVE_NO_WEB=1; those
    that are repeatable, and the models, with spaces between: LLAMBA_SERVE_ALLOW_HOST="a b",
    LLAMBA_SERVE_MODELS="smollm2 small=./a.gguf". The command line comes first. Other variables
    that begin with LLAMBA_SERVE_ are an error.
    """
    try:
        from .server.run_server import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("llamba"):
            raise
        raise LlambaError(MISSING) from None
    settings = settings_from(options)
    names = ", ".join(settings.models) or "models"
    with progress(names, bars=False) as update:  # a bar would stand among the log's lines
        code = run(settings, progress=update, say=note, warn=warn)
    raise SystemExit(code)


def settings_from(options: dict[str, Any]) -> "ServerSettings":
    """The command line's options as settings; models that are not here yet are fetched."""
    from .server.api_keys import read_keys
    from .server.settings import ServerSettings

    parallel, lora = options.pop("max_sequences"), options.pop("lora")
    engine = engine_from(options).given()
    memory_limit = engine.pop("memory_limit", None)  # of all models together
    if parallel is not None:
        engine["max_sequences"] = parallel
    keys = [*options["api_keys"], *_key_of_environment()]
    if not all(key.strip() for key in keys):
        raise InvalidParameterError("--api-key '': an empty key would let everybody in")
    if options["api_key_file"] is not None:
        keys += read_keys(options["api_key_file"])
    settings = ServerSettings(
        host=options["host"],
        port=options["port"],
        allowed_hosts=options["allowed_hosts"],
        allowed_origins=options["allowed_origins"],
        api_keys=tuple(keys),
        tls_cert=options["tls_cert"],
        tls_key=options["tls_key"],
        aliases=dict(_pair("--alias", text) for text in options["aliases"]),
        engine=engine,
        idle_unload_s=_seconds(options["keep_alive"]),
        memory_limit=memory_limit,
        max_queue=options["max_queue"],
        request_timeout_s=_seconds(options["timeout"]),
        max_body_bytes=options["max_body"],
        shutdown_grace_s=options["shutdown_grace"],
        strict=options["strict"],
        merge_roles=options["merge_roles"],
        web=not options["no_web"],
        log_file=options["log_file"],
        access_log=not options["no_access_log"],
    )
    import dataclasses

    # Only now: fetching takes long for an error after it.
    models = find_models(options["models"])
    return dataclasses.replace(settings, models=models, lora=lora_of_models(lora, models))


def find_models(given: Iterable[str]) -> dict[str, str]:
    """NAME -> path of MODEL and NAME=MODEL arguments; what is not on this disk is fetched.

    {}: the models of the cache, whatever they will be.
    """
    from ..models import store

    given = list(given)
    if not given and not store.list_models():
        given = [DEFAULT_MODEL]
        note(f"no model is named, and the cache has none: fetching {DEFAULT_MODEL} to serve it")
    models: dict[str, str] = {}
    for text in given:
        name, model = _name_and_model(text)
        if name in models:
            raise InvalidParameterError(
                f"{name}: two models of this name; NAME=MODEL gives one of them another"
            )
        models[name] = os.fspath(loading.find(model).absolute())
    return models


def _name_and_model(text: str) -> tuple[str, str]:
    """The name for requests: as given, else a file's without its folder and suffix."""
    name, equals, model = text.partition("=")
    if equals and "/" not in name and not os.path.lexists(text):
        return _pair("MODEL", text)
    path = Path(text)
    is_path = path.suffix == ".gguf" or path.is_dir() or text.startswith(("/", ".", "~"))
    return (path.expanduser().resolve().name.removesuffix(".gguf") if is_path else text), text


def _pair(what: str, text: str) -> tuple[str, str]:
    name, equals, model = text.partition("=")
    if not (equals and name.strip() and model.strip()):
        raise InvalidParameterError(f"{what} {text!r}: write NAME=MODEL")
    return name.strip(), model.strip()


def _key_of_environment() -> list[str]:
    """LLAMBA_API_KEY may hold several, with commas between."""
    text = os.environ.get("LLAMBA_API_KEY")
    if text is None:
        return []
    keys = [key.strip() for key in text.split(",") if key.strip()]
    if not keys:  # somebody meant to have one
        raise InvalidParameterError("LLAMBA_API_KEY holds no key: give it one, or unset it")
    return keys


def _seconds(value: float) -> float | None:
    return None if value == float("inf") else value
