"""Perplexity of the real models with int8 activations against llama-perplexity's."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.tokenizer import Tokenizer
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.perplexity import perplexity

pytestmark = pytest.mark.kernels

GOLDEN = {
    "smollm2": "smollm2-135m",
    "gemma3": "gemma-3-270m",
    "qwen-0.5b": "qwen2.5-coder-0.5b",
}
ROWS = 64  # of logits a step


def check_model(
    model: str, shared: Path, path: Path, *, chunks: int | None, tolerance: float
) -> None:
    expected = json.loads((shared / "open" / "perplexity.json").read_text())["models"][
        GOLDEN[model]
    ]
    gguf = GGUFFile.open(path)
    tokenizer = Tokenizer.from_gguf(gguf)
    ids = tokenizer.encode((shared / "text.txt").read_text())
    assert len(ids) // 512 == expected["n_chunks"]
    program = build_program(Weights.open(gguf), num_pages=16, num_threads=2)

    def logits_of(chunk: NDArray[np.int32], count: int) -> NDArray[np.float32]:
        first = len(chunk) - count
        bounds = [0, *range(first, len(chunk), ROWS), len(chunk)]
        parts = []
        for start, end in zip(bounds, bounds[1:], strict=False):
            table = np.arange(-(-end // PAGE_SIZE), dtype=np.int32)
            which = Logits.ALL if start >= first else Logits.NONE
            segment = Segment(chunk[start:end], start, table, which)
            parts.append(program.run(Batch((segment,))).copy())
        return np.concatenate(parts)

    try:
        result = perplexity(
            logits_of,
            ids,
            bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
            max_chunks=chunks,
        )
    finally:
        program.close()
    wanted = expected["running_ppl"][len(result.running) - 1]
    print(f"{model}: {result.value:.4f}, llama.cpp {wanted}: {result.value / wanted - 1:+.3%}")
    assert result.value == pytest.approx(wanted, rel=tolerance)


@pytest.mark.model("smollm2")
def test_smollm2(shared: Path, model_path: Path) -> None:
    """Ten chunks differ a little more than all of them, in either direction."""
    check_model("smollm2", shared, model_path, chunks=10, tolerance=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.model(name)) for name in GOLDEN]
)
def test_whole_text(model: str, shared: Path, models: Callable[[str], Path]) -> None:
    check_model(model, shared, models(model), chunks=None, tolerance=0.005)
