"""Real models with int8 activations: no farther from the truth than llama.cpp's own fast path."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import log_softmax
from llamba.runtime.program import Program

pytestmark = pytest.mark.kernels

GOLDEN = {
    "smollm2": "smollm2-135m",
    "gemma3": "gemma-3-270m",
    "qwen-0.5b": "qwen2.5-coder-0.5b",
    "qwen-1.5b": "qwen2.5-coder-1.5b",
}
# Mean |d logprob| of the top 20, median over the prompts: llama.cpp's default against its own f32.
DISTANCE = {"smollm2": 0.10, "gemma3": 0.125, "qwen-0.5b": 0.053, "qwen-1.5b": 0.075}
PAGES_EACH = 24  # of a sequence, where several run together
MARGIN = 0.3  # where the truth is this sure, the fast path chooses the same token

Models = Callable[[str], Path]


def golden_cases(shared: Path, model: str) -> list[dict[str, Any]]:
    golden = json.loads((shared / "open" / f"variants_{GOLDEN[model]}.json").read_text())
    ill = {"one_word"} if model == "qwen-1.5b" else set()
    return [case for case in golden["cases"] if case["name"] not in ill]


@contextmanager
def program_of(path: Path) -> Iterator[Program]:
    weights = Weights.open(GGUFFile.open(path))
    program = build_program(weights, num_pages=32, num_threads=2, max_tokens=640)
    try:
        yield program
    finally:
        program.close()


def run_ids(program: Program, ids: list[int], start: int, which: Logits) -> NDArray[np.float64]:
    end = start + len(ids)
    table = np.arange(-(-end // PAGE_SIZE), dtype=np.int32)
    segment = Segment(np.array(ids, np.int32), start, table, which)
    return log_softmax(program.run(Batch((segment,))).astype(np.float64))


def compare(program: Program, case: dict[str, Any], by_token: bool) -> list[float]:
    """The distances of the tokens that the golden chose, along its path; the argmax rule there."""
    golden, prompt = case["variants"]["f32"], case["prompt_ids"]
    cached = len(prompt) - 1 if by_token else 0  # decode: the prompt's last token by itself, too
    if cached:
        run_ids(program, prompt[:cached], 0, Logits.NONE)
    first = run_ids(program, prompt[cached:], cached, Logits.LAST)
    steps = golden["steps"]
    path = [step[0] for step in steps[:-1]]
    if by_token:  # as decode does it
        rest = [
            run_ids(program, [token], len(prompt) + i, Logits.LAST) for i, token in enumerate(path)
        ]
    else:  # in one chunk, as prefill does it
        rest = [run_ids(program, path, len(prompt), Logits.ALL)]
    logprobs = np.concatenate([first, *rest])
    for row, (token, expected, _, runner_up) in zip(logprobs, steps, strict=True):
        if expected - runner_up > MARGIN:
            assert row.argmax() == token, (case["name"], token, row.argmax(), expected, runner_up)
    return [abs(row[step[0]] - step[1]) for row, step in zip(logprobs, steps, strict=True)]


def distance_of_llama_cpp(cases: list[dict[str, Any]]) -> float:
    """The same of its default settings, as far as they choose the same tokens."""
    every = []
    for case in cases:
        steps = zip(case["variants"]["f32"]["steps"], case["steps"], strict=False)
        same = takewhile(lambda pair: pair[0][0] == pair[1][0], steps)
        every += [abs(truth[1] - step[1]) for truth, step in same]
    return float(np.mean(every))


def check_model(model: str, shared: Path, models: Models, *, by_token: bool) -> None:
    """Over all tokens of the answers, 48 to 336: what follows seven prompts scatters too much."""
    cases = golden_cases(shared, model)
    with program_of(models(model)) as program:
        every = [d for case in cases for d in compare(program, case, by_token)]
    limit = distance_of_llama_cpp(cases)
    print(f"{model}: distance {np.mean(every):.4f} of {len(every)} tokens, llama.cpp {limit:.4f}")
    assert np.mean(every) <= limit


def distances_together(
    program: Program, cases: list[dict[str, Any]], together: int, filler: int
) -> list[float]:
    """Each case's last prompt token decoded in one step with others': the distance after it.

    `filler`: tokens of somebody's prompt in the same step, which is then laid out in lanes.
    """
    every: list[float] = []
    size = PAGES_EACH
    for first in range(0, len(cases), together):
        group = [cases[i % len(cases)] for i in range(first, first + together)]
        segments = []
        for i, case in enumerate(group):
            ids = np.array(case["prompt_ids"], np.int32)
            table = np.arange(i * size, (i + 1) * size, dtype=np.int32)
            for at in range(0, len(ids) - 1, program.max_tokens):
                part = ids[:-1][at : at + program.max_tokens]
                program.run(Batch((Segment(part, at, table, Logits.NONE),)))
            segments.append(Segment(ids[-1:], len(ids) - 1, table, Logits.LAST))
        if filler:
            table = np.arange(together * size, (together + 1) * size, dtype=np.int32)
            ids = np.full(filler, group[0]["prompt_ids"][0], np.int32)
            segments.insert(1, Segment(ids, 0, table, Logits.NONE))
        logprobs = log_softmax(program.run(Batch(tuple(segments))).astype(np.float64))
        for case, row in zip(group[: len(cases) - first], logprobs, strict=False):
            top = case["variants"]["f32"]["top20"]
            every.append(float(np.mean([abs(row[token] - value) for token, value in top])))
    return every


# (sequences, tokens of somebody's prompt in the same step): every kernel that such steps take.
TOGETHER = ((2, 0), (4, 0), (7, 0), (16, 0), (3, 37))


def check_together(model: str, shared: Path, models: Models) -> None:
    """All of them as one sample: seven prompts alone scatter by a third."""
    cases, every = golden_cases(shared, model), []
    weights = Weights.open(GGUFFile.open(models(model)))
    program = build_program(weights, num_pages=PAGES_EACH * 17, num_threads=2)
    try:
        for together, filler in TOGETHER:
            found = distances_together(program, cases, together, filler)
            assert len(found) == len(cases)
            print(f"{model}: {together} sequences: {np.median(found):.4f}, {np.round(found, 3)}")
            every += found
    finally:
        program.close()
    assert np.median(every) <= DISTANCE[model]


@pytest.mark.model("smollm2")
def test_several_together(shared: Path, models: Models) -> None:
    check_together("smollm2", shared, models)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.model(name)) for name in GOLDEN]
)
def test_several_together_of_each(model: str, shared: Path, models: Models) -> None:
    check_together(model, shared, models)


@pytest.mark.model("smollm2")
@pytest.mark.parametrize("by_token", [False, True], ids=["prefill", "decode"])
def test_smollm2(shared: Path, models: Models, by_token: bool) -> None:
    check_model("smollm2", shared, models, by_token=by_token)


@pytest.mark.model("gemma3")
def test_gemma3(shared: Path, models: Models) -> None:
    check_model("gemma3", shared, models, by_token=False)


@pytest.mark.model("qwen-0.5b")
def test_qwen(shared: Path, models: Models) -> None:
    check_model("qwen-0.5b", shared, models, by_token=False)


@pytest.mark.model("qwen-1.5b")
def test_qwen_large(shared: Path, models: Models) -> None:
    check_model("qwen-1.5b", shared, models, by_token=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.model(name)) for name in GOLDEN]
)
def test_every_token_by_itself(model: str, shared: Path, models: Models) -> None:
    check_model(model, shared, models, by_token=True)
