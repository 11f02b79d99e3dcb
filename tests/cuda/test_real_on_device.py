"""A real model's greedy answers on a GPU: the CPU's, until the two hardly differ in likelihood."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llamba import LLM, SamplingParams

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village,",
    "The three laws of thermodynamics are:",
    "import numpy as np\n\ndef softmax(x):",
    "Water boils at",
    "List of the planets: Mercury, Venus,",
    "Q: Why is the sky blue?\nA:",
)
LENGTH = 64
# Of the CPU's own log-probabilities, between its token and the other one, where they part: int8
# activations move them by 0.1 on the mean, on both.
NEAR_TIE = 0.4


def answers(path: Path, device: str) -> list[list[dict[int, float]]]:
    """Of each prompt its tokens, each as the best ten and their log-probabilities, best first."""
    params = SamplingParams(temperature=0.0, max_tokens=LENGTH, logprobs=10)
    with LLM(path, device=device, context_length=1024, prefix_cache=False) as llm:
        # One by one, so that both compute a token's logits in steps of one token.
        outputs = [llm.generate([prompt], params)[0].outputs[0] for prompt in PROMPTS]
    found = []
    for output in outputs:
        assert output.logprobs is not None
        found.append([{i: p.logprob for i, p in step.items()} for step in output.logprobs])
    return found


@pytest.mark.gpu
@pytest.mark.slow
def test_greedy_answers(models: Callable[[str], Path]) -> None:
    pytest.importorskip("numba", reason="the CPU's kernels are compiled by numba")
    path = models("smollm2")
    apart, lengths = [], []
    for here, there in zip(answers(path, "cpu"), answers(path, "cuda"), strict=True):
        same = 0
        for a, b in zip(here, there, strict=False):
            mine, other = next(iter(a)), next(iter(b))
            if mine != other:
                apart.append(a[mine] - a.get(other, -np.inf))
                break
            assert abs(a[mine] - b[mine]) < 1.0
            same += 1
        lengths.append(same)
    print(f"tokens that are the same: {lengths}; where they part: {np.round(apart, 3)}")
    assert all(gap < NEAR_TIE for gap in apart), (lengths, apart)
    assert np.median(lengths) >= LENGTH / 2, lengths
