"""The importance matrix that passes collect, against a float64 pass that notes what it multiplies.

The models are those of tests/tiny_models, of every architecture; sums are of the exact path, whose
inputs are float32 throughout, and of the fast one, which rounds them only afterwards.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import InvalidModelFileError, InvalidParameterError
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_types import TensorInfo
from llamba.models.importance import Importance, Sums
from llamba.models.tokenizer import Tokenizer
from llamba.models.weights import Weights
from llamba.runtime.importance import Collector
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.kernels.reference_matrices import Matrices
from llamba.runtime.perplexity import token_losses

TESTS = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.kernels

with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue = importlib.import_module("tiny_catalogue")

# Dense; a shared expert with a gate; experts beside a dense block; absorbed latents, whose matrices
# are a head's each; an encoder.
USUAL = ("llama", "qwen2moe", "gemma4-moe", "deepseek2", "bert")
LENGTH = 40  # tokens of a chunk: the last block of lanes is filled in part
# Sums of squares relative to the largest: those of the exact path, float32 throughout.
EXACT = 5e-5
# Of the fast one: what rounding earlier inputs to int8 makes of later ones, at most, at such sizes.
FAST = 0.05


class Noted:
    """What a reference's matrices read: sums by tensor and matrix, float64."""

    def __init__(self, patch: pytest.MonkeyPatch, weights: Weights) -> None:
        self._weights, self.output = weights, weights.output.name
        self.found: dict[tuple[str, int], list[Any]] = {}
        apply = Matrices.apply

        def noting(
            matrices: Matrices, x: NDArray, info: TensorInfo, part: int | None = None
        ) -> NDArray:
            self._note(info.name, part or 0, x)
            if info.name.endswith("ffn_gate_inp.weight"):  # the shared gate is no matrix there
                shared = info.name.replace("_inp.", "_inp_shexp.")
                if weights.optional(shared) is not None:
                    self._note(shared, 0, x)
            return apply(matrices, x, info, part)

        patch.setattr(Matrices, "apply", noting)

    def _note(self, name: str, part: int, x: NDArray) -> None:
        if name.startswith("blk.") or name == self.output:
            sums = self.found.setdefault((name, part), [0.0, 0.0, 0])
            sums[0] = sums[0] + np.square(x).sum(axis=0)
            sums[1] = sums[1] + x.sum(axis=0)
            sums[2] += len(x)

    def importance(self) -> dict[str, Sums]:
        """By tensor: experts in parts of their own, other matrices side by side."""
        entries = {}
        for name in sorted({name for name, _ in self.found}):
            shape = self._weights.tensor(name).shape
            if name.endswith("_exps.weight"):
                nothing = [np.zeros(shape[-1]), np.zeros(shape[-1]), 0]
                of = [self.found.get((name, part), nothing) for part in range(shape[0])]
                squares, values, counts = (np.array(each) for each in zip(*of, strict=True))
            else:
                of = [sums for (own, _), sums in sorted(self.found.items()) if own == name]
                squares = np.concatenate([sums[0] for sums in of])[None]
                values = np.concatenate([sums[1] for sums in of])[None]
                counts = np.array([of[0][2]])
            entries[name] = Sums(squares, counts, values)
        return entries


@pytest.fixture(scope="module")
def open_weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Weights]:
    folder = tmp_path_factory.mktemp("importance")

    def opened(name: str, form: str = "F32") -> Weights:
        weights = Weights.open(GGUFFile.open(catalogue.write(folder, name, form)))
        numbers = replace(weights.hyperparameters, context_length=catalogue.LENGTH)
        return replace(weights, hyperparameters=numbers)

    return opened


def chunks_of(name: str, number: int = 2) -> NDArray[np.int32]:
    ids = catalogue.token_ids(name)
    return np.stack([np.roll(ids, -7 * i)[:LENGTH] for i in range(number)])


def collect(weights: Weights, chunks: NDArray[np.int32], **options: Any) -> Importance:
    """Of the chunks, as many at once as there can be."""
    collector = Collector(
        weights, n_ctx=chunks.shape[1], **{"num_threads": 2, "process_output": True} | options
    )
    try:
        for at in range(0, len(chunks), collector.chunks_at_once):
            collector.run(chunks[at : at + collector.chunks_at_once])
        return collector.importance(("text",))
    finally:
        collector.close()


def noted(
    weights: Weights, chunks: NDArray[np.int32], *, kv_float16: bool = False
) -> dict[str, Sums]:
    with pytest.MonkeyPatch.context() as patch:
        numbers = weights.hyperparameters.for_context(chunks.shape[1])
        weights = replace(weights, hyperparameters=numbers)
        recorder, causal = Noted(patch, weights), weights.architecture.causal
        reference = Reference(weights, kv_float16=kv_float16)
        for ids in chunks:
            reference.run(ids) if causal else reference.encode(ids)
        return recorder.importance()


def check(name: str, found: Importance, expected: dict[str, Sums], limit: float) -> None:
    assert sorted(found) == sorted(expected)
    for tensor, sums in expected.items():
        got = found[tensor]
        assert got.counts.tolist() == sums.counts.tolist(), tensor
        assert got.squares.shape == sums.squares.shape, tensor
        assert got.values is not None and sums.values is not None
        off = np.abs(got.squares - sums.squares).max() / sums.squares.max()
        assert off < limit, f"{name} {tensor}: {off}"
        spread = np.sqrt(sums.squares.max() * sums.counts.max())  # no sum of values is larger
        assert np.abs(got.values - sums.values).max() / spread < limit, f"{name} {tensor}"


@pytest.mark.parametrize(
    "name",
    [
        name if name in USUAL else pytest.param(name, marks=pytest.mark.slow)
        for name, tiny in catalogue.MODELS.items()
    ],
)
def test_sums_of_the_exact_path(open_weights: Callable[..., Weights], name: str) -> None:
    weights, chunks = open_weights(name), chunks_of(name)
    found = collect(weights, chunks, activations="float32")
    check(name, found, noted(weights, chunks), EXACT)
    assert (found.chunk_count, found.chunk_size) == (2, LENGTH)


def test_sums_of_the_fast_path(open_weights: Callable[..., Weights]) -> None:
    """Of quantized weights; what the first products read is not yet rounded by anything."""
    weights, chunks = open_weights("llama", "mix"), chunks_of("llama")
    found, expected = collect(weights, chunks), noted(weights, chunks)
    check("llama", found, expected, FAST)
    first = "blk.0.attn_q.weight"
    np.testing.assert_allclose(found[first].squares, expected[first].squares, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2moe"])
def test_threads_change_nothing(open_weights: Callable[..., Weights], name: str) -> None:
    weights, chunks = open_weights(name), chunks_of(name, 3)
    one, three = (collect(weights, chunks, num_threads=n) for n in (1, 3))
    for tensor in one:
        assert np.array_equal(one[tensor].squares, three[tensor].squares), tensor
        assert np.array_equal(one[tensor].counts, three[tensor].counts), tensor


def test_steps_of_a_long_chunk(tiny_gguf: Callable[..., Path]) -> None:
    """A chunk of several steps; the last of them has fewer tokens than a vector has lanes."""
    path = tiny_gguf(context_length=1024, num_layers=1)
    weights = Weights.open(GGUFFile.open(path))
    ids = np.random.default_rng(1).integers(0, weights.hyperparameters.vocab_size, 515)
    chunks = ids.astype(np.int32)[None]
    found = collect(weights, chunks, activations="float32")
    check("llama", found, noted(weights, chunks), EXACT)
    assert found.chunk_count == 1 and found.chunk_size == 515


def test_losses_are_those_of_perplexity(open_weights: Callable[..., Weights]) -> None:
    """The second half of each chunk; the first token is replaced, but not as a target."""
    weights, chunks = open_weights("llama"), chunks_of("llama")
    collector = Collector(
        weights,
        n_ctx=LENGTH,
        num_threads=2,
        bos_id=1,
        with_losses=True,
        activations="float32",
    )
    try:
        losses = collector.run(chunks)
    finally:
        collector.close()
    assert losses is not None
    for chunk, found in zip(chunks, losses, strict=True):
        inputs = np.array([1, *chunk[1:]])
        logits = Reference(weights).run(inputs)[LENGTH // 2 : -1]
        np.testing.assert_allclose(found, token_losses(logits, chunk[LENGTH // 2 + 1 :]), rtol=1e-4)


@pytest.mark.parametrize("n_ctx", [15, 65])
def test_contexts_that_can_not_be(open_weights: Callable[..., Weights], n_ctx: int) -> None:
    with pytest.raises(InvalidParameterError, match="must be 16 to 64"):
        Collector(open_weights("llama"), n_ctx=n_ctx, num_threads=1)


def test_a_text_on_which_nothing_is_finite(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """The weight is named."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(tiny_gguf().read_bytes())
    with GGUFFile.open(path) as gguf:
        raw = gguf.tensors["blk.1.attn_norm.weight"].data.tobytes()
    broken = np.float32(np.inf).tobytes() + raw[4:]
    assert path.read_bytes().count(raw) == 1
    path.write_bytes(path.read_bytes().replace(raw, broken))
    chunks = np.arange(LENGTH, dtype=np.int32)[None]
    with pytest.raises(
        InvalidModelFileError, match=r"input of blk\.1\.attn_\w+\.weight is not fin"
    ):
        collect(Weights.open(GGUFFile.open(path)), chunks)


# -- llama.cpp's own -----------------------------------------------------------------------------
# It multiplies float16 weights by inputs that it rounds to float16 first. Sums of squares relative
# to the largest of their weight; the largest difference is 8e-4.
GOLDEN = 2e-3


@pytest.fixture(scope="module")
def golden(shared: Path) -> Importance:
    return Importance.open(shared / "open" / "tiny.imatrix.gguf")


@pytest.fixture(scope="module")
def golden_run(golden: Importance, tiny_f16: Path, shared: Path) -> tuple[Weights, NDArray]:
    """The model, and the chunks that the golden is of: the text's first 8 of 128 tokens."""
    ids = Tokenizer.from_file(tiny_f16).encode((shared / "text.txt").read_text())
    size, count = golden.chunk_size, golden.chunk_count
    chunks = np.array(ids[: size * count], np.int32).reshape(count, size)
    return Weights.open(GGUFFile.open(tiny_f16)), chunks


def test_the_golden_of_llama_imatrix(
    golden: Importance, golden_run: tuple[Weights, NDArray]
) -> None:
    """The same weights and counts, and but for roundings the same sums."""
    found = collect(*golden_run, process_output=False)
    assert sorted(found) == sorted(golden)
    assert (found.chunk_count, found.chunk_size) == (golden.chunk_count, golden.chunk_size)
    for name, sums in golden.items():
        assert found[name].counts.tolist() == sums.counts.tolist()
        off = np.abs(found[name].squares - sums.squares).max() / sums.squares.max()
        assert off < GOLDEN, name


@pytest.mark.slow
def test_nearer_to_the_truth_than_llama_imatrix(
    golden: Importance, golden_run: tuple[Weights, NDArray]
) -> None:
    """Than the golden, every weight's sums; K and V are float16 in all three."""
    found, truth = collect(*golden_run), noted(*golden_run, kv_float16=True)
    for name in golden:
        ours, theirs = (
            np.linalg.norm(x[name].squares - truth[name].squares) for x in (found, golden)
        )
        assert ours < theirs, f"{name}: {ours}, llama.cpp {theirs}"
