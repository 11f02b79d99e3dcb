"""Converted files answer as their checkpoints do: transformers, and a reference of our own."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.convert.conversion import prepare
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import Reference

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    _patch.syspath_prepend(str(TESTS / "models"))
    checkpoints, hf, made_by = map(
        importlib.import_module, ("convert_checkpoints", "hf_reference", "convert_logits")
    )
TRANSFORMERS = np.load(TESTS / "data" / "convert_logits.npz")
IDS = made_by.IDS

# In units of the largest number. transformers computes in float32, whose errors Gemma's seven
# layers with their many norms add up.
FLOAT32 = 2e-5
# Where the checkpoint's GELU is the exact one, llama.cpp's and ours is the approximation by tanh.
GELU = 5e-4
EXACT_GELU = {
    "bert", "bert-rank", "roberta", "distilbert", "modern-bert", "modern-rank", "gptneox",
    "falcon7b", "falcon40b",
}  # fmt: skip
OURS = ["llama", "llama31", "mistral", "mixtral", "qwen2", "qwen3", "gemma3", "phi3", "phi3-long",
        "bert"]  # fmt: skip


@pytest.fixture(scope="module")
def weights_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found: dict[str, Weights] = {}

    def get(name: str, length: int = len(IDS)) -> Weights:
        if name not in found:
            folder = tmp_path_factory.mktemp("checkpoint")
            path = folder / "model.gguf"
            prepare(checkpoints.write(folder, name), outtype="f32").write(path)
            found[name] = Weights.open(GGUFFile.open(path))
        weights = found[name]
        # Long factors of a rotation apply to contexts of this length, not of the model's.
        numbers = weights.hyperparameters
        context = numbers.context_length
        numbers = replace(numbers.for_context(length), context_length=context)
        return replace(weights, hyperparameters=numbers)

    return get


def difference(got: NDArray, expected: NDArray) -> float:
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def results(weights: Weights, ids: NDArray) -> NDArray:
    """Logits, or an encoder's hidden states, or a head's scores."""
    reference = Reference(weights)
    if weights.architecture.causal:
        return reference.run(ids)
    states = reference.encode(ids)
    return reference.score(states) if weights.hyperparameters.num_labels else states


@pytest.mark.parametrize("name", TRANSFORMERS.files)
def test_equals_transformers(weights_of: Any, name: str) -> None:
    expected = TRANSFORMERS[name]
    got = results(weights_of(name), IDS)
    kept = got if got.ndim == 1 else got[made_by.ROWS, : made_by.COLUMNS]
    assert difference(kept, expected) <= (GELU if name in EXACT_GELU else FLOAT32)


def our_reference(name: str, ids: NDArray) -> NDArray[np.float64]:
    made = checkpoints.CHECKPOINTS[name]()
    tensors = checkpoints.tensors_of(made)
    if name == "bert":
        return hf.Bert(made.config, tensors).states(ids)
    return hf.Checkpoint(made.config, tensors).logits(ids)


@pytest.mark.parametrize("name", OURS)
def test_our_reference_equals_transformers(name: str) -> None:
    """So that the other tests may trust it."""
    got = our_reference(name, IDS)[made_by.ROWS, : made_by.COLUMNS]
    assert difference(got, TRANSFORMERS[name]) <= FLOAT32


@pytest.mark.parametrize("name", [name for name in OURS if name != "bert"])
def test_equals_our_reference(weights_of: Any, name: str) -> None:
    """In float64, so that nothing but the conversion is left; the long factors, too."""
    ids = np.tile(IDS, 4)[:80]
    expected = our_reference(name, ids)
    assert difference(results(weights_of(name, len(ids)), ids), expected) <= 1e-6


@pytest.mark.parametrize("name", ["jina", "jina-plain", "jina-code"])
@pytest.mark.parametrize(("activate", "bound"), [(hf.gelu, GELU), (hf.gelu_tanh, 1e-6)])
def test_jina_equals_our_reference(weights_of: Any, name: str, activate: Any, bound: float) -> None:
    """With its own GELU, and in float64 with the approximation that is run."""
    made = checkpoints.CHECKPOINTS[name]()
    reference = hf.JinaBert(made.config, checkpoints.tensors_of(made), activate)
    ids = np.tile(IDS, 4)[:80]
    assert difference(results(weights_of(name, len(ids)), ids), reference.states(ids)) <= bound


@pytest.mark.kernels
@pytest.mark.parametrize("name", [name for name in OURS if name not in ("bert", "phi3-long")])
def test_kernels_equal_our_reference(weights_of: Any, name: str) -> None:
    """The engine's exact path runs the file."""
    program = build_program(
        weights_of(name), num_pages=4, num_threads=1, max_tokens=32, activations="float32",
        cache_type="f32",
    )  # fmt: skip
    try:
        pages = np.arange(-(-len(IDS) // PAGE_SIZE), dtype=np.int32)
        batch = Batch((Segment(IDS.astype(np.int32), 0, pages, Logits.ALL),))
        got = program.run(batch).copy()
    finally:
        program.close()
    assert difference(got, our_reference(name, IDS)) <= 1e-4
