"""The sampling parameters of a chat, shown and changed by /set."""

import dataclasses
import math
import shlex
from typing import TYPE_CHECKING, Any

from ..errors import InvalidParameterError
from .options import SAMPLING, parse_logit_bias, unescape

if TYPE_CHECKING:
    from ..runtime.request import SamplingParams

# What people type -> the field: llama.cpp's option names, with - or _.
ALIASES = {
    flag.lstrip("-").replace("-", "_"): name
    for name, flags, _, _ in SAMPLING
    for flag in flags
    if flag.startswith("--")
}
OFF = ("none", "off", "default")
# It shows one answer, and no prompt; a schema is no word to type.
NOT_IN_A_CHAT = ("n", "best_of", "prompt_logprobs", "structured_outputs")


def show(params: "SamplingParams") -> list[str]:
    """One line a parameter; those that differ from the default are marked."""
    lines = []
    defaults = type(params)()
    for f in _fields(params):
        value, default = getattr(params, f.name), getattr(defaults, f.name)
        mark = "" if value == default else f"   (default {_text(default)})"
        lines.append(f"{f.name:24} {_text(value)}{mark}")
    return lines


def change(params: "SamplingParams", line: str) -> "SamplingParams":
    """`temperature 0.2`, `top_k=10`, `stop "END" "\\n"`, `seed none`; returns the new parameters.

    Raises InvalidParameterError for unknown names and values.
    """
    name, value = _name_and_value(line)
    names = [f.name for f in _fields(params)]
    name = ALIASES.get(name, name)
    if name not in names:
        import difflib

        near = difflib.get_close_matches(name, [*names, *ALIASES], n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else "/set shows them all"
        raise InvalidParameterError(f"no parameter {name!r}: {hint}")
    if not value:
        raise InvalidParameterError(
            f"{name} is {_text(getattr(params, name))}: /set {name} VALUE changes it"
        )
    new = getattr(type(params)(), name) if value.lower() in OFF else _parse(params, name, value)
    try:
        return dataclasses.replace(params, **{name: new})
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"{name}: {error}") from error


def _fields(params: "SamplingParams") -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(params) if f.name not in NOT_IN_A_CHAT]


def _name_and_value(line: str) -> tuple[str, str]:
    head, _, value = line.strip().partition(" ")
    if "=" in head:
        head, _, first = head.partition("=")
        value = f"{first} {value}"
    return head.lstrip("-").replace("-", "_").lower(), value.strip().removeprefix("=").strip()


def _parse(params: "SamplingParams", name: str, value: str) -> Any:
    default = getattr(type(params)(), name)
    kinds = {field: kind for field, _, kind, _ in SAMPLING}
    try:
        if isinstance(default, bool):
            return {"true": True, "on": True, "1": True, "false": False, "0": False}[value.lower()]
        if name == "logit_bias":
            return dict(parse_logit_bias(text) for text in value.split())
        if name in ("stop", "dry_sequence_breakers"):
            return [unescape(text) for text in shlex.split(value.replace("\\", "\\\\"))]
        if name in ("stop_token_ids",):
            return [int(text) for text in value.replace(",", " ").split()]
        if name in ("seed", "max_tokens") and value == "-1":
            return None
        number = kinds.get(name, float if isinstance(default, float) else int)(value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (KeyError, ValueError):
        raise InvalidParameterError(f"{name} can't be {value!r}") from None


def _text(value: Any) -> str:
    return "none" if value is None or value == [] or value == () or value == {} else repr(value)
