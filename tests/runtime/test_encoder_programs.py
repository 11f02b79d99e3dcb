"""Encoders as programs: tokens see their whole text, in either layout and whatever runs beside.

The models are those of tests/tiny_models, on which the reference equals llama.cpp.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import InvalidModelFileError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.program import Program

pytestmark = pytest.mark.kernels

TESTS = Path(__file__).resolve().parent.parent
NAMES = ("bert", "nomic-bert", "modern-bert", "gemma-embedding", "jina-bert-v2")
PAGES = 24


with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue = importlib.import_module("tiny_catalogue")

Open = Callable[[str], Weights]


@pytest.fixture(scope="module")
def open_weights(tmp_path_factory: pytest.TempPathFactory) -> Open:
    folder = tmp_path_factory.mktemp("encoders")
    return lambda name: Weights.open(GGUFFile.open(catalogue.write(folder, name, "F32")))


@contextmanager
def program_of(weights: Weights, **options: Any) -> Iterator[Program]:
    usual = {"num_pages": PAGES, "num_threads": 2, "max_tokens": 96, "activations": "float32"}
    program = build_program(weights, **usual | options)
    try:
        yield program
    finally:
        program.close()


def segment(ids: NDArray[np.int32], pages: list[int]) -> Segment:
    count = -(-len(ids) // PAGE_SIZE)
    return Segment(ids, 0, np.array(pages[:count], np.int32), Logits.HIDDEN)


def check(got: NDArray[np.float32], expected: NDArray[np.float64]) -> None:
    """K and V are rounded to float16: a value that float32 puts on the other side of a rounding
    border moves by 2**-11. All of a text's tokens see it, and one number may show two of them.
    """
    assert got.shape == expected.shape
    errors = np.abs(got - expected) / np.abs(expected).max(axis=1, keepdims=True)
    assert errors.max() < 2 * 2.0**-11 and errors.mean() < 5e-5, (errors.max(), errors.mean())


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_texts_alone_and_in_company(open_weights: Open, name: str, deterministic: bool) -> None:
    """Of 1 to 64 tokens: few in rows, many in lanes or, deterministic, in rows as well."""
    ids, weights = catalogue.token_ids(name), open_weights(name)
    reference = Reference(weights, kv_float16=True, keep=True)
    states = {length: reference.encode(ids[:length]) for length in catalogue.ENCODED_LENGTHS}
    with program_of(weights, deterministic=deterministic) as program:
        alone = {}
        for length in catalogue.ENCODED_LENGTHS:
            program.run(Batch((segment(ids[:length], [7, 3]),)))
            alone[length] = program.hidden_states(0)
            check(alone[length], states[length])
        others = segment(ids[20:40], [1]), segment(ids[5:8], [0])
        texts = segment(ids[:7], [9]), segment(ids[:33], [4, 2]), segment(ids[:1], [11])
        program.run(Batch((others[0], *texts, others[1])))
        for i, length in enumerate((7, 33, 1)):
            got = program.hidden_states(1 + i)
            check(got, states[length])
            if deterministic:
                np.testing.assert_array_equal(got, alone[length])


def test_a_second_norm_in_some_layers(tmp_path: Path) -> None:
    """Of Jina's code model, in the last layer alone; a bias without its weight is refused."""
    tiny = catalogue.MODELS["jina-bert-v2-fused"]
    first = [name for name in tiny.tensors if name.startswith("blk.0.attn_norm_2.")]
    assert [name.rpartition(".")[2] for name in first] == ["weight", "bias"]

    def opened(file: str, *absent: str) -> Weights:
        tensors = {name: shape for name, shape in tiny.tensors.items() if name not in absent}
        path = replace(tiny, tensors=tensors).write(tmp_path / file)
        return Weights.open(GGUFFile.open(path))

    ids, weights = catalogue.token_ids(tiny.name), opened("some.gguf", *first)
    expected = Reference(weights, kv_float16=True).encode(ids[:33])
    everywhere = Reference(opened("all.gguf"), kv_float16=True).encode(ids[:33])
    assert np.abs(expected - everywhere).max() > 0.1
    for deterministic in (False, True):
        with program_of(weights, deterministic=deterministic) as program:
            program.run(Batch((segment(ids[:33], [7, 3]),)))
            check(program.hidden_states(0), expected)
    with pytest.raises(InvalidModelFileError, match=f"{first[0]} is missing, {first[1]} is there"):
        opened("bias.gguf", first[0])


def test_what_is_our_own_mistake(open_weights: Open) -> None:
    """Logits, and a text in two pieces."""
    ids, pages = catalogue.token_ids("bert"), np.array([0, 1], np.int32)
    with program_of(open_weights("bert")) as program:
        with pytest.raises(AssertionError, match="hidden states"):
            program.run(Batch((Segment(ids[:4], 0, pages[:1]),)))
        with pytest.raises(AssertionError, match="one step"):
            program.run(Batch((Segment(ids[4:40], 4, pages, Logits.HIDDEN),)))
