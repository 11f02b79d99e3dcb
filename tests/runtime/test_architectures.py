"""Every decoder on tiny random models: the reference against llama.cpp, the kernels against it.

The models and the runner that made the expected values are in tests/tiny_models; a model's entry
there is all that a new architecture needs here.
"""

import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels import reference as reference_module
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.program import Program

TESTS = Path(__file__).resolve().parent.parent
DATA = TESTS / "data" / "architectures"


def _load(name: str) -> ModuleType:
    """A module of tests/tiny_models, which import each other by name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TESTS / "tiny_models" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


for _name in ("file", "model", "blocks", "dense", "encoders", "experts", "more"):
    _load(f"tiny_{_name}")
catalogue = _load("tiny_catalogue")
DECODERS = [name for name, tiny in catalogue.MODELS.items() if tiny.task == "logits"]

# Differences in units of the largest logit. llama.cpp computes in float32.
LLAMA_CPP = 1e-4
# The kernels keep K and V in float16: a value that float32 puts on the other side of a rounding
# border moves by 2**-11, which one logit may show.
EXACT, EXACT_MEAN = 5e-4, 5e-5

WeightsOf = Callable[[str, str], Weights]


def int8_limit(num_layers: int) -> float:
    """How far logits may be off, as a root mean square relative to the exact ones.

    A group of 32 normal values has its largest near 2.1 standard deviations, so rounding to 127
    steps of it adds an error of 2.1 / 127 / sqrt(12) = 0.5 % to each value and to each product with
    a matrix. Those of four matrices follow another in a layer, and one after the layers; random
    errors add up as their squares do. Twice that, since attention and gates are not linear.
    """
    return 2 * 0.005 * float(np.sqrt(1 + 4 * num_layers))


@pytest.fixture(scope="module")
def weights_of(tmp_path_factory: pytest.TempPathFactory) -> WeightsOf:
    folder = tmp_path_factory.mktemp("architectures")

    @cache
    def open_weights(name: str, form: str) -> Weights:
        path = catalogue.write(folder, name, form)
        expected = int(np.load(DATA / f"{name}.npz")[f"{form}_crc32"])
        assert zlib.crc32(path.read_bytes()) == expected, "not the file that llama.cpp has run"
        weights = Weights.open(GGUFFile.open(path))
        numbers = weights.hyperparameters.for_context(catalogue.LENGTH)
        return replace(weights, hyperparameters=numbers)

    return open_weights


def gelu_table(x: NDArray) -> NDArray:
    """GELU as llama.cpp has it on the CPU: a table of float16 numbers over float16 numbers."""
    half = x.astype(np.float32).astype(np.float16).astype(np.float32)
    inner = np.float32(0.7978845608) * half * (1 + np.float32(0.044715) * half * half)
    table = (np.float32(0.5) * half * (1 + np.tanh(inner))).astype(np.float16).astype(x.dtype)
    return np.where(x <= -10, 0, np.where(x >= 10, x, table))


def errors_to_llama_cpp(
    weights: Weights, name: str, form: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Differences in units of the largest logit, and each position's relative root mean square."""
    expected = np.load(DATA / f"{name}.npz")
    logits = Reference(weights).run(catalogue.token_ids(name))
    rows = logits[list(catalogue.POSITIONS[form])]
    kept = rows[:, list(catalogue.KEPT_IDS)]
    wanted = expected[f"{form}_logits"].astype(np.float64)
    sums = np.log(np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1)) + rows.max(axis=1)
    errors = np.column_stack([kept - wanted, sums - expected[f"{form}_log_sum"]])
    squares = np.sqrt((errors**2).mean(axis=1) / (wanted**2).mean(axis=1))
    return np.abs(errors) / float(expected[f"{form}_largest"]), squares


@pytest.mark.parametrize("name", DECODERS)
def test_reference_equals_llama_cpp(
    weights_of: WeightsOf, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    weights = weights_of(name, "F32")
    monkeypatch.setattr(reference_module, "gelu", gelu_table)
    errors, _ = errors_to_llama_cpp(weights, name, "F32")
    assert errors.max() <= LLAMA_CPP


@pytest.mark.parametrize("name", DECODERS)
def test_reference_is_near_llama_cpp_on_quantized_weights(
    weights_of: WeightsOf, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """llama.cpp rounds a quantized matrix's input to int8. A rare token may get another expert."""
    weights = weights_of(name, "mix")
    monkeypatch.setattr(reference_module, "gelu", gelu_table)
    _, squares = errors_to_llama_cpp(weights, name, "mix")
    assert np.median(squares) <= int8_limit(weights.hyperparameters.num_layers), squares


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


def assert_close(got: NDArray, expected: NDArray, limit: float | None) -> None:
    """limit: of the typical relative error where activations are rounded, else None."""
    assert got.shape == expected.shape and np.isfinite(got).all()
    if limit is None:
        errors = np.abs(got - expected) / np.abs(expected).max(axis=1, keepdims=True)
        assert errors.max() < EXACT and errors.mean() < EXACT_MEAN, (errors.max(), errors.mean())
    else:
        squares = np.sqrt(((got - expected) ** 2).mean(axis=1) / (expected**2).mean(axis=1))
        assert np.median(squares) < limit, squares


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("form", "activations"), [("F32", "float32"), ("mix", "float32"), ("mix", "int8")]
)
@pytest.mark.parametrize("name", DECODERS)
def test_kernels_equal_the_reference(
    weights_of: WeightsOf, name: str, form: str, activations: str
) -> None:
    """By one prefill, token by token, and in a step with other sequences."""
    weights, ids = weights_of(name, form), catalogue.token_ids(name)
    limit = int8_limit(weights.hyperparameters.num_layers) if activations == "int8" else None
    expected = Reference(weights, kv_float16=True).run(ids)
    with program_of(weights, activations) as program:
        assert_close(in_chunks(program, ids, [len(ids)]), expected, limit)
        assert_close(in_chunks(program, ids, [1] * len(ids)), expected, limit)
        assert_close(in_company(program, ids), expected[:60], limit)
