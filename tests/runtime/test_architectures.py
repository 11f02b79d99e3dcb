"""Every decoder on tiny random models: the reference against llama.cpp, the kernels against it.

The models and the runner that made the expected values are in tests/tiny_models; a model's entry
there is all that a new architecture needs here.
"""

import importlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.kernels.reference_matrices import Matrices
from llamba.runtime.program import Program

TESTS = Path(__file__).resolve().parent.parent
DATA = TESTS / "data" / "architectures"


with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue, rounding = map(importlib.import_module, ("tiny_catalogue", "tiny_rounding"))
DECODERS = [name for name, tiny in catalogue.MODELS.items() if tiny.task == "logits"]

# Differences in units of the largest logit. llama.cpp computes in float32.
LLAMA_CPP = 1e-4
# The kernels' exact path: float32 throughout, K and V included.
EXACT = 1e-4
# Where a quantized matrix's input is rounded to int8: how much further off than the reference is
# when it rounds so, too. Different roundings of one size scatter, most where a router hardly
# prefers one expert to another; a wrong tensor gives 30 times.
SCATTER = 2.0
# What that rounding may do to the logits for it to be a measure at all.
MOST_ROUNDING = 0.1


class Cases:
    """The models' files and what the reference makes of them, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.weights, self.exact = cache(self._weights), cache(self._exact)
        self.rounding = cache(self._rounding)

    def _weights(self, name: str, form: str) -> Weights:
        path = catalogue.write(self._folder, name, form)
        expected = int(np.load(DATA / f"{name}.npz")[f"{form}_crc32"])
        assert zlib.crc32(path.read_bytes()) == expected, "not the file that llama.cpp has run"
        weights = Weights.open(GGUFFile.open(path))
        # Long factors of a rotation apply to contexts of this length, not of the model's.
        numbers = weights.hyperparameters.for_context(catalogue.LENGTH)
        numbers = replace(numbers, context_length=catalogue.LENGTH)
        return replace(weights, hyperparameters=numbers)

    def _exact(self, name: str, form: str) -> NDArray[np.float64]:
        return Reference(self.weights(name, form)).run(catalogue.token_ids(name))

    def _rounding(self, name: str) -> float:
        """By how much int8 inputs of quantized matrices typically change a position's logits."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Matrices, "apply", rounding.with_int8_inputs(Matrices.apply))
            reference = Reference(self.weights(name, "mix"))
            rounded = reference.run(catalogue.token_ids(name))
        return float(np.median(relative(rounded, self.exact(name, "mix"))))


def relative(got: NDArray, expected: NDArray) -> NDArray[np.float64]:
    """Each position's root mean square of the differences, relative to that of the logits."""
    return np.sqrt(((got - expected) ** 2).mean(axis=1) / (expected**2).mean(axis=1))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("architectures"))


@pytest.mark.parametrize("name", DECODERS)
def test_reference_equals_llama_cpp(cases: Cases, name: str) -> None:
    """At 64 positions a dozen logits and the logarithm of all exponentials' sum."""
    expected = np.load(DATA / f"{name}.npz")
    reference = Reference(cases.weights(name, "F32"), gelu_function=rounding.gelu_table)
    logits = reference.run(catalogue.token_ids(name))
    errors = np.abs(logits[:, list(catalogue.KEPT_IDS)] - expected["F32_logits"])
    most = logits.max(axis=1)
    sums = np.log(np.exp(logits - most[:, None]).sum(axis=1)) + most
    errors = np.column_stack([errors, np.abs(sums - expected["F32_log_sum"])])
    assert errors.max() <= LLAMA_CPP * expected["F32_largest"]


@pytest.mark.parametrize("name", DECODERS)
def test_reference_is_near_llama_cpp_on_quantized_weights(cases: Cases, name: str) -> None:
    """llama.cpp rounds a quantized matrix's input to int8: no closer than that."""
    expected = np.load(DATA / f"{name}.npz")["mix_logits"].astype(np.float64)
    rows = cases.exact(name, "mix")[list(catalogue.POSITIONS["mix"])]
    errors = relative(rows[:, list(catalogue.KEPT_IDS)], expected)
    assert cases.rounding(name) < MOST_ROUNDING
    assert np.median(errors) < SCATTER * cases.rounding(name), errors


class Sequence:
    """Token ids in pages of their own."""

    def __init__(self, ids: NDArray[np.int32], pages: list[int]) -> None:
        self.ids, self.done, self.pages = ids, 0, np.array(pages, np.int32)

    def segment(self, count: int, logits: Logits = Logits.ALL) -> Segment:
        start = self.done
        self.done += count
        needed = -(-self.done // PAGE_SIZE)
        return Segment(self.ids[start : self.done], start, self.pages[:needed], logits)


@contextmanager
def program_of(weights: Weights, activations: str) -> Iterator[Program]:
    program = build_program(
        weights,
        num_pages=16,
        num_threads=2 if activations == "int8" else 1,
        max_tokens=96,
        activations=activations,
        cache_type="f16" if activations == "int8" else "f32",
    )
    try:
        yield program
    finally:
        program.close()


def in_chunks(program: Program, ids: NDArray[np.int32], chunks: list[int]) -> NDArray:
    """All logits of a sequence that is run in chunks."""
    sequence = Sequence(ids, [5, 2, 9])
    return np.concatenate([program.run(Batch((sequence.segment(n),))).copy() for n in chunks])


def in_company(program: Program, ids: NDArray[np.int32]) -> NDArray:
    """Logits of a sequence's first 60 tokens, prefilled while two others decode."""
    others = [Sequence(ids[::-1].copy(), [0, 1]), Sequence(np.roll(ids, 7), [11, 8])]
    for other, count in zip(others, (20, 33), strict=True):
        program.run(Batch((other.segment(count, Logits.NONE),)))
    main = Sequence(ids, [3, 15])
    segments = (others[0].segment(1), main.segment(60), others[1].segment(1))
    return program.run(Batch(segments))[1:61].copy()


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("form", "activations"), [("F32", "float32"), ("mix", "float32"), ("mix", "int8")]
)
@pytest.mark.parametrize("name", DECODERS)
def test_kernels_equal_the_reference(cases: Cases, name: str, form: str, activations: str) -> None:
    """By one prefill, token by token, and in a step with other sequences."""
    ids, expected = catalogue.token_ids(name), cases.exact(name, form)

    def exactly(got: NDArray, expected: NDArray) -> None:
        errors = np.abs(got - expected) / np.abs(expected).max(axis=1, keepdims=True)
        assert errors.max() <= EXACT, errors.max()

    def nearly(got: NDArray, expected: NDArray) -> None:
        errors = relative(got, expected)
        assert np.median(errors) < SCATTER * cases.rounding(name), errors

    close: Callable[[NDArray, NDArray], None] = nearly if activations == "int8" else exactly
    with program_of(cases.weights(name, form), activations) as program:
        close(in_chunks(program, ids, [len(ids)]), expected)
        close(in_chunks(program, ids, [1] * len(ids)), expected)
        close(in_company(program, ids), expected[:60])
