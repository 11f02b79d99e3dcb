"""The options that `run` and `chat` share, under the names that llama.cpp's users know."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import InvalidParameterError
from .lora import lora_from, lora_option
from .machine_options import machine_from, machine_options

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class EngineOptions:
    """What the engine is told; None leaves its default."""

    num_threads: int | None = None
    context_length: int | None = None
    activations: str | None = None
    chat_template: str | None = None
    cache_type: str | None = None
    kv_tokens: int | None = None
    prefix_cache: bool | None = None
    deterministic: bool | None = None
    memory_limit: int | None = None
    mmap: bool | None = None
    mlock: bool | None = None
    nice: int | None = None
    background: bool | None = None
    lora: list[tuple[str, float]] | None = None
    device: str | None = None
    gpu_layers: int | str | None = None

    def given(self) -> dict[str, Any]:
        """The fields that the user set, as keyword arguments of LLM."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


# (field of SamplingParams, flags, type, help with llama.cpp's default). The defaults themselves
# live in SamplingParams: an option that is not given is not passed. A test compares the texts.
SAMPLING: tuple[tuple[str, tuple[str, ...], Any, str], ...] = (
    ("temperature", ("--temp", "--temperature"), float, "0 takes the likeliest token [0.8]"),
    ("top_k", ("--top-k",), int, "keep the K likeliest tokens; 0 = off [40]"),
    ("top_p", ("--top-p",), float, "keep the tokens that make up P; 1 = off [0.95]"),
    ("min_p", ("--min-p",), float, "drop tokens under P of the likeliest; 0 = off [0.05]"),
    ("typical_p", ("--typical", "--typical-p"), float, "locally typical; 1 = off [1.0]"),
    ("top_n_sigma", ("--top-nsigma", "--top-n-sigma"), float, "-1 = off [-1.0]"),
    ("repeat_penalty", ("--repeat-penalty",), float, "1 = off [1.0]"),
    ("repeat_last_n", ("--repeat-last-n",), int, "0 = off, -1 = all of the context [64]"),
    ("presence_penalty", ("--presence-penalty",), float, "0 = off [0.0]"),
    ("frequency_penalty", ("--frequency-penalty",), float, "0 = off [0.0]"),
    ("dry_multiplier", ("--dry-multiplier",), float, "DRY, against repeats; 0 = off [0.0]"),
    ("dry_base", ("--dry-base",), float, "[1.75]"),
    ("dry_allowed_length", ("--dry-allowed-length",), int, "[2]"),
    ("dry_penalty_last_n", ("--dry-penalty-last-n",), int, "0 = off, -1 = context [64]"),
    ("xtc_probability", ("--xtc-probability",), float, "0 = off [0.0]"),
    ("xtc_threshold", ("--xtc-threshold",), float, "over 0.5 = off [0.1]"),
    ("seed", ("-s", "--seed"), int, "-1 = another one each time [-1]"),
    ("max_tokens", ("-n", "--max-tokens", "--n-predict"), int, "-1 = up to the context [-1]"),
)


def sampling_options(command: _F) -> _F:
    """Adds the sampling options; the command gets them as **sampling for `sampling_params`."""
    lists: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
        (
            ("-r", "--stop", "--reverse-prompt"),
            "stop",
            "TEXT",
            "stop before this text; \\n is a line end; repeatable",
        ),
        (("-l", "--logit-bias"), "logit_bias", "ID(+/-)BIAS", "such as 15043+1 or 15043-inf"),
        (
            ("--dry-sequence-breaker",),
            "dry_sequence_breakers",
            "TEXT",
            "what ends a repeat for DRY, or none",
        ),
    )
    command = click.option(
        "--ignore-eos", is_flag=True, default=None, help="Go on after the model's end of answer."
    )(command)
    for flags, name, metavar, text in reversed(lists):
        command = click.option(*flags, name, multiple=True, metavar=metavar, help=text)(command)
    for name, flags, kind, text in reversed(SAMPLING):
        command = click.option(*flags, name, type=kind, help=text)(command)
    return command


def engine_options(command: _F) -> _F:
    """Adds the options about the model as a whole; `engine_from` takes them out again."""
    for option in reversed(
        (
            click.option("-t", "--threads", type=int, help="[the physical cores we may use]"),
            click.option(
                "-c",
                "--ctx-size",
                "--context-length",
                type=int,
                help="Tokens of context, prompt and answer together [the model's, up to 8192].",
            ),
            click.option(
                "--activations",
                type=click.Choice(["int8", "float32"]),
                help="float32 is exact and slow [int8]",
            ),
            click.option(
                "--chat-template",
                metavar="FILE|NAME|TEXT",
                help="Instead of the model's own: a file with a Jinja template, a built-in one "
                "such as chatml or llama3, or the template itself.",
            ),
            click.option(
                "--chat-template-file", type=click.Path(exists=True, dir_okay=False, path_type=Path)
            ),
            lora_option,
        )
    ):
        command = option(command)
    return cache_options(machine_options(command))


def cache_options(command: _F) -> _F:
    """Adds the options about the KV cache; `cache_from` takes them out again."""
    for option in reversed(
        (
            click.option(
                "--cache-type",
                type=click.Choice(["f16", "f32", "q8_0"]),
                help="How KV pages are kept; q8_0 takes half the memory [f16].",
            ),
            click.option(
                "--kv-tokens",
                type=int,
                metavar="N",
                help="Positions of all KV pages together [1 to 2 contexts, as memory allows].",
            ),
            click.option(
                "--no-prefix-cache",
                is_flag=True,
                default=None,
                help="Run every prompt whole, also what was run before.",
            ),
            click.option(
                "--deterministic",
                is_flag=True,
                default=None,
                help="The same tokens whatever else runs, cached or not; slower.",
            ),
        )
    ):
        command = option(command)
    return command


# Sequences that run at once: for commands that run several. llama.cpp's name; vLLM's is
# --max-num-seqs.
parallel_option = click.option(
    "-np",
    "--parallel",
    "--max-sequences",
    "max_sequences",
    type=int,
    metavar="N",
    help="Sequences that run at once; the others wait [16].",
)

prompt_cache_option = click.option(
    "--prompt-cache",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Start with the KV pages saved in FILE, if it exists, and save them there at the end.",
)


def constraint_options(command: _F) -> _F:
    """Adds the options about the form of the answer; `constraint_from` takes them out again."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for flags, kind, metavar, text in reversed(
        (
            (("-j", "--json-schema"), str, "SCHEMA", "Answer in JSON of this schema; {} is any."),
            (("-jf", "--json-schema-file"), file, "FILE", "The same, the schema from a file."),
            (("--grammar",), str, "GRAMMAR", "Answer in the language of this GBNF grammar."),
            (("--grammar-file",), file, "FILE", "The same, the grammar from a file."),
        )
    ):
        command = click.option(*flags, type=kind, metavar=metavar, help=text)(command)
    return command


def constraint_from(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the form of the answer out, as fields of SamplingParams ({}: it is free)."""
    given: dict[str, tuple[str, str]] = {}  # flag -> (field of StructuredOutputs, text)
    for name, kind in (("json_schema", "json"), ("grammar", "grammar")):
        text, file = options.pop(name), options.pop(f"{name}_file")
        flag = f"--{name.replace('_', '-')}"
        if text is not None:
            given[flag] = kind, text
        if file is not None:
            given[f"{flag}-file"] = kind, _read_text(file, f"{flag}-file", "a text file")
    if len(given) > 1:
        raise InvalidParameterError(f"{' and '.join(given)}: give one of them")
    return {"structured_outputs": dict(given.values())} if given else {}


def engine_from(options: dict[str, Any]) -> EngineOptions:
    """Takes the engine's options out of a command's keyword arguments."""
    template, file = options.pop("chat_template"), options.pop("chat_template_file")
    if file is not None:
        if template is not None:
            raise InvalidParameterError(
                "--chat-template and --chat-template-file: give one of them"
            )
        template = _read_text(file, "--chat-template-file", "a file with a Jinja template")
    return EngineOptions(
        num_threads=options.pop("threads"),
        context_length=options.pop("ctx_size"),
        activations=options.pop("activations"),
        chat_template=template,
        lora=lora_from(options.pop("lora", ())),
        **cache_from(options),
        **machine_from(options),
    )


def cache_from(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the options about the KV cache out, as fields of EngineOptions."""
    return {
        "cache_type": options.pop("cache_type"),
        "kv_tokens": options.pop("kv_tokens"),
        "prefix_cache": False if options.pop("no_prefix_cache") else None,
        "deterministic": options.pop("deterministic"),
    }


def _read_text(file: Path, flag: str, wanted: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror
        raise InvalidParameterError(f"{flag} {file}: {why}; give {wanted}") from error


def sampling_values(options: dict[str, Any]) -> dict[str, Any]:
    """The given options as SamplingParams' fields: -1 is None, texts unescaped, biases parsed.

    They replace fields of the model's own defaults. Raises InvalidParameterError, before a model is
    loaded.
    """
    from ..runtime.params import SamplingParams

    values = _parsed(options)
    SamplingParams(**values)
    return values


def _parsed(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in ("seed", "max_tokens"):
        if given.get(name) == -1:
            del given[name]
    if "stop" in given:
        given["stop"] = [unescape(text) for text in given["stop"]]
    if "dry_sequence_breakers" in given:
        texts = given["dry_sequence_breakers"]
        given["dry_sequence_breakers"] = (
            [] if texts == ("none",) else [unescape(text) for text in texts]
        )
    if "logit_bias" in given:
        given["logit_bias"] = dict(parse_logit_bias(text) for text in given["logit_bias"])
    return given


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "'": "'"}


def unescape(text: str) -> str:
    r"""`\n`, `\t`, `\r`, `\\` and quotes as in llama.cpp; other backslashes stay."""
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text, flags=re.DOTALL)


def parse_logit_bias(text: str) -> tuple[int, float]:
    """`15043+1`, `15043-1`, `15043-inf`, and `15043=-1` or `15043=false` (never sampled)."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:[=:]\s*([^\s].*)|([+-].+))\s*", text)
    try:
        if match is None:
            raise ValueError
        value = match[2] or match[3]
        bias = -math.inf if value == "false" else float(value)
        if math.isnan(bias):
            raise ValueError
    except ValueError:
        raise InvalidParameterError(
            f"--logit-bias {text!r}: write TOKEN_ID+BIAS or TOKEN_ID-BIAS, such as 15043+1 or "
            "15043-inf"
        ) from None
    return int(match[1]), bias
