"""Adapters in programs: as if merged into the weights, each token its own, else the same bits."""

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import UnsupportedModelError
from llamba.models.gguf import GGUFFile
from llamba.models.lora import Adapter, Pair, read_adapter
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.program import Program

TESTS = Path(__file__).resolve().parent.parent


with pytest.MonkeyPatch.context() as patch:  # they import each other by name
    patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue, rounding = map(importlib.import_module, ("tiny_catalogue", "tiny_rounding"))

pytestmark = pytest.mark.kernels

Tiny = Callable[..., Path]
SIZES = {"dim": 96, "ffn_dim": 160, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32}
# Of the largest logit. A value of K or V that float32 puts on the other side of a rounding border
# of float16 may show in one of them.
EXACT, EXACT_MEAN = 5e-4, 5e-5
LLAMA_CPP = 1e-4  # which computes in float32
FIRST, SECOND = (0.7, 0.0), (0.5, -0.3)
MORE = {"llama": ("token_embd.weight", "output.weight"), "gemma3": ()}
DATA = TESTS / "data" / "lora.json"


class Case:
    """A model and two adapters of it: with alpha, and of another rank without."""

    def __init__(self, path: Path, files: ModuleType, folder: Path, name: str) -> None:
        self.path, self.files, self.folder, self.name = path, files, folder, name
        targets = files.matrices(path, *MORE[name])
        self.pairs = [
            files.random_pairs(path, targets, rank=5, seed=1),
            files.random_pairs(path, targets, rank=33, seed=2),
        ]
        self.adapters = [
            files.write_adapter(folder / f"{name}-a.gguf", self.pairs[0], architecture=name),
            files.write_adapter(
                folder / f"{name}-b.gguf", self.pairs[1], architecture=name, alpha=None
            ),
        ]

    def merged(self, scales: Sequence[float], base: Path | None = None) -> Weights:
        """The weights that the adapters would be merged into."""
        factors = scales[0] * 8 / 5, scales[1]
        out = self.folder / f"{self.name}-merged-{scales}.gguf"
        given = zip(self.pairs, factors, strict=True)
        return Weights.open(GGUFFile.open(self.files.merged(base or self.path, out, *given)))

    @contextmanager
    def program(self, **options: Any) -> Iterator[Program]:
        weights = Weights.open(GGUFFile.open(self.path))
        adapters = [read_adapter(path, weights) for path in self.adapters]
        given = {"num_pages": 32, "num_threads": 2, "max_tokens": 96, "adapters": adapters}
        program = build_program(weights, **(given | options))
        try:
            yield program
        finally:
            program.close()


@pytest.fixture(scope="module")
def case_of(
    tiny_gguf: Tiny, adapter_file: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Case]:
    folder = tmp_path_factory.mktemp("lora")

    def make(name: str, **options: Any) -> Case:
        return Case(tiny_gguf(architecture=name, **options), adapter_file, folder, name)

    return make


def ids_of(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(5, 285, count).astype(np.int32)


def segment(
    ids: NDArray[np.int32], at: int = 0, page: int = 0, adapters: Sequence[float] = ()
) -> Segment:
    table = np.arange(page, page + -(-(at + len(ids)) // PAGE_SIZE), dtype=np.int32)
    return Segment(ids, at, table, Logits.ALL, tuple(adapters))


def run(program: Program, *segments: Segment) -> NDArray[np.float32]:
    return program.run(Batch(segments)).copy()


def off(got: NDArray, expected: NDArray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def near(got: NDArray, expected: NDArray) -> bool:
    mean = float(np.abs(got - expected).mean() / np.abs(expected).max())
    return off(got, expected) <= EXACT and mean <= EXACT_MEAN


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_as_if_merged_in_float32(case_of: Callable[..., Case], name: str) -> None:
    """Decode, a few tokens, chunks in lanes; mixed with tokens that have other scales, or none."""
    case, ids, other = case_of(name, **SIZES), ids_of(60), ids_of(20, 1)
    expected = {
        scales: Reference(case.merged(scales), kv_float16=True).run(ids)
        for scales in (FIRST, SECOND, (0.0, 0.0))
    }
    with case.program(activations="float32") as program:
        for scales, logits in expected.items():
            assert near(run(program, segment(ids, adapters=scales)), logits)
            single = [run(program, segment(ids[i : i + 1], i, 0, scales)) for i in range(6)]
            assert near(np.concatenate(single), logits[:6])
            run(program, segment(ids[:50], 0, 0, scales))
            assert near(run(program, segment(ids[50:55], 50, 0, scales)), logits[50:55])
        for count in (1, 5, 20):
            together = [segment(ids[:count], 0, 4 * i, scales) for i, scales in enumerate(expected)]
            rows = run(program, *together, segment(other[:2], 0, 20))
            for i, logits in enumerate(expected.values()):
                got = rows[i * count : (i + 1) * count]
                assert near(got, logits[:count]), (count, i)
    apart = [off(expected[FIRST], expected[SECOND]), off(expected[FIRST], expected[0.0, 0.0])]
    assert min(apart) > 0.1  # the adapters do change something


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_reference_equals_llama_cpp(case_of: Callable[..., Case], name: str) -> None:
    """What llama.cpp computes with these adapters (tiny_models/lora_llama_cpp.py), as merged."""
    case, ids = case_of(name), ids_of(48, 7)
    reference = Reference(case.merged((0.7, -0.3)), gelu_function=rounding.gelu_table)
    rows = reference.run(ids)[7::8, 5:285:40]
    expected = np.array(json.loads(DATA.read_text())[name])
    assert off(rows, expected) <= LLAMA_CPP


@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"max_sequences": 2}])
def test_int8(case_of: Callable[..., Case], options: dict[str, Any]) -> None:
    """As near to exact arithmetic as without adapters; scale 0 is the model alone, bit for bit."""
    case, ids = case_of("llama", weights="Q8_0", **SIZES), ids_of(40)

    def results(program: Program, scales: Sequence[float]) -> NDArray[np.float32]:
        few = run(program, segment(ids[:1], 0, 8, scales), segment(ids[:5], 0, 12, scales))
        return np.concatenate([run(program, segment(ids, adapters=scales)), few])

    with case.program(activations="float32") as program:
        exact = {scales: results(program, scales) for scales in ((), FIRST, SECOND)}
    with case.program(**options) as program:
        got = {scales: results(program, scales) for scales in exact}
        assert (results(program, (0.0, 0.0)) == got[()]).all()
    with case.program(adapters=(), **options) as program:
        assert (results(program, ()) == got[()]).all()
    errors = {scales: off(got[scales], exact[scales]) for scales in exact}
    assert errors[()] < 0.03
    assert max(errors.values()) < 2 * errors[()]


def test_deterministic_alone_and_beside_others(case_of: Callable[..., Case]) -> None:
    """Tokens with one adapter, another, both or none in one step: each as by itself."""
    case = case_of("llama", weights="Q8_0", **SIZES)
    choices = [(), FIRST, SECOND, (0.0, 1.0), (0.0, 0.0)]
    with case.program(deterministic=True) as program:
        each = [segment(ids_of(7, i), 0, 4 * i, scales) for i, scales in enumerate(choices)]
        alone = [run(program, one) for one in each]
        together = run(program, *each)
    assert (np.concatenate(alone) == together).all()


@pytest.mark.parametrize("name", ["phi3", "granite", "qwen2moe", "deepseek2-split"])
def test_where_matmuls_are_special(name: str, tmp_path: Path, adapter_file: ModuleType) -> None:
    """Fused tensors, factors of what blocks give, routers and shared experts, latent attention."""
    path = catalogue.write(tmp_path, name, "F32")
    weights = Weights.open(GGUFFile.open(path))
    tensors = weights.gguf.tensors.items()
    targets = [n for n, t in tensors if len(t.shape) == 2 and n != "token_embd.weight"]
    pairs = adapter_file.random_pairs(path, targets)
    architecture = weights.gguf.metadata["general.architecture"]
    file = adapter_file.write_adapter(tmp_path / "a.gguf", pairs, architecture=architecture)
    merged = adapter_file.merged(path, tmp_path / "merged.gguf", (pairs, 0.5 * 8 / 5))
    ids = catalogue.token_ids(name)[:40]
    expected = Reference(Weights.open(GGUFFile.open(merged)), kv_float16=True).run(ids)
    adapters = [read_adapter(file, weights)]
    options = {"num_pages": 8, "num_threads": 2, "max_tokens": 64, "adapters": adapters}
    program = build_program(weights, activations="float32", **options)
    try:
        whole = run(program, segment(ids, adapters=(0.5,)))
        parts = [run(program, segment(ids[i : i + 3], i, 0, (0.5,))) for i in range(0, 9, 3)]
    finally:
        program.close()
    assert near(whole, expected) and near(np.concatenate(parts), expected[:9])


def test_a_tensor_that_is_no_single_matrix_is_refused(case_of: Callable[..., Case]) -> None:
    case = case_of("llama", **SIZES)
    weights = Weights.open(GGUFFile.open(case.path))
    pair = Pair(np.zeros((2, 96), np.float32), np.zeros((96, 2), np.float32))
    adapter = Adapter(Path("odd.gguf"), "odd", {"output_norm.weight": pair}, b"")
    with pytest.raises(UnsupportedModelError, match="odd.gguf: output_norm.weight is not used"):
        build_program(weights, num_pages=4, num_threads=1, adapters=[adapter])
