"""LLM.embed over fakes: shapes of inputs, what is refused, streams, asyncio."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llamba import LLM, SamplingParams
from llamba.errors import ContextLengthError, InvalidParameterError, LlambaError
from llamba.runtime import llm as llm_module
from llamba.runtime.adapter_set import AdapterSet
from llamba.runtime.config import EngineConfig

CONTEXT = 250
GREEDY = SamplingParams(temperature=0, max_tokens=12, seed=0)


@pytest.fixture
def loaded(fakes: SimpleNamespace) -> SimpleNamespace:
    """What load() returns, made of fakes."""
    program = fakes.Program()
    return SimpleNamespace(
        path=Path("fake.gguf"),
        gguf=SimpleNamespace(metadata={"general.architecture": "fake"}),
        weights=SimpleNamespace(
            hyperparameters=SimpleNamespace(
                context_length=1000, dim=fakes.DIM, num_labels=0, head_pooling=""
            ),
            optional=lambda name: None,
        ),
        tokenizer=fakes.Tokenizer(),
        chat_template=None,
        chat_template_error=None,
        default_params=SamplingParams(max_tokens=7),
        config=EngineConfig(context_length=CONTEXT, num_threads=2, max_tokens=16),
        program=program,
        adapters=AdapterSet(),
        close=program.close,
    )


@pytest.fixture
def llm(loaded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """An LLM over fakes."""
    monkeypatch.setattr(llm_module, "load", lambda model, **_: loaded)
    with LLM("fake", seed=1) as model:
        yield model


def vectors(outputs: Any) -> np.ndarray:
    assert all(o.finished and o.error is None for o in outputs)
    return np.array([o.embedding for o in outputs])


def test_input_shapes(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello")
    one = llm.embed("hello")
    assert len(one) == 1 and one[0].prompt == "hello" and one[0].prompt_token_ids == ids
    assert one[0].embedding is not None and one[0].embedding.dtype == np.float32
    same: list[Any] = [ids, tuple(ids), np.array(ids), ["hello"], [ids], (np.array(ids),)]
    for inputs in same:
        np.testing.assert_array_equal(vectors(llm.embed(inputs)), vectors(one))
    np.testing.assert_array_equal(
        vectors(llm.embed(np.array([ids, ids]))),  # type: ignore[arg-type]
        vectors(one + one),
    )
    assert llm.embed(ids)[0].prompt is None
    several = llm.embed(["hello", llm.tokenizer.encode("world"), "hello"])
    assert [o.prompt for o in several] == ["hello", None, "hello"]
    np.testing.assert_array_equal(several[0].embedding, several[2].embedding)
    assert not np.array_equal(several[0].embedding, several[1].embedding)  # type: ignore[arg-type]


def test_settings(llm: LLM, loaded: SimpleNamespace, fakes: SimpleNamespace) -> None:
    def one(**options: Any) -> np.ndarray:
        return vectors(llm.embed("hello", **options))[0]

    ids = llm.tokenizer.encode("hello")
    states = [loaded.program.state_of(ids[: i + 1]) for i in range(len(ids))]
    raw = {"mean": np.mean(states, axis=0, dtype=np.float64), "last": states[-1], "cls": states[0]}
    for kind, vector in raw.items():
        np.testing.assert_allclose(one(pooling=kind, normalize=False), vector, rtol=1e-6)
        unit = vector / np.linalg.norm(vector)
        np.testing.assert_allclose(one(pooling=kind), unit, rtol=1e-5)
        cut = vector[:3] / np.linalg.norm(vector[:3])
        np.testing.assert_allclose(one(pooling=kind, dimensions=3), cut, rtol=1e-5)
    np.testing.assert_array_equal(one(), one(pooling="mean"))
    loaded.gguf.metadata["fake.pooling_type"] = 3
    np.testing.assert_array_equal(one(), one(pooling="last"))
    np.testing.assert_array_equal(one(dimensions=fakes.DIM), one())
    steps = llm.stats.steps
    for name, bad in [
        ("pooling", "max"),
        ("normalize", 1),
        ("dimensions", 0),
        ("dimensions", fakes.DIM + 1),
        ("priority", -1),
        ("timeout_s", 0),
    ]:
        with pytest.raises(InvalidParameterError, match=f"{name}="):
            one(**{name: bad})
    assert llm.stats.steps == steps


@pytest.mark.parametrize("bad", [5, None, b"x", {"prompt": "x"}, [], (), {"a"}, np.array(5)])
def test_bad_inputs(llm: LLM, bad: Any) -> None:
    with pytest.raises(InvalidParameterError, match="inputs"):
        llm.embed(bad)


@pytest.mark.parametrize("bad", ["", [], [1, "x"], [1, -1], [260], [1.0], [True], None, 5, b"x"])
def test_one_bad_input_is_named(llm: LLM, bad: Any) -> None:
    """All or nothing: nothing runs, and the message has the index and keeps its kind."""
    with pytest.raises(InvalidParameterError, match=r"^inputs\[2\]: "):
        llm.embed(["a", "b", bad, "c"])
    with pytest.raises(ContextLengthError, match=r"^inputs\[1\]: .*250"):
        llm.embed(["a", "x" * CONTEXT])
    with pytest.raises(InvalidParameterError, match="empty text"):
        llm.embed("")
    assert llm.stats.steps == 0


def test_control_tokens_in_texts_are_text(llm: LLM) -> None:
    """PAINS P27: what a document says is no special token."""
    [output] = llm.embed("<bos>x")
    assert output.prompt_token_ids == llm.tokenizer.encode("<bos>x", parse_special=False)


def test_p66_lengths_around_every_limit(llm: LLM, loaded: SimpleNamespace) -> None:
    """PAINS P66: chunks inside up to the context, an error above it, order kept, nothing echoed."""
    limit = loaded.program.max_tokens
    counts = [1, limit - 1, limit, limit + 1, 2 * limit, 2 * limit + 1, CONTEXT - 1, CONTEXT]
    texts = [[7] * n for n in counts]
    together = vectors(llm.embed(texts))
    alone = np.concatenate([vectors(llm.embed(ids)) for ids in texts])
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(together, axis=0)) == len(counts)
    for size in (CONTEXT + 1, 1001):
        message = f"has {size} tokens, but context_length is {CONTEXT}: .*up to 1000"
        with pytest.raises(ContextLengthError, match=message):
            llm.embed([7] * size)
    with pytest.raises(ContextLengthError, match="5,000 characters"):
        llm.embed("x" * 5000)  # before it is tokenized
    many = [f"{i % 64}" for i in range(2048)]
    outputs = llm.embed(many)
    assert [o.prompt for o in outputs] == many
    got = vectors(outputs)
    np.testing.assert_array_equal(got, np.tile(got[:64], (32, 1)))
    assert llm.stats.pages_used == 0


def test_beside_answers(llm: LLM) -> None:
    expected = llm.generate(["one", "two"], GREEDY)
    vector = vectors(llm.embed("three"))
    streams = [llm.submit(p, GREEDY) for p in ("one", "two")]
    embedded = llm.submit_embed(["three", "x" * 100], priority=1)
    assert [s.result().outputs for s in streams] == [e.outputs for e in expected]
    np.testing.assert_array_equal(vectors(embedded.results())[:1], vector)
    assert expected[0].embedding is None


def test_streams(llm: LLM) -> None:
    whole = llm.embed(["a", "b", "c"])
    items = list(llm.submit_embed(["a", "b", "c"]))
    assert [i.prompt for i in items] == ["a", "b", "c"]
    np.testing.assert_array_equal(vectors(items), vectors(whole))


def test_asyncio(llm: LLM) -> None:
    expected = vectors(llm.embed(["a", "b"]))

    async def main() -> None:
        streams = [llm.submit_embed(["a", "b"]) for _ in range(4)]
        for outputs in await asyncio.gather(*(s.wait_results() for s in streams)):
            np.testing.assert_array_equal(vectors(outputs), expected)
        last = await llm.submit_embed(["a", "b"]).wait_result()
        np.testing.assert_array_equal(last.embedding, expected[1])
        items = [item async for item in llm.submit_embed(["a", "b"])]
        np.testing.assert_array_equal(vectors(items), expected)
        answers = await llm.generate(["a", "b"], GREEDY, stream=True).wait_results()
        assert [a.prompt for a in answers] == ["a", "b"] and all(a.finished for a in answers)

    asyncio.run(main())


def test_a_cancelled_task_cancels_all(llm: LLM, loaded: SimpleNamespace) -> None:
    gate, begun = threading.Event(), threading.Event()

    def before(_: object) -> None:
        begun.set()
        gate.wait(60)

    loaded.program.before = before

    async def main() -> None:
        texts = [[i] * 200 for i in range(20)]
        task = asyncio.create_task(llm.submit_embed(texts).wait_results())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        while llm.engine.core.has_work or llm.stats.pages_used:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert llm.stats.cancellations > 10 and llm.stats.pages_used == 0


def test_a_timeout(llm: LLM, loaded: SimpleNamespace) -> None:
    gate = threading.Event()
    loaded.program.before = lambda _: gate.wait(0.05)
    outputs = llm.embed([[1] * 200, [2] * 200], timeout_s=0.1)
    for output in outputs:
        assert output.embedding is None and output.finished
        assert output.outputs[0].stop_reason == "timeout"
    assert llm.stats.expirations == 2


def test_a_failing_step_is_raised(llm: LLM, loaded: SimpleNamespace) -> None:
    loaded.program.before = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        llm.embed(["a", "b"])
    loaded.program.before = None
    assert len(llm.embed(["a", "b"])) == 2


def test_closed_and_forked(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(LlambaError, match="spawn"):
            llm.embed("a")
    llm.close()
    with pytest.raises(LlambaError, match="closed"):
        llm.embed("a")
