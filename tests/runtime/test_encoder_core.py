"""Encoders over fakes: each text whole in a step, none mixed up, too long ones refused or cut."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llamba import LLM, SamplingParams
from llamba.errors import ContextLengthError, InvalidParameterError, UnsupportedTaskError
from llamba.runtime import llm as llm_module
from llamba.runtime.adapter_set import AdapterSet
from llamba.runtime.batch import Batch, Logits
from llamba.runtime.config import EngineConfig
from llamba.runtime.sizing import configure

STEP = 40


class Encoder:
    """A state depends on the whole text. Refuses steps that no encoder can run."""

    num_pages, max_tokens, max_logits = 4, STEP, 8
    segments: list[list[list[int]]]

    def __init__(self, fakes: SimpleNamespace) -> None:
        self.segments, self._of = [], fakes.Program().state_of
        self.fail_on = -1

    def run(self, batch: Batch) -> np.ndarray:
        assert 0 < batch.num_tokens <= self.max_tokens
        texts, pages = [], []
        for segment in batch.segments:
            assert segment.start == 0 and segment.logits is Logits.HIDDEN
            assert len(segment.block_table) * 32 >= segment.num_tokens
            pages += segment.block_table.tolist()
            texts.append(segment.token_ids.tolist())
        assert len(set(pages)) == len(pages), "two texts share a page"
        self.segments.append(texts)
        if any(self.fail_on in text for text in texts):
            raise RuntimeError("a step failed")
        return np.empty((0, 260), np.float32)

    def state_of(self, text: list[int], position: int) -> np.ndarray:
        return self._of([position, len(text), *text])

    def hidden_states(self, segment: int, tokens: slice = slice(None)) -> np.ndarray:
        text = self.segments[-1][segment]
        states = [self.state_of(text, i) for i in range(len(text))[tokens]]
        return np.array(states, np.float32).reshape(len(states), -1)

    def copy_page(self, source: int, target: int) -> None:
        raise AssertionError("nothing is shared")

    def close(self) -> None:
        pass


@pytest.fixture
def program(fakes: SimpleNamespace) -> Encoder:
    return Encoder(fakes)


@pytest.fixture
def llm(fakes: SimpleNamespace, program: Encoder, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    numbers = SimpleNamespace(context_length=STEP, dim=fakes.DIM, num_labels=0, head_pooling="")
    loaded = SimpleNamespace(
        path=Path("fake.gguf"),
        gguf=SimpleNamespace(metadata={"general.architecture": "fake-bert"}),
        weights=SimpleNamespace(hyperparameters=numbers, optional=lambda name: None),
        adapters=AdapterSet(),
        tokenizer=fakes.Tokenizer(),
        chat_template=None,
        chat_template_error=None,
        default_params=SamplingParams(),
        config=EngineConfig(
            context_length=STEP,
            num_threads=1,
            max_tokens=STEP,
            kv_tokens=128,
            prefix_cache=False,
            whole_prompts=True,
        ),
        program=program,
        close=program.close,
    )
    monkeypatch.setattr(llm_module, "load", lambda model, **_: loaded)
    with LLM("fake", seed=1) as model:
        yield model


def test_every_text_runs_whole(llm: LLM, program: Encoder) -> None:
    """As many as fit beside each other; each gets the mean of its own states."""
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 255, n).tolist() for n in [STEP, 1, *rng.integers(1, STEP, 61), 1]]
    inputs += [inputs[0], inputs[5]]  # the same again, which might find its pages
    outputs = llm.embed(inputs, normalize=False)
    for ids, output in zip(inputs, outputs, strict=True):
        states = [program.state_of(ids, i) for i in range(len(ids))]
        assert output.embedding is not None
        np.testing.assert_allclose(output.embedding, np.mean(states, axis=0), rtol=1e-5, atol=1e-6)
    run = [text for step in program.segments for text in step]
    assert sorted(run) == sorted(inputs)
    assert len(program.segments) < len(inputs)
    assert llm.stats.pages_used == llm.stats.pages_cached == 0
    assert llm.stats.cached_tokens == 0


@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_single_states_need_the_whole_text_too(llm: LLM, program: Encoder, pooling: Any) -> None:
    ids = list(range(33))
    [output] = llm.embed(ids, pooling=pooling, normalize=False)
    at = 0 if pooling == "cls" else 32
    assert output.embedding is not None
    np.testing.assert_allclose(output.embedding, program.state_of(ids, at), rtol=1e-6)
    assert program.segments == [[ids]]


def test_a_failing_step_ends_its_own_texts(llm: LLM, program: Encoder) -> None:
    program.fail_on = 99
    with pytest.raises(RuntimeError, match="a step failed"):
        llm.embed([[99] * STEP, [1] * STEP])
    [fine] = llm.embed([[1] * STEP])
    assert fine.embedding is not None and llm.stats.pages_used == 0


def test_too_long_texts(llm: LLM, program: Encoder) -> None:
    with pytest.raises(ContextLengthError, match=f"{STEP + 1} tokens.*reads {STEP} at most"):
        llm.embed([0] * (STEP + 1))
    with pytest.raises(ContextLengthError, match=rf"inputs\[1\]: .*{STEP + 2} tokens"):
        llm.embed(["a", "b" * (STEP + 1)])
    with pytest.raises(ContextLengthError, match="1,000,000 characters"):
        llm.embed("b" * 1_000_000)
    assert not program.segments
    outputs = llm.embed([[7] * 99, "b" * 1_000_000, "a"], truncate=True)
    assert [len(o.prompt_token_ids) for o in outputs] == [STEP, STEP, 2]


def test_it_generates_nothing_and_says_so(llm: LLM) -> None:
    for call in (llm.generate, llm.submit):
        with pytest.raises(UnsupportedTaskError, match="fake-bert.*embed") as caught:
            call("Hello")
        assert caught.value.exit_code == 5
    conversation = [{"role": "user", "content": "Hello"}]
    for call in (llm.chat, llm.submit_chat):
        with pytest.raises(UnsupportedTaskError, match="can't generate"):
            call(conversation)
    with pytest.raises(InvalidParameterError, match="pooling='rank'"):
        llm.embed("a", pooling="rank")


def test_sizes_of_an_encoder(tiny_models: Any, tmp_path: Path) -> None:
    """A step holds the context, nothing is cached; one text a step where bits must be the same."""
    from llamba.models.gguf import GGUFFile
    from llamba.models.weights import Weights

    with GGUFFile.open(tiny_models.write(tmp_path, "bert", "F32")) as gguf:
        weights = Weights.open(gguf)
        own = weights.hyperparameters.context_length
        config = configure(weights)
        assert config.whole_prompts and not config.prefix_cache
        assert config.context_length == own and config.max_tokens >= own
        assert config.max_sequence_length == own
        assert configure(weights, context_length=100).max_sequence_length == 100
        alone = configure(weights, deterministic=True, max_sequences=9)
        assert alone.max_sequences == 1 and not alone.deterministic
        with pytest.raises(InvalidParameterError, match="context_length=100000"):
            configure(weights, context_length=100_000)
        with pytest.raises(InvalidParameterError, match="prefix_cache"):
            configure(weights, prefix_cache="no")  # type: ignore[arg-type]
