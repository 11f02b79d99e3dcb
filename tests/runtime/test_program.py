"""Whole programs on tiny models against the float64 reference: every architecture and format."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import InvalidParameterError, ResourceError, UnsupportedModelError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.quant import FORMATS_BY_NAME
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.program import Program

pytestmark = pytest.mark.kernels

Tiny = Callable[..., Path]
# Sizes that fill no tile and no vector of rows, three query heads a KV head.
SIZES = {"dim": 96, "ffn_dim": 160, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32}
SIZES_256 = {"dim": 256, "ffn_dim": 256, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}
ARCHITECTURES = ("llama", "qwen2", "gemma3")
# Differences in units of the row's largest logit. K and V are rounded to float16: a value that
# float32 puts on the other side of a rounding border moves by 2**-11, which one logit may show.
EXACT, EXACT_MEAN = 5e-4, 5e-5
NEAR, NEAR_MEAN = 0.1, 0.01
PAGES = 64


def open_weights(path: Path, **numbers: Any) -> Weights:
    weights = Weights.open(GGUFFile.open(path))
    return replace(weights, hyperparameters=replace(weights.hyperparameters, **numbers))


@contextmanager
def program_of(weights: Weights, **options: Any) -> Iterator[Program]:
    options = {"num_pages": PAGES, "num_threads": 2, "max_tokens": 96} | options
    program = build_program(weights, **options)
    try:
        yield program
    finally:
        program.close()


class Sequence:
    """Token ids with a block table of scattered pages."""

    def __init__(self, ids: NDArray[np.int32], pages: list[int]) -> None:
        self.ids, self.done = np.asarray(ids, np.int32), 0
        self.table = np.array(pages, np.int32)

    def segment(self, count: int, logits: Logits = Logits.ALL) -> Segment:
        start = self.done
        self.done += count
        needed = -(-self.done // PAGE_SIZE)
        return Segment(self.ids[start : self.done], start, self.table[:needed], logits)


def random_ids(weights: Weights, count: int, seed: int = 0) -> NDArray[np.int32]:
    vocab = weights.hyperparameters.vocab_size
    return np.random.default_rng(seed).integers(0, vocab, count).astype(np.int32)


def scattered(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).permutation(PAGES)[:count].tolist()


def run_chunks(
    program: Program, ids: NDArray[np.int32], chunks: list[int], seed: int = 1
) -> NDArray[np.float32]:
    """All logits of a sequence that is run in chunks."""
    sequence = Sequence(ids, scattered(seed, -(-len(ids) // PAGE_SIZE)))
    assert sum(chunks) == len(ids)
    return np.concatenate([program.run(Batch((sequence.segment(n),))).copy() for n in chunks])


def assert_close(got: NDArray, expected: NDArray, activations: str = "float32") -> None:
    """Logits agree to rounding with float32 activations, and roughly with int8 ones."""
    assert got.shape == expected.shape and np.isfinite(got).all()
    errors = np.abs(got - expected) / np.abs(expected).max(axis=1, keepdims=True)
    largest, mean = (EXACT, EXACT_MEAN) if activations == "float32" else (NEAR, NEAR_MEAN)
    assert errors.max() < largest and errors.mean() < mean, (errors.max(), errors.mean())


# Formats that have models here in the fast tests: one of each shape of the kernels' code, as in
# tests/quant/test_cpu_formats.py, the floats, and what comes in mixtures of experts.
FORMATS = ("F16", "BF16", "Q4_0", "Q4_K", "Q6_K", "Q2_K", "Q8_0", "MXFP4")

# (options of the tiny model, hyperparameters that are replaced)
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: ({"architecture": name, **SIZES}, {}) for name in ARCHITECTURES},
    **{
        f"llama-{name}": ({"weights": name, **(SIZES_256 if fmt.block_len == 256 else SIZES)}, {})
        for name, fmt in FORMATS_BY_NAME.items()
        # Of those with codebooks or ternary digits one: the kernels' own tests have them all.
        if name != "F32"
        and (name[:3] not in ("IQ1", "IQ2", "IQ3", "TQ1", "TQ2") or name == "IQ2_XS")
    },
    "qwen2-mixed": (
        {
            "architecture": "qwen2",
            "weights": "Q4_K",
            "formats": {
                "*attn_v.weight": "Q6_K",
                "*attn_k.weight": "F16",
                "*ffn_down.weight": "Q8_0",
                "*ffn_gate.weight": "Q5_0",
                "token_embd*": "Q6_K",
            },
            **SIZES_256,
        },
        {},
    ),
    "gemma3-mixed": (
        {
            "architecture": "gemma3",
            "weights": "Q5_1",
            "formats": {
                "blk.0.attn_q.weight": "BF16",
                "*ffn_up.weight": "Q4_0",
                "token_embd*": "Q8_0",
            },
            "num_layers": 7,
            "metadata": {
                "gemma3.rope.scaling.type": "linear",
                "gemma3.rope.scaling.factor": 8.0,
            },
            **SIZES,
        },
        {"attention_softcap": 20.0, "final_softcap": 2.0},
    ),
    "llama-untied-partial-rope": (
        {
            "tied": False,
            "dim": 32,
            "ffn_dim": 32,
            "num_heads": 2,
            "num_kv_heads": 2,
            "head_dim": 96,
            "metadata": {"llama.rope.dimension_count": 50},
        },
        {},
    ),
    "llama-multi-query": (
        {"dim": 64, "ffn_dim": 96, "num_heads": 16, "num_kv_heads": 1, "head_dim": 64},
        {},
    ),
    "gemma3-wide-heads": (
        {"architecture": "gemma3", "dim": 64, "num_heads": 1, "num_kv_heads": 1, "head_dim": 256},
        {},
    ),
}


OTHERS = {f"llama-{name}" for name in FORMATS_BY_NAME if name not in FORMATS}


@pytest.fixture(
    params=[pytest.param(m, marks=[pytest.mark.slow] if m in OTHERS else []) for m in MODELS],
    scope="module",
)
def model(request: pytest.FixtureRequest, tiny_gguf: Tiny) -> tuple[Weights, Reference]:
    options, numbers = MODELS[request.param]
    weights = open_weights(tiny_gguf(**options), **numbers)
    return weights, Reference(weights, kv_float16=True, keep=True)


def test_exact_path_equals_the_reference(model: tuple[Weights, Reference]) -> None:
    """In rows, in lanes, and from one to the other; past the windows and over page borders."""
    weights, reference = model
    ids = random_ids(weights, 75)
    expected = reference.run(ids)
    with program_of(weights, activations="float32") as program:
        for chunks in ([64, 11], [1] * 12 + [63], [7, 33, 8, 27]):
            assert_close(run_chunks(program, ids, chunks), expected)


def test_int8_path_stays_near(model: tuple[Weights, Reference]) -> None:
    """Rounding a value to int8 with a scale a group costs some 0.5 %; it does not add up far."""
    weights, reference = model
    ids = random_ids(weights, 75)
    expected = reference.run(ids)
    with program_of(weights) as program:
        every = [run_chunks(program, ids, chunks) for chunks in ([64, 11], [8, 1, 1, 41, 5, 19])]
    for got in every:
        assert_close(got, expected, "int8")
    assert_close(every[0], every[1], "int8")


@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunks_and_single_tokens(tiny_gguf: Tiny, name: str, activations: str) -> None:
    """One chunk, odd chunks and token by token; with float32 they agree to rounding."""
    weights = open_weights(tiny_gguf(architecture=name, weights="Q5_0", **SIZES))
    ids = random_ids(weights, 64)
    with program_of(weights, activations=activations) as program:
        whole = run_chunks(program, ids, [64])
        for chunks in ([33, 31], [9, 10, 45], [1] * 64, [8] * 8, [3, 9, 1, 17, 34]):
            got = run_chunks(program, ids, chunks, seed=len(chunks))
            assert_close(got, whole, activations)


@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_equals_each_alone(tiny_gguf: Tiny, name: str, activations: str) -> None:
    """Prefill chunks and decoded tokens of five sequences in a step, in pages of one pool."""
    weights = open_weights(tiny_gguf(architecture=name, weights="Q4_0", **SIZES))
    lengths = (70, 3, 41, 64, 18)
    pages = scattered(3, 12)
    steps = [  # tokens of each sequence in each step
        (30, 1, 9, 0, 0),
        (1, 1, 1, 0, 0),
        (1, 1, 1, 64, 17),
        (38, 0, 30, 0, 1),
    ]
    assert [sum(column) for column in zip(*steps, strict=True)] == list(lengths)
    every = [random_ids(weights, n, seed) for seed, n in enumerate(lengths)]
    with program_of(weights, activations=activations) as program:
        sequences = []
        for ids in every:
            count = -(-len(ids) // PAGE_SIZE)
            sequences.append(Sequence(ids, pages[:count]))
            pages = pages[count:]
        together: list[list[NDArray]] = [[] for _ in lengths]
        for counts in steps:
            parts = [(i, n) for i, n in enumerate(counts) if n]
            # All logits of short parts, the last one of long ones.
            wanted = [Logits.ALL if n < 10 else Logits.LAST for _, n in parts]
            segments = [sequences[i].segment(n, w) for (i, n), w in zip(parts, wanted, strict=True)]
            rows = program.run(Batch(tuple(segments)))
            sizes = [n if w is Logits.ALL else 1 for (_, n), w in zip(parts, wanted, strict=True)]
            assert len(rows) == sum(sizes)
            split = np.split(rows.copy(), np.cumsum(sizes)[:-1])
            for (i, _), part in zip(parts, split, strict=True):
                together[i].append(part)
        for i, ids in enumerate(every):
            alone = Sequence(ids, scattered(i, 3))
            expected = []
            for counts in steps:
                if n := counts[i]:
                    which = Logits.ALL if n < 10 else Logits.LAST
                    expected.append(program.run(Batch((alone.segment(n, which),))).copy())
            # Alone a few tokens run in rows, in company in lanes: equal up to rounding.
            assert_close(np.concatenate(together[i]), np.concatenate(expected), activations)


def test_which_logits_come_back(tiny_gguf: Tiny) -> None:
    """NONE, LAST and ALL in any mix, few and many rows, in rows and in lanes."""
    weights = open_weights(tiny_gguf(architecture="qwen2", **SIZES))
    reference = Reference(weights, kv_float16=True, keep=True)
    wants = [
        [(5, Logits.NONE)],
        [(20, Logits.NONE)],
        [(3, Logits.ALL), (2, Logits.NONE), (3, Logits.LAST)],
        [(20, Logits.LAST), (7, Logits.NONE), (18, Logits.LAST)],
        [(20, Logits.ALL), (30, Logits.NONE), (21, Logits.LAST), (25, Logits.ALL)],
        [(1, Logits.ALL), (40, Logits.NONE), (7, Logits.ALL)],  # 8 rows
        [(2, Logits.ALL), (40, Logits.NONE), (7, Logits.ALL)],  # 9 rows
        [(64, Logits.ALL)],
        [(1, Logits.LAST)] * 8,
        [(1, Logits.LAST)] * 9,
    ]
    with program_of(weights, activations="float32") as program:
        assert program.max_logits >= 64
        for number, want in enumerate(wants):
            segments, expected = [], []
            for i, (count, which) in enumerate(want):
                ids = random_ids(weights, count, seed=17 * number + i)
                sequence = Sequence(ids, scattered(number, 64)[4 * i : 4 * i + 4])
                segments.append(sequence.segment(count, which))
                if which is not Logits.NONE:
                    last = 1 if which is Logits.LAST else count
                    expected.append(reference.run(ids, num_logits=last))
            got = program.run(Batch(tuple(segments)))
            if expected:
                assert_close(got, np.concatenate(expected))
            else:
                assert got.shape == (0, weights.hyperparameters.vocab_size)


def test_too_many_logits_are_our_own_mistake(tiny_gguf: Tiny) -> None:
    weights = open_weights(tiny_gguf(**SIZES))
    with program_of(weights) as program:
        sequence = Sequence(random_ids(weights, 96), scattered(0, 3))
        with pytest.raises(AssertionError, match="logits"):
            program.run(Batch((sequence.segment(program.max_logits + 1),)))
        sequence = Sequence(random_ids(weights, 96), scattered(0, 3))
        assert len(program.run(Batch((sequence.segment(program.max_logits),)))) == 64


def test_a_view_is_valid_until_the_next_run(tiny_gguf: Tiny) -> None:
    weights = open_weights(tiny_gguf(**SIZES))
    with program_of(weights) as program:
        first = program.run(Batch((Sequence(random_ids(weights, 3), [5]).segment(3),)))
        kept = first.copy()
        again = program.run(Batch((Sequence(random_ids(weights, 3), [9]).segment(3),)))
        np.testing.assert_array_equal(again, kept)
        assert first.dtype == np.float32 and np.shares_memory(first, again)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_long_contexts(tiny_gguf: Tiny, name: str) -> None:
    """Beyond 512 positions: longer rope tables, several attention splits, windows far behind."""
    options: dict[str, Any] = {}
    if name == "gemma3":
        options = {"num_layers": 6, "metadata": {"gemma3.attention.sliding_window": 100}}
    weights = open_weights(tiny_gguf(architecture=name, **options, **SIZES))
    ids = random_ids(weights, 1100)
    reference = Reference(weights, kv_float16=True, keep=True)
    expected = reference.run(ids, num_logits=40)
    with program_of(weights, activations="float32", max_tokens=200) as program:
        sequence = Sequence(ids, scattered(0, 35))
        for count in [200] * 5 + [60]:
            program.run(Batch((sequence.segment(count, Logits.NONE),)))
        parts = [program.run(Batch((sequence.segment(n),))).copy() for n in (21, 1, 8, 1, 9)]
        assert_close(np.concatenate(parts), expected)


@pytest.mark.parametrize("name", ["llama", "qwen2-mixed", "gemma3-mixed"])
def test_the_thread_count_changes_no_bit(tiny_gguf: Tiny, name: str) -> None:
    options, numbers = MODELS[name]
    weights = open_weights(tiny_gguf(**options), **numbers)
    ids = random_ids(weights, 90)
    expected: dict[str, NDArray] = {}
    for threads in (1, 2, 3, 5):
        for activations in ("int8", "float32"):
            with program_of(weights, num_threads=threads, activations=activations) as program:
                got = run_chunks(program, ids, [50, 1, 1, 8, 30])
            np.testing.assert_array_equal(got, expected.setdefault(activations, got))


@pytest.mark.parametrize("count", [1, 5, 40])
def test_runs_repeat_to_the_bit(tiny_gguf: Tiny, count: int) -> None:
    weights = open_weights(tiny_gguf(architecture="qwen2", weights="Q8_0", **SIZES))
    ids = random_ids(weights, count)
    with program_of(weights) as program:
        every = [run_chunks(program, ids, [count], seed=seed) for seed in range(5)]
    for got in every:
        np.testing.assert_array_equal(got, every[0])


@pytest.mark.parametrize("weights", ["Q4_1", "Q5_0", "Q8_0", "F16"])
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_p39_deterministic(tiny_gguf: Tiny, weights: str, cache_type: str) -> None:
    """PAINS P39: equal bits in chunks of any size, alone or among others, on any threads."""
    opened = open_weights(tiny_gguf(weights=weights, **SIZES))
    ids = [random_ids(opened, 60, seed) for seed in range(20)]
    pages = np.array(scattered(0, 40)).reshape(20, 2).tolist()
    expected = None
    for threads in (1, 2, 3):
        options = {"deterministic": True, "cache_type": cache_type, "num_threads": threads}
        with program_of(opened, **options) as program:
            for sizes in ([59], [1] * 59, [8, 31, 20], [13, 33, 13]):
                first = run_chunks(program, ids[0], [n for n in sizes if n] + [1])[-2:]
                expected = first if expected is None else expected
                np.testing.assert_array_equal(first, expected)
            # The first among 19 others, of which some decode and some are in prefill.
            sequences = [Sequence(i, p) for i, p in zip(ids, pages, strict=True)]
            for at, sequence in enumerate(sequences):
                program.run(Batch((sequence.segment(59 - at, Logits.NONE),)))
            sequences[0].done = 58
            mixed = [s.segment(1 + at % 3) for at, s in enumerate(sequences)]
            got = [program.run(Batch(tuple(mixed)))[0].copy()]
            mixed = [s.segment(1) for s in sequences[:9]]
            got.append(program.run(Batch(tuple(mixed)))[0].copy())
            np.testing.assert_array_equal(np.array(got), expected)


def test_pages_of_others_stay(tiny_gguf: Tiny) -> None:
    """A sequence's continuation is not changed by what ran in between in other pages."""
    weights = open_weights(tiny_gguf(**SIZES))
    ids = random_ids(weights, 60)
    with program_of(weights) as program:
        quiet = run_chunks(program, ids, [50, 9, 1])
        sequence = Sequence(ids, scattered(1, 2))
        others = [p for p in range(PAGES) if p not in sequence.table]
        first = program.run(Batch((sequence.segment(50),))).copy()
        for seed in range(3):
            other = Sequence(random_ids(weights, 90, seed + 7), others[3 * seed : 3 * seed + 3])
            program.run(Batch((other.segment(85, Logits.LAST),)))
            program.run(Batch((other.segment(5, Logits.LAST),)))
        rest = [program.run(Batch((sequence.segment(n),))).copy() for n in (9, 1)]
        np.testing.assert_array_equal(np.concatenate([first, *rest]), quiet)


def test_a_program_keeps_the_files_memory(tiny_gguf: Tiny) -> None:
    """Kernels read the mapped file by address: it stays mapped when nobody else holds it."""
    weights = open_weights(tiny_gguf(weights="Q8_0", **SIZES))
    ids = random_ids(weights, 20)
    with program_of(weights) as program:
        expected = run_chunks(program, ids, [20])
        del weights
        gc.collect()
        np.testing.assert_array_equal(run_chunks(program, ids, [20]), expected)


def test_a_closed_program_holds_no_memory(tiny_gguf: Tiny) -> None:
    """Its owner may keep it; the map of the file, the arena and the KV cache go."""
    weights = open_weights(tiny_gguf(weights="Q8_0", **SIZES))
    mapped = weakref.ref(weights.tensor("token_embd.weight").data)
    with program_of(weights) as program:
        run_chunks(program, random_ids(weights, 20), [20])
        weights.gguf.close()
        gc.collect()
        assert mapped() is not None
    gc.collect()
    assert mapped() is None
    with pytest.raises(AssertionError):
        program.run(Batch((Sequence(np.zeros(1, np.int32), [0]).segment(1),)))


def test_fewer_threads_than_asked_for(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that did start end again."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    weights = open_weights(tiny_gguf(**SIZES))
    with program_of(weights):
        pass  # whatever was missing is compiled now, by threads too
    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(ResourceError, match="gives 3 of num_threads=5 threads"):
        build_program(weights, num_pages=4, num_threads=5)
    assert len(started) == 2 and not any(thread.is_alive() for thread in started)


def test_what_is_refused(tiny_gguf: Tiny) -> None:
    weights = open_weights(tiny_gguf(**SIZES))
    with pytest.raises(InvalidParameterError, match="'int4'"):
        build_program(weights, num_pages=4, num_threads=1, activations="int4")
    small = open_weights(tiny_gguf(architecture="llama", ffn_dim=48))
    with pytest.raises(
        UnsupportedModelError,
        match=r"gguf: sizes must be multiples of 32, this model has: feed-forward 48$",
    ):
        build_program(small, num_pages=4, num_threads=1)


def test_progress_is_told_only_when_something_compiles(tiny_gguf: Tiny) -> None:
    weights = open_weights(tiny_gguf(**SIZES))
    with program_of(weights):
        pass  # whatever was missing is compiled now
    told: list[tuple[int, int]] = []
    with program_of(weights, progress=lambda done, total: told.append((done, total))):
        assert told == []
