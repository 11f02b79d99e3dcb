"""Embeddings by compiled kernels: tiny models against the float64 reference, and to the bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba import LLM, SamplingParams
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.engine import Engine
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import Reference, rms_norm
from llamba.runtime.pooling import Pooling, StateKind
from llamba.runtime.request import Request
from llamba.runtime.stats import StepStats
from llamba.runtime.stream import RequestStream

pytestmark = pytest.mark.kernels

Tiny = Callable[..., Path]
SIZES = {
    "dim": 96, "ffn_dim": 160, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32,
    "context_length": 1024,
}  # fmt: skip
ARCHITECTURES = ("llama", "qwen2", "gemma3")
KINDS: tuple[StateKind, ...] = ("mean", "last", "cls")
LENGTHS = [1, 31, 32, 33, 64, 65, 511, 512, 513, 600]
# Largest differences in units of the vector's largest number. A K or V that float32 puts on the
# other side of a float16's rounding border moves one state by more (a reference in float32 does so,
# too: 1.2e-4 from that in float64); the mean of many hides it.
EXACT, EXACT_ONE, EXACT_MIDDLE = 1e-4, 5e-4, 2e-5
NEAR = 0.999  # cosine


def states_of(weights: Weights, ids: list[int]) -> NDArray[np.float64]:
    """The reference's hidden states after the output norm, (tokens, dim)."""
    seen: dict[str, NDArray] = {}
    reference = Reference(weights, kv_float16=True, trace=seen.__setitem__)
    reference.run(np.array(ids, np.int32), num_logits=1)
    numbers = weights.hyperparameters
    x = seen[f"blk.{numbers.num_layers - 1}.out"]
    return rms_norm(x, weights.f32("output_norm.weight").astype(np.float64), numbers.norm_eps)


def pooled(states: NDArray, kind: StateKind) -> NDArray:
    return {"mean": states.mean(axis=0), "last": states[-1], "cls": states[0]}[kind]


def random_ids(llm: LLM, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, llm.tokenizer.vocab_size, count).tolist()


def vectors(llm: LLM, inputs: list[list[int]], **options: Any) -> NDArray[np.float32]:
    return np.array([o.embedding for o in llm.embed(inputs, **options)])


@contextmanager
def tiny_llm(path: Path, **options: Any) -> Iterator[LLM]:
    with LLM(path, **{"num_threads": 2, "context_length": 1024, **options}) as llm:
        yield llm


@pytest.mark.parametrize("deterministic", [False, True], ids=["lanes", "rows"])
@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_against_the_reference(
    tiny_gguf: Tiny, name: str, activations: str, deterministic: bool
) -> None:
    """All lengths in one call, then each alone: in lanes where there are more than a few tokens."""
    path = tiny_gguf(architecture=name, weights="Q8_0", **SIZES)
    options = {"activations": activations, "deterministic": deterministic}
    with tiny_llm(path, **options) as llm:
        inputs = [random_ids(llm, n, seed=n) for n in LENGTHS]
        states = [states_of(llm.weights, ids) for ids in inputs]
        for kind in KINDS:
            expected = np.array([pooled(s, kind) for s in states])
            together = vectors(llm, inputs, pooling=kind, normalize=False)
            alone = [vectors(llm, [ids], pooling=kind, normalize=False)[0] for ids in inputs]
            for got in (together, np.array(alone)):
                if activations == "float32":
                    errors = np.abs(got - expected).max(axis=1) / np.abs(expected).max(axis=1)
                    limit = EXACT_ONE if kind == "last" else EXACT
                    assert errors.max() < limit, (kind, errors)
                    assert np.median(errors) < EXACT_MIDDLE, (kind, errors)
                else:
                    cosines = np.sum(got * expected, axis=1) / (
                        np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
                    )
                    assert cosines.min() > NEAR, (kind, cosines)
            if deterministic:
                np.testing.assert_array_equal(together, np.array(alone))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_state_of_a_program(tiny_gguf: Tiny, name: str) -> None:
    """HIDDEN beside all other wants, in rows and lanes; others' logits are as without it."""
    path = tiny_gguf(architecture=name, **SIZES)
    with tiny_llm(path, activations="float32") as llm:
        for steps in (
            [(3, Logits.HIDDEN), (2, Logits.ALL), (1, Logits.HIDDEN)],  # rows
            [(40, Logits.HIDDEN), (1, Logits.LAST), (1, Logits.HIDDEN), (21, Logits.HIDDEN)],
            [(100, Logits.NONE), (7, Logits.HIDDEN), (33, Logits.HIDDEN), (5, Logits.ALL)],
            [(1, Logits.HIDDEN), (1, Logits.LAST)] * 10,  # rows of many sequences
        ):
            segments, free = [], 0
            for i, (count, wants) in enumerate(steps):
                ids = np.array(random_ids(llm, count, seed=i), np.int32)
                pages = np.arange(free, free - (-count // PAGE_SIZE), dtype=np.int32)
                free += len(pages)
                segments.append(Segment(ids, 0, pages, wants))
            rows: Any = llm.program.run(Batch(tuple(segments)))
            logits = rows.copy()
            for i, segment in enumerate(segments):
                if segment.logits is Logits.HIDDEN:
                    expected = states_of(llm.weights, segment.token_ids.tolist())
                    got = llm.program.hidden_states(i)
                    assert got.shape == expected.shape and got.dtype == np.float32
                    errors = np.abs(got - expected).max(axis=1) / np.abs(expected).max(axis=1)
                    assert errors.max() < EXACT_ONE and np.median(errors) < EXACT
                    last = llm.program.hidden_states(i, slice(-1, None))
                    np.testing.assert_array_equal(last, got[-1:])
            plain = [
                Segment(s.token_ids, 0, s.block_table, Logits.NONE)
                if s.logits is Logits.HIDDEN
                else s
                for s in segments
            ]
            np.testing.assert_array_equal(llm.program.run(Batch(tuple(plain))), logits)
            with pytest.raises(KeyError):
                llm.program.hidden_states(0)  # the last run wanted none


@pytest.mark.parametrize("max_tokens", [16, 96, 160])
def test_chunks_of_other_sizes(tiny_gguf: Tiny, max_tokens: int) -> None:
    path = tiny_gguf(architecture="gemma3", weights="Q8_0", **SIZES)
    with tiny_llm(path) as llm:
        program = build_program(
            llm.weights,
            num_pages=32,
            num_threads=2,
            max_tokens=max_tokens,
            activations="float32",
        )
        engine = Engine(program, llm.tokenizer)
        try:
            ids = random_ids(llm, 600)
            states = states_of(llm.weights, ids)
            for kind in KINDS:
                request = Request(
                    None,
                    ids,
                    SamplingParams(max_tokens=0),
                    llm.tokenizer,
                    seed=0,
                    max_new_tokens=0,
                    pooling=Pooling(kind, normalize=False),
                )
                got, expected = engine.submit(request).result().embedding, pooled(states, kind)
                assert got is not None
                assert np.abs(got - expected).max() / np.abs(expected).max() < (
                    EXACT_ONE if kind == "last" else EXACT
                )
        finally:
            engine.close()
            program.close()


def test_deterministic(tiny_gguf: Tiny) -> None:
    """PAINS P39: equal bits alone, beside answers, and when pages are short; answers as well."""
    path = tiny_gguf(architecture="qwen2", weights="Q4_0", **SIZES)
    greedy = SamplingParams(temperature=0, max_tokens=40, seed=0, ignore_eos=True)
    with tiny_llm(path, deterministic=True, prefix_cache=False) as llm:
        texts = [random_ids(llm, n, seed=n) for n in (5, 64, 90, 200, 333, 450)]
        prompts = ["hello world", "the hello and the world " * 6, "x"]
        alone = [vectors(llm, [t], pooling=k)[0] for t in texts for k in KINDS]
        answers = [llm.generate(p, greedy)[0].outputs for p in prompts]
    with tiny_llm(path, deterministic=True, kv_tokens=480, num_threads=1) as llm:
        others: list[RequestStream] = []

        def interrupt(_: StepStats) -> None:
            """In the midst of embedding, answers want the pages."""
            if not others and llm.stats.pages_used > 12:
                others.extend(llm.submit(p, greedy) for p in prompts * 3)

        llm.engine.add_step_listener(interrupt)

        def submit() -> list[RequestStream]:
            return [llm.submit_embed(t, pooling=k, priority=1) for t in texts for k in KINDS]

        for _ in range(2):  # with other prefix hits
            others.clear()
            streams = llm.engine.run_between_steps(submit)  # so that all of them come at once
            got = [s.result().embedding for s in streams]
            np.testing.assert_array_equal(np.array(got), np.array(alone))
            assert [s.result().outputs for s in others] == answers * 3
        assert llm.stats.preemptions > 0 and llm.stats.pages_used == 0


def test_a_closed_llm(tiny_gguf: Tiny) -> None:
    with tiny_llm(tiny_gguf(**SIZES)) as llm:
        llm.embed([1, 2, 3])
        program = llm.program
    with pytest.raises(AssertionError, match="closed"):
        program.hidden_states(0)
