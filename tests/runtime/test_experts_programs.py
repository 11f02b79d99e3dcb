"""Whole programs with experts: steps of any number of sequences, equal bits, and what they take."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.arena import Arena
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.cache import KVCache
from llamba.runtime.config import EngineConfig
from llamba.runtime.footprint import arena_bytes
from llamba.runtime.forward import MAX_LOGITS, build_program
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.layouts import lower
from llamba.runtime.program import Program
from llamba.runtime.rope_table import RopeTables

# A shared block with a gate; experts beside a dense block, one tensor for gate and up.
MODELS = ("qwen2moe", "gemma4-moe")
NEAR = 0.1  # root mean square of what rounding to int8 may change, relative

WeightsOf = Callable[..., Weights]


@pytest.fixture(scope="module")
def catalogue() -> Iterator[ModuleType]:
    """The module tests/tiny_models/tiny_catalogue.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "tiny_models"))
        yield importlib.import_module("tiny_catalogue")


@pytest.fixture(scope="module")
def weights_of(catalogue: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> WeightsOf:
    folder = tmp_path_factory.mktemp("experts")

    def open_weights(name: str, form: str = "mix") -> Weights:
        return Weights.open(GGUFFile.open(catalogue.write(folder, name, form)))

    return open_weights


@contextmanager
def program_of(weights: Weights, **options: Any) -> Iterator[Program]:
    options = {"num_pages": 64, "num_threads": 2, "max_tokens": 96} | options
    program = build_program(weights, **options)
    try:
        yield program
    finally:
        program.close()


class Sequence:
    """Token ids in pages of their own."""

    def __init__(self, ids: NDArray[np.int32], number: int) -> None:
        self.ids, self.done = ids, 0
        self.table = np.array([2 * number + 1, 2 * number], np.int32)

    def segment(self, count: int, logits: Logits = Logits.LAST) -> Segment:
        start = self.done
        self.done += count
        needed = -(-self.done // PAGE_SIZE)
        return Segment(self.ids[start : self.done], start, self.table[:needed], logits)


def sequences_of(weights: Weights, number: int, length: int) -> list[Sequence]:
    rng, vocab = np.random.default_rng(number), weights.hyperparameters.vocab_size
    every = rng.integers(0, vocab, (number, length)).astype(np.int32)
    return [Sequence(ids, i) for i, ids in enumerate(every)]


@pytest.mark.kernels
@pytest.mark.parametrize("number", [3, 4, 7, 21])
@pytest.mark.parametrize("name", MODELS)
def test_steps_of_several_sequences(weights_of: WeightsOf, name: str, number: int) -> None:
    """Each token goes to its own experts, in rows, whatever the width of the other matmuls."""
    weights = weights_of(name)
    sequences = sequences_of(weights, number, 6)
    with program_of(weights) as program:
        got = []
        for _ in range(6):
            segments = tuple(sequence.segment(1) for sequence in sequences)
            got.append(program.run(Batch(segments)).copy())
    reference = Reference(weights, kv_float16=True)
    expected = np.array([reference.run(sequence.ids) for sequence in sequences])
    errors = np.array(got).transpose(1, 0, 2) - expected
    squares = np.sqrt((errors**2).mean(axis=2) / (expected**2).mean(axis=2))
    assert np.median(squares) < NEAR, squares


@pytest.mark.kernels
@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_the_thread_count_changes_no_bit(weights_of: WeightsOf, activations: str) -> None:
    weights, expected = weights_of("qwen2moe"), None
    for threads in (1, 2, 3):
        with program_of(weights, num_threads=threads, activations=activations) as program:
            [sequence] = sequences_of(weights, 1, 60)
            chunks = [program.run(Batch((sequence.segment(n, Logits.ALL),))) for n in (50, 1, 8, 1)]
            got = np.concatenate([chunk.copy() for chunk in chunks[-1:]])
        expected = got if expected is None else expected
        np.testing.assert_array_equal(got, expected)


@pytest.mark.kernels
def test_p39_deterministic_experts(weights_of: WeightsOf) -> None:
    """Equal bits alone and among others that choose the same experts or different ones."""
    weights, expected = weights_of("qwen2moe"), None
    for threads in (1, 2):
        with program_of(weights, num_threads=threads, deterministic=True) as program:
            for sizes in ([39], [1] * 39, [8, 31], [13, 26]):
                first = sequences_of(weights, 20, 40)[0]
                for count in sizes:
                    program.run(Batch((first.segment(count, Logits.NONE),)))
                got = program.run(Batch((first.segment(1),))).copy()
                expected = got if expected is None else expected
                np.testing.assert_array_equal(got, expected)
            sequences = sequences_of(weights, 20, 40)
            for at, sequence in enumerate(sequences):
                program.run(Batch((sequence.segment(39 - at, Logits.NONE),)))
            segments = tuple(s.segment(1 + at % 3) for at, s in enumerate(sequences))
            np.testing.assert_array_equal(program.run(Batch(segments))[:1], expected)


@pytest.mark.parametrize("options", [{}, {"activations": "float32"}, {"deterministic": True}])
@pytest.mark.parametrize(
    "name",
    [
        "qwen2moe",
        "gemma4-moe",
        "deepseek2",
        "gpt2",
        "cohere2",
        "phi3",
        "bert",
        "gemma4",
        "deepseek2-lite",
    ],
)
def test_the_arena_is_counted_to_the_byte(
    weights_of: WeightsOf, name: str, options: dict[str, Any]
) -> None:
    """What lowering allocates, of any architecture; scratch memory and logits come on top."""
    weights = weights_of(name, "F32" if name == "gemma4" else "mix")
    config = EngineConfig(context_length=256, num_threads=1, max_sequences=256, **options)
    numbers = weights.hyperparameters
    logits = np.empty((MAX_LOGITS, numbers.vocab_size), np.float32)
    arena, ropes, cache = Arena(), RopeTables(), KVCache(numbers, 1)
    layouts = lower(
        weights,
        arena,
        cache,
        ropes,
        logits,
        exact=config.activations == "float32",
        deterministic=config.deterministic,
        max_tokens=config.max_tokens,
        max_sequences=config.max_sequences,
        max_splits=1,
    )
    cache.close()
    ropes.reach(256)
    owned = {id(b): b.nbytes for b in arena._buffers if not mapped(b, weights)}
    tables = sum(table.nbytes for table in ropes._tables.values())
    total = sum(owned.values()) + tables + logits.nbytes + layouts.scratch_bytes
    assert arena_bytes(weights, config) == total


def mapped(array: NDArray[Any], weights: Weights) -> bool:
    """Whether an array is a part of the file."""
    return any(np.shares_memory(array, info.data) for info in weights.gguf.tensors.values())
