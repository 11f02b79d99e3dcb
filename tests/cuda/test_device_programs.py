"""Whole models as device programs, against the float64 reference: every architecture."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.cuda.build import build_program
from llamba.runtime.cuda.forms import Forms
from llamba.runtime.cuda.program import DeviceProgram
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.kernels.reference_matrices import Matrices

TESTS = Path(__file__).resolve().parent.parent
with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue, rounding = map(importlib.import_module, ("tiny_catalogue", "tiny_rounding"))
MODELS = catalogue.MODELS
DECODERS = [name for name, tiny in MODELS.items() if tiny.task == "logits"]
ENCODERS = [name for name, tiny in MODELS.items() if tiny.task != "logits"]

# As in runtime/test_architectures.py: int8 inputs, in units of what such rounding does.
SCATTER = 2.0
EXACT = 2e-4  # float32 throughout, sums in another order


@dataclass
class Cases:
    """The models' files and what the reference makes of them."""

    folder: Path

    def weights(self, name: str, form: str) -> Weights:
        weights = Weights.open(GGUFFile.open(catalogue.write(self.folder, name, form)))
        numbers = weights.hyperparameters.for_context(catalogue.LENGTH)
        return replace(weights, hyperparameters=replace(numbers, context_length=catalogue.LENGTH))

    def expected(self, weights: Weights, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        return Reference(weights, keep=True).run(ids)

    def rounding(self, weights: Weights, ids: NDArray[np.int32], exact: NDArray) -> float:
        """By how much int8 inputs of quantized matrices typically change a position's logits."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Matrices, "apply", rounding.with_int8_inputs(Matrices.apply))
            rounded = Reference(weights, keep=True).run(ids)
        return float(np.median(relative(rounded, exact)))


def relative(got: NDArray, expected: NDArray) -> NDArray[np.float64]:
    """Each position's root mean square of the differences, relative to that of the logits."""
    return np.sqrt(((got - expected) ** 2).mean(axis=1) / (expected**2).mean(axis=1))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("device_programs"))


@contextmanager
def program_of(weights: Weights, device: Any, **options: Any) -> Iterator[DeviceProgram]:
    options = {
        "num_pages": 16,
        "max_tokens": 64,
        "max_sequences": 8,
        "forms": Forms(tiles=True, half=True),
        **options,
    }
    program = build_program(weights, device, **options)
    try:
        yield program
    finally:
        program.close()


class Sequence:
    """Token ids in pages of their own."""

    def __init__(self, ids: NDArray[np.int32], pages: list[int]) -> None:
        self.ids, self.done, self.pages = ids, 0, np.array(pages, np.int32)

    def segment(self, count: int, logits: Logits = Logits.ALL) -> Segment:
        start = self.done
        self.done += count
        needed = -(-self.done // PAGE_SIZE)
        return Segment(self.ids[start : self.done], start, self.pages[:needed], logits)


def full(rows: Any) -> NDArray[np.float32]:
    return np.stack([rows[i].full() for i in range(len(rows))])


def in_company(program: DeviceProgram, ids: NDArray[np.int32]) -> NDArray:
    """Logits of a sequence's tokens: a chunk beside others, singles, then a few at once."""
    others = [Sequence(ids[::-1].copy(), [0, 1]), Sequence(np.roll(ids, 7), [11, 8])]
    for other, count in zip(others, (7, 17), strict=True):
        program.run(Batch((other.segment(count, Logits.NONE),)))
    main = Sequence(ids, [3, 15])
    segments = (others[0].segment(1), main.segment(20), others[1].segment(1))
    found = [full(program.run(Batch(segments)))[1:21]]
    found.append(full(program.run(Batch((main.segment(1),)))))
    rows = program.run(Batch((others[1].segment(1), main.segment(1), others[0].segment(1))))
    found.append(full(rows)[1:2])
    found.append(full(program.run(Batch((main.segment(13),)))))
    return np.concatenate(found)


LENGTH = 35
# One of each kind of attention, positions, norms, activations and experts; -m slow has the others.
USUAL = (
    "llama-small", "llama-k", "gemma2", "gemma3", "gemma4", "phi3", "granite", "olmo2",
    "starcoder2", "stablelm-parallel", "qwen3moe", "gpt-oss", "gemma4-moe", "deepseek2-split",
    "deepseek2", "qwen2vl", "command-r", "gptneox", "falcon", "bloom", "mpt", "nemotron", "chatglm",
    "bert", "modern-bert", "gemma-embedding", "jina-bert-v2",
)  # fmt: skip


def usual(names: list[str]) -> list[Any]:
    return [n if n in USUAL else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", usual(DECODERS))
def test_decoders_equal_the_reference(cases: Cases, device: Any, name: str) -> None:
    """Quantized weights, int8 inputs and float16, in every mode of matmuls."""
    ids = catalogue.token_ids(name)[:LENGTH]
    weights = cases.weights(name, "mix")
    expected = cases.expected(weights, ids)
    with program_of(weights, device) as program:
        got = in_company(program, ids)
    errors = relative(got, expected)
    assert np.median(errors) < SCATTER * cases.rounding(weights, ids, expected), errors


@pytest.mark.parametrize("name", usual(["llama", "gemma3", "gpt2", "qwen3moe", "deepseek2"]))
def test_exact_programs_equal_the_reference(cases: Cases, device: Any, name: str) -> None:
    """float32 weights, inputs, keys and values."""
    ids = catalogue.token_ids(name)[:LENGTH]
    weights = cases.weights(name, "mix")
    expected = cases.expected(weights, ids)
    options: dict[str, Any] = {"activations": "float32", "cache_type": "f32"}
    with program_of(weights, device, **options) as program:
        got = in_company(program, ids)
    errors = np.abs(got - expected) / np.abs(expected).max(axis=1, keepdims=True)
    assert errors.max() <= EXACT, errors.max(axis=1)


@pytest.mark.parametrize("name", usual(ENCODERS))
def test_encoders_equal_the_reference(cases: Cases, device: Any, name: str) -> None:
    """Two texts in a step, each seen from its beginning to its end."""
    ids = catalogue.token_ids(name)
    texts = ids[:LENGTH], ids[::-1][:20].copy()
    weights = cases.weights(name, "F32")
    options: dict[str, Any] = {"activations": "float32", "cache_type": "f32"}
    with program_of(weights, device, **options) as program:
        segments = (Sequence(text, [1 + 2 * i, 6 - i]) for i, text in enumerate(texts))
        program.run(Batch(tuple(s.segment(len(s.ids), Logits.HIDDEN) for s in segments)))
        got = [program.hidden_states(i) for i in range(len(texts))]
    for states, text in zip(got, texts, strict=True):
        expected = Reference(weights, keep=True).encode(text)
        assert states.shape == expected.shape
        errors = np.abs(states - expected) / np.abs(expected).max(axis=1, keepdims=True)
        assert errors.max() <= EXACT, errors.max(axis=1)


@pytest.mark.parametrize("forms", [Forms(), Forms(tiles=True), Forms(half=True)], ids=str)
@pytest.mark.parametrize("name", ["llama-small", "qwen3moe"])
def test_whatever_copies_there_are(cases: Cases, device: Any, name: str, forms: Forms) -> None:
    """Of the weights beside the planes: a small GPU has room for none."""
    ids = catalogue.token_ids(name)[:LENGTH]
    weights = cases.weights(name, "mix")
    expected = cases.expected(weights, ids)
    with program_of(weights, device, forms=forms) as program:
        got = in_company(program, ids)
    errors = relative(got, expected)
    assert np.median(errors) < SCATTER * cases.rounding(weights, ids, expected), errors
