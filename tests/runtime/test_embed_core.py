"""Embeddings in EngineCore, over a program that only keeps books: chunks, company, few pages."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamba.runtime.batch import Batch, Logits
from llamba.runtime.params import SamplingParams
from llamba.runtime.pooling import Pooling, StateKind
from llamba.runtime.request import Request

KINDS: tuple[StateKind, ...] = ("mean", "last", "cls")
Embed = Callable[..., Request]


@pytest.fixture(scope="session")
def embed(fakes: SimpleNamespace) -> Embed:
    """A request for the embedding of token ids."""

    def build(ids: list[int], kind: StateKind = "mean", **options: Any) -> Request:
        return Request(
            None,
            ids,
            SamplingParams(max_tokens=0),
            fakes.Tokenizer(),
            seed=0,
            max_new_tokens=0,
            pooling=Pooling(kind),
            **options,
        )

    return build


def expected(fakes: SimpleNamespace, ids: list[int], kind: StateKind = "mean") -> np.ndarray:
    """From the states of a program, one context after the other."""
    program = fakes.Program()
    rows = np.array([program.state_of(ids[: i + 1]) for i in range(len(ids))], np.float64)
    vector = {"mean": rows.mean(axis=0), "last": rows[-1], "cls": rows[0]}[kind]
    return vector / np.linalg.norm(vector)


def assert_close(got: np.ndarray | None, wanted: np.ndarray) -> None:
    """An embedding is there, and is this one."""
    assert got is not None and got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 100])
def test_lengths(fakes: SimpleNamespace, embed: Embed, kind: StateKind, count: int) -> None:
    ids, program = tokens(count), fakes.Program()
    [output] = fakes.drive(fakes.core(program), embed(ids, kind))
    assert_close(output.embedding, expected(fakes, ids, kind))
    assert sum(n for _, n in program.chunks) == count and max(n for _, n in program.chunks) <= 16
    [answer] = output.outputs
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", [], "stop")
    assert output.finished and output.error is None and output.prompt_token_ids == ids
    metrics = output.metrics
    assert metrics.completion_tokens == 0 and metrics.prompt_tokens == count
    assert metrics.ttft_s is None and metrics.decode_s == 0 and metrics.prefill_s > 0


def test_chunks_are_not_limited_by_rows_of_logits(fakes: SimpleNamespace, embed: Embed) -> None:
    program = fakes.Program(max_tokens=64, max_logits=2)
    core = fakes.core(program)
    fakes.drive(core, *(embed(tokens(30, seed)) for seed in range(4)))
    assert core.stats.steps == 2


def test_the_whole_pool(fakes: SimpleNamespace, embed: Embed) -> None:
    """No page is kept for an answer."""
    program = fakes.Program(num_pages=3)
    [output] = fakes.drive(fakes.core(program), embed(tokens(96)))
    assert_close(output.embedding, expected(fakes, tokens(96)))


def test_others_answer_as_if_alone(fakes: SimpleNamespace, embed: Embed) -> None:
    core = fakes.core(fakes.Program())
    prompts = ["one", "two and three", "x" * 40]
    answers = [fakes.request(p, max_tokens=25) for p in prompts]
    texts = [embed(tokens(20 + 13 * i, i), KINDS[i % 3]) for i in range(5)]
    mixed = [*texts[:2], *answers, *texts[2:]]
    fakes.drive(core, *mixed)
    for prompt, request in zip(prompts, answers, strict=True):
        output = request.output()
        assert output.outputs == fakes.alone(prompt, max_tokens=25).outputs
        assert output.embedding is None
    for i, request in enumerate(texts):
        wanted = expected(fakes, request.prompt_ids, KINDS[i % 3])
        assert_close(request.embedding, wanted)
    assert core.stats.pages_used == 0 and core.stats.finished == 8


@pytest.mark.parametrize("kind", KINDS)
def test_the_prefix_cache(fakes: SimpleNamespace, embed: Embed, kind: StateKind) -> None:
    """Whoever needs all positions runs them; K and V of all are findable afterwards."""
    program = fakes.Program()
    core, ids = fakes.core(program), tokens(70)
    [first] = fakes.drive(core, embed(ids, kind))
    program.chunks.clear()
    [second] = fakes.drive(core, embed(ids, kind))
    np.testing.assert_array_equal(first.embedding, second.embedding)
    run = sum(n for _, n in program.chunks)
    assert (run, second.metrics.cached_tokens) == ((1, 69) if kind == "last" else (70, 0))
    params = SamplingParams(temperature=0, max_tokens=2)
    [answer] = fakes.drive(core, fakes.of_ids([*ids, 5], params))
    assert answer.metrics.cached_tokens == 70


@pytest.mark.parametrize("kind", KINDS)
def test_preempted(fakes: SimpleNamespace, embed: Embed, kind: StateKind) -> None:
    """No position counts twice, and none is left out, when it has to run again."""
    for prefix_cache in (True, False):
        program = fakes.Program(num_pages=4, max_tokens=16)
        core, ids = fakes.core(program, prefix_cache=prefix_cache), tokens(90)
        background = embed(ids, kind, priority=1)
        core.submit(background)
        for _ in range(4):  # 64 of 90 positions
            core.step()
        urgent = fakes.request("x" * 60, max_tokens=30)
        fakes.drive(core, urgent)
        assert core.stats.preemptions == 1 and core.stats.pages_used == 0
        output = background.output()
        wanted = expected(fakes, ids, kind)
        assert_close(output.embedding, wanted)
        assert urgent.output().outputs == fakes.alone("x" * 60, max_tokens=30).outputs


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.tuples(st.integers(1, 90), st.sampled_from(KINDS), st.integers(0, 1))),
    answers=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), max_size=4),
    max_tokens=st.integers(1, 40),
    prefix_cache=st.booleans(),
    cancelled=st.integers(0, 8),
)
def test_any_mix(
    fakes: SimpleNamespace,
    embed: Embed,
    texts: list[tuple[int, StateKind, int]],
    answers: list[tuple[int, int]],
    max_tokens: int,
    prefix_cache: bool,
    cancelled: int,
) -> None:
    """On four pages, so that they take them from each other; one is cancelled on the way."""
    program = fakes.Program(num_pages=4, max_tokens=max_tokens)
    core = fakes.core(program, prefix_cache=prefix_cache, max_sequences=3)
    asked = [embed(tokens(n, n % 3), kind, priority=p) for n, kind, p in texts]
    others = [fakes.request("y" * n, max_tokens=m, context=128) for n, m in answers]
    for pair in zip(asked, others, strict=False):
        for request in pair:
            core.submit(request)
            core.step()
    if cancelled < len(asked):
        core.cancel(asked[cancelled])
    fakes.drive(core, *asked[len(others) :], *others[len(asked) :])
    for request, (_, kind, _) in zip(asked, texts, strict=True):
        output = request.output()
        if output.outputs[0].finish_reason == "abort":
            assert request.cancelled and output.embedding is None
            continue
        wanted = expected(fakes, request.prompt_ids, kind)
        assert_close(output.embedding, wanted)
    for request in others:
        assert request.finish_reason in ("length", "stop") and request.embedding is None
    assert core.stats.pages_used == core.stats.running == core.stats.waiting == 0


def test_cancelled_and_timed_out(fakes: SimpleNamespace, embed: Embed) -> None:
    now = [0.0]
    core = fakes.core(fakes.Program(), clock=lambda: now[0])
    first, second, third = (embed(tokens(60, i), timeout_s=t) for i, t in enumerate((9, None, 99)))
    for request in (first, second, third):
        core.submit(request)
    core.step()
    core.cancel(second)
    now[0] = 10.0
    fakes.drive(core)
    for request, reason in ((first, "timeout"), (second, None)):
        output = request.output()
        assert output.finished and output.embedding is None and output.error is None
        assert output.outputs[0].finish_reason == "abort"
        assert output.outputs[0].stop_reason == reason
    assert third.output().embedding is not None
    assert (core.stats.expirations, core.stats.cancellations) == (1, 1)
    assert core.stats.pages_used == 0


def test_failures(fakes: SimpleNamespace, embed: Embed, monkeypatch: pytest.MonkeyPatch) -> None:
    """States that are undefined end their request alone; a failing step all of its own."""
    program = fakes.Program()
    core = fakes.core(program)
    bad, good = embed([255, 1, 2]), embed([1, 2, 3])
    state_of = program.state_of
    monkeypatch.setattr(
        program, "state_of", lambda c: state_of(c) * (np.nan if c[0] == 255 else 1.0)
    )
    fakes.drive(core, bad, good)
    assert "no embedding" in str(bad.output().error) and bad.finish_reason == "error"
    assert good.output().embedding is not None
    program.before = lambda _: 1 / 0
    [output] = fakes.drive(core, embed([4, 5]))
    assert isinstance(output.error, ZeroDivisionError) and output.embedding is None
    assert core.stats.pages_used == 0


def test_states_are_read_only_where_they_are_wanted(fakes: SimpleNamespace, embed: Embed) -> None:
    program, read, kinds = fakes.Program(), [], []
    original = program.hidden_states

    def hidden_states(segment: int, wanted: slice) -> np.ndarray:
        rows = original(segment, wanted)
        read.append(len(rows))
        return rows

    def before(batch: Batch) -> None:
        kinds.extend(s.logits for s in batch.segments)

    program.hidden_states, program.before = hidden_states, before
    core = fakes.core(program)
    fakes.drive(core, fakes.request("x" * 40, max_tokens=9))
    assert read == [] and Logits.HIDDEN not in kinds
    fakes.drive(core, embed(tokens(40), "last"))
    assert read == [1]
    read.clear()
    fakes.drive(core, embed(tokens(40), "cls"))
    assert read == [1, 0, 0]


def test_streams_wake_once(fakes: SimpleNamespace, embed: Embed) -> None:
    """One item a text, however many steps it took."""
    engine = fakes.engine(fakes.Program())
    gate = threading.Event()
    engine.core.program.before = lambda _: gate.wait(10)
    stream = engine.submit_all([embed(tokens(50, i)) for i in range(3)])
    gate.set()
    items = list(stream)
    assert len(items) == 3 and all(i.finished and i.embedding is not None for i in items)
    assert [i.embedding.tolist() for i in items] == [o.embedding.tolist() for o in stream.results()]
    engine.close()
