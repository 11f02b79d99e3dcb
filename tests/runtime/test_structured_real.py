"""Answers of a real model in the form that was asked for, checked by outside judges."""

import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from llamba import LLM, SamplingParams

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")

QUESTION = "Describe something in JSON."
NUM_SCHEMAS = 200


@pytest.fixture(scope="module")
def llm(models: Any) -> Iterator[LLM]:
    """SmolLM2 135M; each answer is the same in every run, whatever shares its steps."""
    options = {"context_length": 512, "max_sequences": 16, "deterministic": True}
    with LLM(models("smollm2"), **options) as model:
        yield model


def ask(llm: LLM, structured: dict[str, Any], **params: Any) -> tuple[str, str | None]:
    settings = {"temperature": 1.0, "seed": 3, "max_tokens": 60, **params}
    messages = [{"role": "user", "content": QUESTION}]
    [output] = llm.chat(messages, SamplingParams(structured_outputs=structured, **settings))
    return output.outputs[0].text, output.outputs[0].finish_reason


def check_schemas(llm: LLM, schemas: list[tuple[str, dict[str, Any]]]) -> tuple[int, int]:
    """(finished, cut); every finished answer is valid, formats included."""
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=200, structured_outputs={"json": schema})
        for i, (_, schema) in enumerate(schemas)
    ]
    prompts = [f"{QUESTION} Number {i}:\n" for i in range(len(schemas))]
    finished = cut = 0
    for start in range(0, len(schemas), 16):
        span = slice(start, start + 16)
        for (name, schema), output in zip(
            schemas[span], llm.generate(prompts[span], params[span]), strict=True
        ):
            assert output.error is None, (name, output.error)
            answer = output.outputs[0]
            if answer.finish_reason != "stop":
                cut += 1
                continue
            finished += 1
            validator = jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
            )
            errors = list(validator.iter_errors(json.loads(answer.text)))
            assert not errors, (name, answer.text, errors)
    return finished, cut


def test_each_kind_of_form_at_temperature_one(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    for seed in range(4):
        text, reason = ask(llm, {"json": schema}, seed=seed, max_tokens=100)
        if reason == "stop":
            jsonschema.validate(json.loads(text), schema)
            assert text.startswith('{"name": "') and "\n" not in text
        text, reason = ask(llm, {"regex": "[A-Z][a-z]{2,5}-[0-9]{3}"}, seed=seed)
        assert reason == "stop" and re.fullmatch("[A-Z][a-z]{2,5}-[0-9]{3}", text)
        text, reason = ask(llm, {"choice": ["yes", "no", "not sure"]}, seed=seed)
        assert reason == "stop" and text in ("yes", "no", "not sure")
        grammar = 'root ::= "(" root ")" | word\nword ::= [a-z]{1,9} "!"'
        text, reason = ask(llm, {"grammar": grammar}, seed=seed)
        assert reason == "length" or re.fullmatch(r"(\(*)[a-z]{1,9}!(\)*)", text)
        assert reason == "length" or text.count("(") == text.count(")")
        text, reason = ask(llm, {"json_object": True}, seed=seed)
        assert text.startswith("{") and (reason == "length" or isinstance(json.loads(text), dict))


def test_greedy_too(llm: LLM) -> None:
    text, reason = ask(llm, {"regex": "[0-9]{4}"}, temperature=0)
    assert re.fullmatch("[0-9]{4}", text) and reason == "stop"


def test_answers_of_one_request_have_states_of_their_own(llm: LLM) -> None:
    params = SamplingParams(
        temperature=1, seed=1, n=3, best_of=5, structured_outputs={"regex": "[a-z]{3}[0-9]{2}"}
    )
    [output] = llm.generate("x", params)
    answers = [answer.text for answer in output.outputs]
    assert len(answers) == 3 and all(re.fullmatch("[a-z]{3}[0-9]{2}", text) for text in answers)
    assert len(set(answers)) > 1


def test_schemas_beside_each_other(llm: LLM, json_schemas: ModuleType) -> None:
    finished, cut = check_schemas(llm, json_schemas.draw_schemas(24))
    assert finished >= 18, f"{cut} answers were cut"


@pytest.mark.slow
def test_two_hundred_schemas(
    llm: LLM, json_schemas: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    finished, cut = check_schemas(llm, json_schemas.draw_schemas(NUM_SCHEMAS))
    with capsys.disabled():
        print(f"\n{finished} answers finished and valid, {cut} cut at 200 tokens")
    assert finished >= 0.8 * NUM_SCHEMAS
