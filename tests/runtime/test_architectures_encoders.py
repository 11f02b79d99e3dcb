"""Encoders, embedding models and rerankers on tiny random models: the reference and llama.cpp."""

import importlib
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.kernels.reference_matrices import Matrices

TESTS = Path(__file__).resolve().parent.parent
DATA = TESTS / "data" / "architectures"


with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue, rounding = map(importlib.import_module, ("tiny_catalogue", "tiny_rounding"))
ENCODERS = [name for name, tiny in catalogue.MODELS.items() if tiny.task != "logits"]
POOLING = {1: "mean", 2: "cls", 3: "last"}

LLAMA_CPP = 1e-4  # in units of the largest number; llama.cpp computes in float32
SCATTER = 1.5  # see test_architectures.py
MOST_ROUNDING = 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@cache
def weights_of(folder: Path, name: str, form: str) -> Weights:
    path = catalogue.write(folder, name, form)
    expected = int(np.load(DATA / f"{name}.npz")[f"{form}_crc32"])
    assert zlib.crc32(path.read_bytes()) == expected, "not the file that llama.cpp has run"
    return Weights.open(GGUFFile.open(path))


def results(weights: Weights, name: str, ids: NDArray[np.int32]) -> tuple[NDArray, NDArray]:
    """(the text's embedding or scores, the tokens' hidden states that were kept)."""
    tiny = catalogue.MODELS[name]
    reference = Reference(weights, gelu_function=rounding.gelu_table)
    states = reference.encode(ids)
    if tiny.task == "rank":
        text = reference.score(states)
    else:
        kind = POOLING[tiny.metadata["pooling_type"]]
        pooled = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[kind]
        text = reference.finish_embedding(pooled)
        states = reference.finish_embedding(states)  # llama.cpp has them on each token, too
    return text, states[:: max(1, len(ids) // 7), : catalogue.KEPT_DIMS]


@pytest.mark.parametrize("length", catalogue.ENCODED_LENGTHS)
@pytest.mark.parametrize("name", ENCODERS)
def test_reference_equals_llama_cpp(folder: Path, name: str, length: int) -> None:
    expected = np.load(DATA / f"{name}.npz")
    weights = weights_of(folder, name, "F32")
    text, states = results(weights, name, catalogue.token_ids(name)[:length])
    for got, key in ((text, "pooled"), (states, "tokens")):
        wanted = expected[f"F32_{key}{length}"]
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= LLAMA_CPP * np.abs(wanted).max(), key


@pytest.mark.parametrize("name", ENCODERS)
def test_reference_is_near_llama_cpp_on_quantized_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As near as the reference is to itself when it rounds inputs to int8 as llama.cpp does."""
    expected = np.load(DATA / f"{name}.npz")
    weights, length = weights_of(folder, name, "mix"), catalogue.LENGTH
    ids = catalogue.token_ids(name)
    _, exact = results(weights, name, ids)
    monkeypatch.setattr(Matrices, "apply", rounding.with_int8_inputs(Matrices.apply))
    _, rounded = results(weights, name, ids)

    def typical(states: NDArray) -> float:
        errors = ((states - exact) ** 2).mean(axis=1) / (exact**2).mean(axis=1)
        return float(np.sqrt(np.median(errors)))

    limit = typical(rounded)
    assert limit < MOST_ROUNDING
    assert typical(expected[f"mix_tokens{length}"].astype(np.float64)) < SCATTER * limit
