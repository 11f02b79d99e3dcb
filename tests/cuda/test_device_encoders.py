"""Encoders as device programs, against the float64 reference: several texts in a step."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rig import EXACT as EXACT_OPTIONS
from engine_rig import open_llm

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import Batch, Logits, Segment
from llamba.runtime.cuda.build import build_program
from llamba.runtime.cuda.forms import Forms
from llamba.runtime.kernels.reference import Reference

TESTS = Path(__file__).resolve().parent.parent
with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue = importlib.import_module("tiny_catalogue")
ENCODERS = [name for name, tiny in catalogue.MODELS.items() if tiny.task != "logits"]
LENGTHS = (19, 1, 33)
EXACT = 1e-3  # float32 throughout, GELU from the same table, in units of the largest number


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_equal_the_reference(device: Any, tmp_path: Path, name: str) -> None:
    weights = Weights.open(GGUFFile.open(catalogue.write(tmp_path, name, "mix")))
    ids = catalogue.token_ids(name)
    texts = [np.roll(ids, 5 * n)[:length] for n, length in enumerate(LENGTHS)]
    program = build_program(
        weights,
        device,
        num_pages=8,
        max_tokens=64,
        max_sequences=4,
        forms=Forms(),
        activations="float32",
        cache_type="f32",
        context_length=64,
    )
    tables = [np.array(pages, np.int32) for pages in ([3], [0], [5, 2])]
    program.run(
        Batch(
            tuple(
                Segment(text.astype(np.int32), 0, table, Logits.HIDDEN)
                for text, table in zip(texts, tables, strict=True)
            )
        )
    )
    found = [program.hidden_states(n) for n in range(len(texts))]
    assert np.array_equal(program.hidden_states(2, slice(30, 33)), found[2][30:])
    assert np.array_equal(program.last_states(), np.concatenate(found))
    program.close()
    for text, states in zip(texts, found, strict=True):
        expected = Reference(weights).encode(text)
        assert states.shape == expected.shape
        assert np.abs(states - expected).max() <= EXACT * np.abs(expected).max()


@pytest.mark.parametrize("name", ["bert", "bert-rank", "qwen3-embedding"])
def test_embeddings_of_whole_engines(late_device: Any, tmp_path: Path, name: str) -> None:
    """More texts than run at once, and one that comes again."""
    path = catalogue.write(tmp_path, name, "F32")
    ids = catalogue.token_ids(name)
    texts = [ids[:length].tolist() for length in (5, 33, 1, 40, 5)]
    rank = catalogue.MODELS[name].task == "rank"
    options = {"context_length": 64, "max_sequences": 2, "kv_tokens": 128, **EXACT_OPTIONS}
    with open_llm(path, late_device, **options) as llm:
        outputs = llm.embed(texts, pooling="rank" if rank else None, normalize=False)
        reference, metadata = Reference(llm.weights), llm.weights.gguf.metadata
        for text, output in zip(texts, outputs, strict=True):
            states = reference.encode(np.array(text, np.int32))
            if rank:
                expected = reference.score(states)
            else:
                kind = metadata[f"{llm.weights.architecture.name}.pooling_type"]
                pooled = {1: states.mean(axis=0), 2: states[0], 3: states[-1]}[kind]
                expected = reference.finish_embedding(pooled)
            assert output.embedding is not None
            assert np.abs(output.embedding - expected).max() <= EXACT * np.abs(expected).max()
