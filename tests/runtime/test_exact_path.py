"""Real models with float32 activations against llama.cpp's `f32` variants: the same model."""

import json
from collections.abc import Callable
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
MARGIN = 0.02  # between the first two tokens, below which either may be chosen

Models = Callable[[str], Path]


def golden_cases(shared: Path, model: str) -> dict[str, Any]:
    golden = json.loads((shared / "open" / f"variants_{GOLDEN[model]}.json").read_text())
    cases = {case["name"]: case for case in golden["cases"]}
    if model == "qwen-1.5b":
        del cases["one_word"]  # ill-conditioned, the goldens' README says
    return cases


def run_ids(program: Program, ids: list[int], start: int) -> NDArray[np.float64]:
    """Run the tokens after `start` cached ones in one step; the last one's log-probabilities."""
    end = start + len(ids)
    table = np.arange(-(-end // PAGE_SIZE), dtype=np.int32)
    segment = Segment(np.array(ids, np.int32), start, table, Logits.LAST)
    return log_softmax(program.run(Batch((segment,)))[0].astype(np.float64))


def check_case(program: Program, case: dict[str, Any], num_steps: int) -> None:
    """The top 20 after the prompt, then our greedy tokens until llama.cpp is not sure itself."""
    golden, prompt = case["variants"]["f32"], case["prompt_ids"]
    logprobs = run_ids(program, prompt, 0)
    for token, expected in golden["top20"]:
        assert logprobs[token] == pytest.approx(expected, abs=0.01), (case["name"], token)
    position = len(prompt)
    for number, (token, expected, _, runner_up) in enumerate(golden["steps"][:num_steps]):
        chosen = int(logprobs.argmax())
        if chosen != token:
            assert expected - runner_up < MARGIN, (case["name"], number, chosen, token)
            return
        logprobs = run_ids(program, [chosen], position)
        position += 1


def check_model(model: str, names: list[str], shared: Path, models: Models, steps: int) -> None:
    weights = Weights.open(GGUFFile.open(models(model)))
    program = build_program(
        weights, num_pages=24, num_threads=2, activations="float32", max_tokens=640
    )
    try:
        cases = golden_cases(shared, model)
        for name in names or cases:
            check_case(program, cases[name], steps)
    finally:
        program.close()


@pytest.mark.model("smollm2")
def test_smollm2(shared: Path, models: Models) -> None:
    check_model("smollm2", [], shared, models, steps=24)


@pytest.mark.model("gemma3")
def test_gemma3(shared: Path, models: Models) -> None:
    check_model("gemma3", ["chat", "one_word"], shared, models, steps=4)


@pytest.mark.model("qwen-0.5b")
def test_qwen(shared: Path, models: Models) -> None:
    check_model("qwen-0.5b", ["short", "chinese"], shared, models, steps=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.model(name)) for name in GOLDEN]
)
def test_every_prompt(model: str, shared: Path, models: Models) -> None:
    check_model(model, [], shared, models, steps=48)
