"""StructuredOutputs and the engine: shape of the setting, masks, ends, errors of one request."""

import json
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba import SamplingParams
from llamba.errors import ConstraintError, InvalidParameterError
from llamba.runtime.request import Request
from llamba.runtime.sampler import Sampler
from llamba.runtime.structured import StructuredOutputs


def test_exactly_one_form() -> None:
    for good in (
        {"json": {"type": "object"}},
        {"json": "{}"},
        {"json": True},
        {"json": {}},
        {"json_object": True},
        {"regex": "a"},
        {"regex": ""},
        {"choice": ["a", "b"]},
        {"grammar": 'root ::= "a"'},
        {"regex": "a", "json": None, "json_object": False},
    ):
        params = SamplingParams(structured_outputs=good)
        assert isinstance(params.structured_outputs, StructuredOutputs)
        assert hash(params.structured_outputs) is not None
    for bad in ({}, {"regex": "a", "choice": ["b"]}, {"json": {}, "json_object": True}):
        with pytest.raises(InvalidParameterError, match="exactly one of json, json_object, regex"):
            SamplingParams(structured_outputs=bad)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("x", "structured_outputs='?x"),
        ([1], "mapping"),
        ({"structural_tag": "x"}, "structural_tag is not supported"),
        ({"regex": 5}, "regex=5"),
        ({"grammar": b"x"}, "grammar"),
        ({"choice": "abc"}, "choice"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"choice": ["a", 1]}, "choice"),
        ({"json_object": 1}, "json_object"),
        ({"json": 5}, "json=5"),
        ({"json": [1]}, "json"),
    ],
)
def test_wrong_types(value: Any, word: str) -> None:
    with pytest.raises(InvalidParameterError, match=word):
        SamplingParams(structured_outputs=value)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"json": "{"}, "no valid JSON"),
        ({"json": "[1]"}, "a schema is a JSON object"),
        ({"json": '{"minimum": NaN}'}, "NaN"),
        ({"json": {"a": float("nan")}}, "JSON"),
        ({"json": {"a": object()}}, "JSON"),
        ({"json": False}, "false"),
        ({"json": "false"}, "false"),
        ({"json": "[" * 100_000}, "nested too deeply"),
        ({"json": '"' + "x" * (1 << 20) + '"'}, "limit"),
        ({"regex": "a" * ((1 << 20) + 1)}, "limit"),
        ({"regex": "\ud800"}, "surrogate"),
        ({"choice": ["a" * 10] * 10_001}, "10,000 is the limit"),
        ({"grammar": "  \n"}, "empty"),
    ],
)
def test_forms_that_can_never_be(value: Any, word: str) -> None:
    with pytest.raises(ConstraintError, match=word):
        SamplingParams(structured_outputs=value)


def test_thinking_budget_is_a_count() -> None:
    assert SamplingParams(thinking_budget=0).thinking_budget == 0
    for bad in (-1, 1.5, "3", True):
        with pytest.raises(InvalidParameterError, match="thinking_budget"):
            SamplingParams(thinking_budget=bad)  # type: ignore[arg-type]


def test_a_schema_keeps_its_order() -> None:
    schema = {"properties": {"z": {}, "a": {}}}
    assert json.loads(str(StructuredOutputs(json=schema).json)) == schema
    assert str(StructuredOutputs(json=schema).json).index("z") < 20


class Script:
    """A constraint that allows given sets of tokens, one after the other."""

    def __init__(self, sets: list[list[int]], size: int) -> None:
        self.sets, self.size, self.taken = sets, size, list[int]()

    @property
    def finished(self) -> bool:
        return len(self.taken) == len(self.sets)

    def allowed(self) -> NDArray[np.uint32]:
        bits = np.zeros(-(-self.size // 32) * 32, np.bool_)
        bits[self.sets[len(self.taken)]] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_n_sigma": 1.0},
        {"temperature": 1.0, "typical_p": 0.5, "top_k": 0},
        {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"temperature": 0.0, "repeat_penalty": 1.5, "presence_penalty": 2.0},
        {"temperature": 1.0, "logit_bias": {5: 100, 7: -5}},
    ],
)
def test_only_allowed_tokens_whatever_else_is_set(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    sets = [sorted(rng.choice(100, size, replace=False).tolist()) for size in (1, 2, 50, 99, 3)]
    for seed in range(20):
        script = Script(sets, 100)
        sampler = Sampler(SamplingParams(**settings), seed=seed, constraint=script)
        for allowed in sets:
            logits = rng.standard_normal(100).astype(np.float32) * 5
            before = logits.copy()
            assert not sampler.finished
            assert sampler.sample(logits) in allowed
            assert np.array_equal(logits, before)
        assert sampler.finished


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 4097])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("bias", [None, {0: -100}])
def test_masks_are_applied_as_they_say(size: int, share: float, bias: Any) -> None:
    rng = np.random.default_rng(size)
    logits = rng.standard_normal(size).astype(np.float32)
    ids = [i for i in range(size) if rng.random() < share or i == size - 1]
    if bias and ids == [0]:
        return  # nothing would be left
    params = SamplingParams(temperature=0, logit_bias=bias)
    sampler = Sampler(params, seed=0, constraint=Script([ids], size))
    best = max((i for i in ids if not (bias and i == 0)), key=lambda i: logits[i])
    assert sampler.sample(logits) == best
    with pytest.raises(ConstraintError, match="no token may follow"):
        Sampler(params, seed=0, constraint=Script([[]], size)).sample(logits)


def test_a_ban_of_all_that_is_allowed_is_an_error() -> None:
    params = SamplingParams(temperature=0, logit_bias={3: -100})
    sampler = Sampler(params, seed=0, constraint=Script([[3]], 100))
    with pytest.raises(ConstraintError, match="bans them all"):
        sampler.sample(np.zeros(100, np.float32))


class Fails(Script):
    """A constraint that can't say what may follow."""

    def allowed(self) -> NDArray[np.uint32]:
        raise ConstraintError("too complex")


def constrained(fakes: SimpleNamespace, constraint: Any, **settings: Any) -> Request:
    return Request(
        "x",
        [fakes.BOS, 120],
        SamplingParams(temperature=0, **settings),
        fakes.Tokenizer(),
        seed=0,
        max_new_tokens=50,
        constrain=lambda: constraint,
    )


def test_an_answer_ends_without_another_step(fakes: SimpleNamespace) -> None:
    """When nothing may follow, it ends with "stop", and no model is run to hear of it."""
    core = fakes.core(fakes.Program())
    request = constrained(fakes, Script([[97], [98], [99]], fakes.VOCAB))
    [output] = fakes.drive(core, request)
    assert output.outputs[0].text == "abc" and output.outputs[0].finish_reason == "stop"
    assert core.stats.decode_tokens == 2  # the first comes from the prompt's step


def test_an_error_of_a_constraint_ends_only_its_request(fakes: SimpleNamespace) -> None:
    core = fakes.core(fakes.Program())
    good = fakes.request("hello", max_tokens=5)
    bad = constrained(fakes, Fails([[97]], fakes.VOCAB))
    outputs = fakes.drive(core, bad, good)
    assert isinstance(outputs[0].error, ConstraintError)
    assert outputs[0].outputs[0].finish_reason == "error"
    assert outputs[1].error is None and len(outputs[1].outputs[0].token_ids) == 5
    assert core.stats.pages_used == 0 and core.stats.failures == 1


def test_logprobs_are_those_of_the_raw_logits(fakes: SimpleNamespace) -> None:
    core = fakes.core(fakes.Program())
    request = constrained(fakes, Script([[97]], fakes.VOCAB), logprobs=2)
    [output] = fakes.drive(core, request)
    free = fakes.core(fakes.Program())
    other = Request(
        "x", [fakes.BOS, 120], SamplingParams(temperature=0, logprobs=2, max_tokens=1),
        fakes.Tokenizer(), seed=0, max_new_tokens=1,
    )  # fmt: skip
    [unbound] = fakes.drive(free, other)
    mine, theirs = output.outputs[0].logprobs[0], unbound.outputs[0].logprobs[0]
    assert set(theirs) <= set(mine) and 97 in mine
    assert all(mine[i].logprob == theirs[i].logprob for i in theirs)


def test_many_threads_compile_at_once(grammars: ModuleType) -> None:
    pytest.importorskip("llguidance")
    compiler = grammars.compiler()
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                form = StructuredOutputs(regex=f"[a-z]{{{i % 5 + 1}}}{number % 2}")
                constraint = compiler.compile(form).start()
                for _ in range(i % 5 + 1):
                    constraint.accept(97)
                constraint.accept(48 + number % 2)
                assert constraint.finished
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
