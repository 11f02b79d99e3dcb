"""A sequence in steps equals the whole sequence, whatever a layer keeps of the past."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llamba.models.architectures import ARCHITECTURES
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.kernels.reference import Reference, State

FOLDER = Path(__file__).resolve().parent.parent / "tiny_models"


with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(FOLDER))
    catalogue = importlib.import_module("tiny_catalogue")


@pytest.mark.parametrize(
    "name",
    [
        "gemma4",  # the last layers use keys and values of earlier ones
        "gpt-oss",
        "mistral3",  # sharper scores further on
        "gpt2",
        "deepseek2",
        "deepseek2-split",
        "stablelm-parallel",
        "bloom",
    ],
)
def test_steps_equal_the_whole_sequence(name: str, tmp_path: Path) -> None:
    weights = Weights.open(GGUFFile.open(catalogue.write(tmp_path, name, "F32")))
    weights = replace(weights, hyperparameters=weights.hyperparameters.for_context(64))
    reference, ids = Reference(weights, keep=True), catalogue.token_ids(name)[:40]
    whole, state = reference.run(ids), State()
    parts = [reference.run(part, state) for part in np.split(ids, [1, 2, 9, 33])]
    assert state.length == 40
    numbers = weights.hyperparameters
    for layer, own in enumerate(numbers.layers):
        kept = 40 if own.cache == layer else 0
        assert state.keys[layer].shape == (kept, own.num_kv_heads, own.key_dim)
        assert state.values[layer].shape == (kept, own.num_kv_heads, own.value_dim)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-8, atol=1e-9)


def test_every_architecture_has_a_tiny_model() -> None:
    assert {tiny.architecture for tiny in catalogue.MODELS.values()} == set(ARCHITECTURES)
