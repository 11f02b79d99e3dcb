"""SamplingParams: how one request wants its tokens chosen, checked field by field at the door."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from ..errors import InvalidParameterError
from .structured import StructuredOutputs

# One canonical name a setting; these spellings of others are understood by `from_dict` only.
ALIASES = {
    "temp": "temperature",
    "typ_p": "typical_p",
    "typical": "typical_p",
    "repetition_penalty": "repeat_penalty",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
}

# name -> (lowest, highest, what the numbers mean); the error message shows all three.
FLOATS: dict[str, tuple[float, float, str]] = {
    "temperature": (0.0, 100.0, "0 always takes the most likely token"),
    "top_p": (0.0, 1.0, "1 turns it off"),
    "min_p": (0.0, 1.0, "0 turns it off"),
    "typical_p": (0.0, 1.0, "1 turns it off"),
    "top_n_sigma": (-1.0, 1000.0, "0 or -1 turns it off"),
    "xtc_probability": (0.0, 1.0, "0 turns it off"),
    "xtc_threshold": (0.0, 1.0, "above 0.5 turns it off"),
    "repeat_penalty": (0.01, 100.0, "1 turns it off"),
    "presence_penalty": (-100.0, 100.0, "0 turns it off"),
    "frequency_penalty": (-100.0, 100.0, "0 turns it off"),
    "dry_multiplier": (0.0, 100.0, "0 turns DRY off"),
    "dry_base": (1.0, 100.0, "llama.cpp's default is 1.75"),
}
_INT_MAX = 2**31 - 1
INTS: dict[str, tuple[int, int, str]] = {
    "top_k": (-1, _INT_MAX, "0 or -1 turns it off"),
    "min_keep": (0, _INT_MAX, "tokens that the filters must leave"),
    "repeat_last_n": (-1, _INT_MAX, "0 turns the penalties off, -1 looks at the whole context"),
    "dry_allowed_length": (0, _INT_MAX, "repeats up to this length are free"),
    "dry_penalty_last_n": (-1, _INT_MAX, "0 turns DRY off, -1 looks at the whole context"),
}
_BANNED = -math.inf
_MOST_ANSWERS = 128  # of one request


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends. Defaults are llama.cpp's.

    The filters run in llama.cpp's order: penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p,
    XTC, temperature. The names are vLLM's where vLLM has the setting, llama.cpp's otherwise.

    Args:
        temperature: 0 takes the most likely token; higher is more random.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this.
        min_p: drop tokens less likely than this share of the most likely one.
        typical_p: locally typical sampling; 1 turns it off.
        top_n_sigma: keep logits within n standard deviations of the highest; 0 or -1 turns it off.
        xtc_probability, xtc_threshold: exclude top choices with this probability a token.
        min_keep: tokens that top-p, min-p, typical and XTC leave at least.
        repeat_penalty: divides (multiplies if negative) the logits of recent tokens. vLLM's
            `repetition_penalty` counts the whole text; set repeat_last_n=-1 for that.
        repeat_last_n: tokens (prompt included) that the three penalties look at; -1: all.
        presence_penalty, frequency_penalty: subtracted once, and once an occurrence.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers:
            the DRY penalty on repeated sequences; multiplier 0 turns it off.
        seed: the same seed gives the same tokens; None or -1 draws one and reports it.
        max_tokens: tokens to generate; None: until the context is full; 0: read the prompt only.
        stop: strings that end the text; they are never part of it.
        stop_token_ids: token ids that end the text like the model's own end tokens.
        ignore_eos: the model's end tokens are never chosen.
        logit_bias: {token id: bias from -100 to 100} or [[id, bias], ...], added to the logits;
            -100 or False: never chosen.
        logprobs: report the log-probabilities of this many most likely tokens at every position
            (of the raw logits, before any setting above); the chosen token is always among them.
        prompt_logprobs: the same for the prompt's tokens; such a prompt is run whole, never taken
            from the prefix cache.
        n: answers to give. Answer i draws with the seed + i; they share the prompt's work.
        best_of: answers to make, of which the n with the highest sum of log-probabilities are
            given, the best first; None: n. Of more than n a stream shows nothing before the end.
        skip_special_tokens: leave control tokens out of the text.
        structured_outputs: the form that the answer must have, as a StructuredOutputs or a mapping
            such as {"json": schema}, {"regex": "..."}, {"choice": [...]} or {"grammar": "..."}.
        thinking_budget: tokens of thinking after which an answer is made to begin; None: no limit.
            It applies to chats with models whose template marks thinking.

    Raises:
        InvalidParameterError: naming the field, its value and the allowed range.
        ConstraintError: the schema in structured_outputs is no JSON.

    >>> SamplingParams(temperature=0.2, stop="\\n\\n").stop
    ('\\n\\n',)
    >>> SamplingParams(max_tokens=-1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    llamba.errors.InvalidParameterError: max_tokens=-1: must be a whole number ...
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[Any, float] | Sequence[Sequence[float]] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None
    thinking_budget: int | None = None

    def __post_init__(self) -> None:
        """Check every field, and bring the flexible ones to one shape (tuples)."""

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, (low, high, meaning) in FLOATS.items():
            put(name, _number(name, getattr(self, name), low, high, meaning))
        for name, (low, high, meaning) in INTS.items():
            put(name, _integer(name, getattr(self, name), low, high, meaning))
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, getattr(self, name), "must be True or False")
        if self.seed is not None:
            meaning = "-1 or None draws one"
            seed = _integer("seed", self.seed, -1, 2**64 - 1, meaning)
            put("seed", None if seed == -1 else seed)
        if self.max_tokens is not None:
            meaning = "None generates until the context is full"
            put("max_tokens", _integer("max_tokens", self.max_tokens, 0, None, meaning))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                put(name, _integer(name, getattr(self, name), 0, 1000, "None reports none"))
        put("n", _integer("n", self.n, 1, _MOST_ANSWERS, "answers to give"))
        if self.best_of is not None:
            meaning = f"answers to make, at least the n={self.n} to give"
            put("best_of", _integer("best_of", self.best_of, self.n, _MOST_ANSWERS, meaning))
        put("stop", _strings("stop", self.stop))
        put("dry_sequence_breakers", _strings("dry_sequence_breakers", self.dry_sequence_breakers))
        put("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        put("logit_bias", _logit_bias(self.logit_bias))
        if self.structured_outputs is not None:
            put("structured_outputs", StructuredOutputs.of(self.structured_outputs))
        if self.thinking_budget is not None:
            meaning = "None does not limit the thinking"
            budget = _integer("thinking_budget", self.thinking_budget, 0, _INT_MAX, meaning)
            put("thinking_budget", budget)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """From a mapping (a config file, a request body); understands other runtimes' spellings.

        `temp`, `typ_p`, `typical`, `repetition_penalty`, `penalty_repeat` and `penalty_last_n`
        stand for the canonical names. InvalidParameterError for a name that does not exist.

        >>> SamplingParams.from_dict({"temp": 0.5, "repetition_penalty": 1.1}).repeat_penalty
        1.1
        """
        known = {f.name for f in fields(cls)}
        kwargs: dict[str, Any] = {}
        for name, value in values.items():
            canonical = ALIASES.get(name, name)
            if canonical not in known:
                import difflib

                near = difflib.get_close_matches(str(name), [*known, *ALIASES], n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise InvalidParameterError(f"{name}: no such sampling parameter{hint}")
            if canonical in kwargs:
                raise InvalidParameterError(f"{canonical}: given twice (as {name} as well)")
            kwargs[canonical] = value
        return cls(**kwargs)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidParameterError if a token id is not one of the model's (PAINS P40)."""
        for name, ids in (
            ("logit_bias", self.bias_ids),
            ("stop_token_ids", self.stop_token_ids),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise _bad(name, token_id, f"the model has the token ids 0 to {vocab_size - 1}")

    @property
    def num_sequences(self) -> int:
        """Answers to make: best_of, or n."""
        return self.n if self.best_of is None else self.best_of

    @property
    def wants_logprobs(self) -> bool:
        """The chosen tokens' log-probabilities are needed: they are reported, or rank answers."""
        return self.logprobs is not None or self.num_sequences > self.n

    @property
    def bias_ids(self) -> tuple[int, ...]:
        """The token ids that have a logit bias."""
        return tuple(int(pair[0]) for pair in self._biases)

    @property
    def bias_values(self) -> tuple[float, ...]:
        """Their biases in the same order; -inf for tokens that are never chosen."""
        return tuple(pair[1] for pair in self._biases)

    @property
    def _biases(self) -> tuple[tuple[int, float], ...]:
        return self.logit_bias or ()  # type: ignore[return-value]  # __post_init__ made it pairs


def _bad(name: str, value: object, requirement: str) -> InvalidParameterError:
    shown = repr(value)
    shown = shown if len(shown) < 80 else f"{shown[:77]}..."
    return InvalidParameterError(f"{name}={shown}: {requirement}")


def _number(name: str, value: object, low: float, high: float, meaning: str) -> float:
    """A finite number in [low, high]; bool is no number, a string is none either (PAINS P44)."""
    number: Any = value
    if isinstance(value, Real) and not isinstance(value, bool):  # NumPy's scalars are Real, too
        if low <= number <= high:  # NaN is not
            return float(number)
    raise _bad(name, value, f"must be a number from {low} to {high} ({meaning})")


def _integer(name: str, value: object, low: int, high: int | None, meaning: str) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        if low <= int(value) and (high is None or int(value) <= high):
            return int(value)
    limits = f"from {low} to {high}" if high is not None else f"of at least {low}"
    raise _bad(name, value, f"must be a whole number {limits} ({meaning})")


def _strings(name: str, value: object) -> tuple[str, ...]:
    """One string or several, none of them empty."""
    if isinstance(value, str):
        value = (value,)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or not all(isinstance(s, str) and s for s in value):
        raise _bad(name, value, "must be a string or a list of strings, none of them empty")
    return tuple(value)


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _bad(name, value, "must be a list of token ids")
    return tuple(_integer(name, i, 0, _INT_MAX, "a token id") for i in value)


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """Both of the API's shapes to ((id, bias), ...); -100 and False become -inf (PAINS P40)."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        pairs = list(value)
    else:
        raise _bad("logit_bias", value, "must be {token id: bias} or a list of [token id, bias]")
    biases: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise _bad("logit_bias", pair, "each item must be a pair [token id, bias]")
        key, bias = pair
        if isinstance(key, str) and re.fullmatch(r"[0-9]{1,10}", key):
            key = int(key)  # JSON objects' keys are strings
        token_id = _integer("logit_bias", key, 0, _INT_MAX, "a token id")
        if bias is False:
            bias = _BANNED
        elif bias != _BANNED:
            bias = _number("logit_bias", bias, -100.0, 100.0, "-100 or False: never chosen")
        total = biases.get(token_id, 0.0) + bias
        biases[token_id] = _BANNED if bias <= -100.0 or total == _BANNED else total
    return tuple(biases.items())
