"""SamplingParams: every field is checked at the door (PAINS P35, P40, P44)."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidParameterError
from llamba.runtime.params import SamplingParams

BAD_NUMBERS = [-(2**31), 2**63, 10**400, 1e308, math.nan, math.inf, -math.inf, "1", True, [], {}]
NUMBERS = [
    f.name
    for f in fields(SamplingParams)
    if isinstance(f.default, int | float) and not isinstance(f.default, bool)
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in (*NUMBERS, "max_tokens", "logprobs", "prompt_logprobs", "best_of", "seed")
        for value in BAD_NUMBERS
        # A large limit is clamped to the context, a seed has 64 bits.
        if name not in ("max_tokens", "seed") or value not in (2**63, 10**400)
    ],
    ids=repr,
)
def test_bad_numbers(name: str, value: Any) -> None:
    """P44: refused with the field's name, the value and the range."""
    with pytest.raises(InvalidParameterError) as error:
        SamplingParams(**{name: value})
    assert str(error.value).startswith(f"{name}={repr(value)[:40]}") and "must be" in str(
        error.value
    )


OPTIONAL = ["max_tokens", "logprobs", "prompt_logprobs", "best_of", "stop", "logit_bias", "seed"]


@pytest.mark.parametrize("name", [*NUMBERS, *OPTIONAL])
def test_none_is_for_optional_fields_only(name: str) -> None:
    none: dict[str, Any] = {name: None}
    if name in NUMBERS:
        with pytest.raises(InvalidParameterError):
            SamplingParams(**none)
    else:
        SamplingParams(**none)


def test_several_answers() -> None:
    assert SamplingParams(n=3).num_sequences == 3 and not SamplingParams(n=3).wants_logprobs
    best = SamplingParams(n=2, best_of=4)
    assert best.num_sequences == 4 and best.wants_logprobs
    assert not SamplingParams(n=2, best_of=2).wants_logprobs
    with pytest.raises(InvalidParameterError, match="best_of=1: .*at least the n=2"):
        SamplingParams(n=2, best_of=1)
    wrong: list[dict[str, Any]] = [{"n": 0}, {"n": 129}, {"best_of": 129}]
    for bad in wrong:
        with pytest.raises(InvalidParameterError):
            SamplingParams(**bad)


@pytest.mark.parametrize("value", [-1, "5", 1.5, 1e9, True])
def test_max_tokens_of_a_wrong_kind(value: object) -> None:
    """P35."""
    with pytest.raises(InvalidParameterError, match="max_tokens"):
        SamplingParams(max_tokens=value)  # type: ignore[arg-type]


def test_max_tokens() -> None:
    assert SamplingParams(max_tokens=10**9).max_tokens == 10**9
    assert SamplingParams(max_tokens=0).max_tokens == 0
    assert SamplingParams().max_tokens is None


def test_edges_are_inside() -> None:
    SamplingParams(temperature=0, top_k=-1, top_p=0, min_p=1, typical_p=0, top_n_sigma=0)
    SamplingParams(repeat_last_n=-1, dry_penalty_last_n=-1, xtc_probability=1, dry_base=1)
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=2**64 - 1).seed == 2**64 - 1
    with pytest.raises(InvalidParameterError):
        SamplingParams(seed=2**64)
    assert SamplingParams(top_k=np.int64(3), top_p=np.float32(0.5)).top_k == 3  # type: ignore[arg-type]


def test_stop() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["ab", "c"]).stop == ("ab", "c")
    for bad in ("", [""], [1], 5, {"a": 1}, b"ab"):
        with pytest.raises(InvalidParameterError, match="stop"):
            SamplingParams(stop=bad)  # type: ignore[arg-type]
    for bad in ([-1], [1.0], "12", [True], 5):
        with pytest.raises(InvalidParameterError, match="stop_token_ids"):
            SamplingParams(stop_token_ids=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"15043": -100}, ((15043, -math.inf),)),
        ({15043: 2}, ((15043, 2.0),)),
        ([[15043, -1.0]], ((15043, -1.0),)),
        ([(15043, False)], ((15043, -math.inf),)),
        ([[7, 1.0], [7, 0.5], [8, 1]], ((7, 1.5), (8, 1.0))),
        ([[7, False], [7, 5]], ((7, -math.inf),)),
        ({}, ()),
        (None, ()),
    ],
)
def test_logit_bias_shapes(given: object, expected: object) -> None:
    """P40: both of the APIs' shapes, -100 and False are never sampled."""
    assert SamplingParams(logit_bias=given).logit_bias == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [{"abc": 1}, {"-1": 1}, {-1: 1}, {1: True}, {1: "2"}, {1: 101}, {1: math.nan}, {1: math.inf}]
    + [[[1]], [1, 2], ["ab"], "ab", 3, {1.5: 1}, {True: 1}, {"1e3": 1}, {2**31: 0}],
)
def test_bad_logit_bias(bad: object) -> None:
    with pytest.raises(InvalidParameterError, match="logit_bias"):
        SamplingParams(logit_bias=bad)  # type: ignore[arg-type]


def test_token_ids_outside_of_the_vocabulary() -> None:
    SamplingParams(logit_bias={99: 1}, stop_token_ids=[99]).check_vocabulary(100)
    with pytest.raises(InvalidParameterError, match="logit_bias=99999999: .*0 to 99"):
        SamplingParams(logit_bias={"99999999": 1}).check_vocabulary(100)
    with pytest.raises(InvalidParameterError, match="stop_token_ids=100"):
        SamplingParams(stop_token_ids=[100]).check_vocabulary(100)


def test_from_dict() -> None:
    params = SamplingParams.from_dict({"temp": 0.5, "repetition_penalty": 1.25, "typ_p": 0.9})
    assert (params.temperature, params.repeat_penalty, params.typical_p) == (0.5, 1.25, 0.9)
    with pytest.raises(InvalidParameterError, match="did you mean temperature"):
        SamplingParams.from_dict({"temprature": 0.5})
    with pytest.raises(InvalidParameterError, match="given twice"):
        SamplingParams.from_dict({"temperature": 0.5, "temp": 0.5})


def test_replace_keeps_everything() -> None:
    params = SamplingParams(logit_bias={1: False, 2: 3}, stop="a", stop_token_ids=[1], seed=4)
    assert replace(params, temperature=0.8) == params
    assert hash(params) == hash(replace(params))
