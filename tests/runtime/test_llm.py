"""LLM: shapes of prompts and answers, checks at the door, streams, chat; then a real model."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llamba import LLM, SamplingParams
from llamba.errors import (
    ChatTemplateError,
    ContextLengthError,
    InvalidParameterError,
    LlambaError,
)
from llamba.runtime import llm as llm_module
from llamba.runtime.adapter_set import AdapterSet
from llamba.runtime.config import EngineConfig
from llamba.runtime.load import default_params

GREEDY = SamplingParams(temperature=0, max_tokens=12, seed=0)


class Template:
    """Renders a conversation plainly; contents are tokenized apart."""

    def __init__(self, fakes: SimpleNamespace) -> None:
        self.fakes = fakes
        self.options: dict[str, Any] = {}

    def encode(self, messages: Any, *, add_generation_prompt: bool = True, **kw: Any) -> list[int]:
        self.options = kw
        ids = [self.fakes.BOS]
        for message in messages:
            ids += [self.fakes.USER, *message["content"].encode(), self.fakes.EOS]
        return ids + [self.fakes.USER] * add_generation_prompt


@pytest.fixture
def loaded(fakes: SimpleNamespace) -> SimpleNamespace:
    """What load() returns, made of fakes."""
    program = fakes.Program()
    return SimpleNamespace(
        path=Path("fake.gguf"),
        weights=SimpleNamespace(hyperparameters=SimpleNamespace(context_length=1000)),
        tokenizer=fakes.Tokenizer(),
        chat_template=Template(fakes),
        chat_template_error=None,
        default_params=SamplingParams(max_tokens=7),
        config=EngineConfig(context_length=250, num_threads=2, max_tokens=16),
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


def texts(outputs: Any) -> list[str]:
    return [o.outputs[0].text for o in outputs]


def test_prompt_shapes(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello")
    one = llm.generate("hello", GREEDY)
    assert len(one) == 1 and one[0].prompt == "hello" and one[0].prompt_token_ids == ids
    assert texts(llm.generate({"prompt": "hello"}, GREEDY)) == texts(one)
    assert texts(llm.generate({"prompt_token_ids": ids}, GREEDY)) == texts(one)
    assert llm.generate({"prompt_token_ids": ids}, GREEDY)[0].prompt is None
    several = llm.generate(["hello", {"prompt": "world"}], GREEDY)
    assert [o.prompt for o in several] == ["hello", "world"]
    assert texts(several) == texts(one) + texts(llm.generate("world", GREEDY))
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    "bad", [5, None, [5], {"text": "x"}, {"prompt": 5}, {"prompt_token_ids": "ab"}, b"x"]
)
def test_bad_prompts(llm: LLM, bad: Any) -> None:
    with pytest.raises(InvalidParameterError, match="prompt"):
        llm.generate(bad)


def test_bad_token_ids(llm: LLM) -> None:
    for bad in (-1, 260, 1.0, True):
        with pytest.raises(InvalidParameterError, match="prompt_token_ids"):
            llm.generate({"prompt_token_ids": [1, bad]})  # type: ignore[list-item]
    with pytest.raises(InvalidParameterError, match="no tokens"):
        llm.generate({"prompt_token_ids": []})
    with pytest.raises(InvalidParameterError, match="logit_bias=260"):
        llm.generate("x", SamplingParams(logit_bias={260: 1}))


def test_params_shapes(llm: LLM) -> None:
    assert llm.generate("hello")[0].metrics.completion_tokens == 7  # the model's defaults
    each = [SamplingParams(max_tokens=n) for n in (1, 2)]
    outputs = llm.generate(["a", "b"], each)
    assert [o.metrics.completion_tokens for o in outputs] == [1, 2]
    [named] = llm.generate("a", sampling_params=each[0])  # vLLM's keyword
    assert named.metrics.completion_tokens == 1
    with pytest.raises(InvalidParameterError, match="pass one of them"):
        llm.generate("a", each[0], sampling_params=each[0])
    with pytest.raises(InvalidParameterError, match="2 given for 1"):
        llm.generate("a", each)
    with pytest.raises(InvalidParameterError, match="SamplingParams"):
        llm.generate("a", {"temperature": 0})  # type: ignore[arg-type]


def test_context_limits(llm: LLM, loaded: SimpleNamespace) -> None:
    """PAINS P42: both numbers; nothing is cut; the context's end is finish_reason length."""
    with pytest.raises(ContextLengthError, match="250 tokens.*context_length is 250") as error:
        llm.generate("x" * 249)
    assert "up to 1000" in str(error.value) and loaded.program.chunks == []
    long, refused = "x" * 1001, "1,001 characters.*250 tokens of at most 4"
    with pytest.raises(ContextLengthError, match=refused):
        llm.generate(long)  # before it is tokenized
    with pytest.raises(ContextLengthError, match=refused):
        llm.chat([{"role": "user", "content": long}])
    output = llm.generate("x" * 248, SamplingParams(max_tokens=10))[0]
    assert output.outputs[0].finish_reason == "length"
    assert output.metrics.completion_tokens == 1


def test_one_bad_prompt_fails_alone(llm: LLM, loaded: SimpleNamespace) -> None:
    """In a list, whatever is wrong with it; the order is kept."""
    good = ["one", "two", "three", "four"]
    expected = [o.outputs for o in llm.generate(good, GREEDY)]
    bad: list[Any] = ["x" * 249, None, {"prompt_token_ids": []}, {"prompt_token_ids": [260]}]
    mixed = [p for pair in zip(good, bad, strict=True) for p in pair]
    outputs = llm.generate(mixed, GREEDY)
    assert [o.outputs for o in outputs[::2]] == expected
    assert all(o.error is None for o in outputs[::2])
    kinds = [ContextLengthError, *[InvalidParameterError] * 3]
    for output, prompt, kind in zip(outputs[1::2], bad, kinds, strict=True):
        assert type(output.error) is kind and output.finished
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("", "error")
        assert output.prompt == (prompt if isinstance(prompt, str) else None)
    items = list(llm.generate(mixed, GREEDY, stream=True))
    ends = [i for i in items if i.finished]
    assert [e.outputs for e in ends] == [o.outputs for o in outputs]
    assert [type(e.error) for e in ends] == [type(o.error) for o in outputs]
    [only] = llm.generate(["x" * 249], GREEDY)  # a list of one is a list
    assert isinstance(only.error, ContextLengthError)
    turn = {"role": "user", "content": "hello"}
    outputs = llm.chat([[turn], [{**turn, "content": "x" * 250}], []], GREEDY)
    assert outputs[0].error is None and outputs[0].outputs[0].text
    assert isinstance(outputs[1].error, ContextLengthError)
    assert isinstance(outputs[2].error, InvalidParameterError)
    steps = llm.stats.steps
    with pytest.raises(InvalidParameterError, match="logit_bias"):  # wrong parameters are for all
        llm.generate(["one", "two"], [GREEDY, SamplingParams(logit_bias={260: 1})])
    assert llm.stats.steps == steps


def test_many_prompts_run_at_once(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [f"prompt {i}" for i in range(10)]
    each = [SamplingParams(temperature=0, seed=0, max_tokens=1 + i % 4 * 3) for i in range(10)]
    alone = [llm.generate(p, q)[0].outputs for p, q in zip(prompts, each, strict=True)]
    steps = llm.stats.steps
    assert [o.outputs for o in llm.generate(prompts, each)] == alone
    assert llm.stats.steps - steps < 40
    assert capsys.readouterr().err == ""  # no terminal
    assert [o.outputs for o in llm.generate(prompts, each, progress_bar=True)] == alone
    assert "10/10" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    llm.generate(prompts[:2], each[:2])
    assert "2/2" in capsys.readouterr().err
    llm.generate(prompts[0], each[0])
    llm.generate(prompts, each, progress_bar=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(InvalidParameterError, match="progress_bar"):
        llm.generate(prompts, each, progress_bar=1)  # type: ignore[call-overload]


def test_submit(llm: LLM) -> None:
    [whole] = llm.generate("hello", GREEDY)
    first = llm.submit("hello", GREEDY, priority=1, timeout_s=60)
    second = llm.submit_chat([{"role": "user", "content": "hello"}], GREEDY)
    assert list(first)[-1].outputs == whole.outputs
    assert second.result().finished
    timeouts = (0, -1, "5", True, float("nan"), float("inf"), 10**400)
    for name, bad in [("priority", -1), ("priority", True), *(("timeout_s", t) for t in timeouts)]:
        with pytest.raises(InvalidParameterError, match=name):
            llm.submit("hello", **{name: bad})  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError):  # at the call, not at the first item
        llm.submit("")
        llm.submit({"prompt_token_ids": []})


def test_several_answers(llm: LLM) -> None:
    hot = SamplingParams(temperature=1.5, max_tokens=9, n=3)
    [output] = llm.generate("hello", hot)
    seeds = [c.seed for c in output.outputs]
    assert seeds == [seeds[0] + i for i in range(3)]
    for completion in output.outputs:
        one = SamplingParams(temperature=1.5, max_tokens=9, seed=completion.seed)
        assert texts(llm.generate("hello", one)) == [completion.text]
    items = list(llm.generate("hello", hot, stream=True))
    assert "".join(i.outputs[2].delta for i in items) == items[-1].outputs[2].text


def test_stream(llm: LLM) -> None:
    whole = llm.generate(["hello", "world"], GREEDY)
    stream = llm.generate(["hello", "world"], GREEDY, stream=True)
    items = list(stream)
    ends = [i for i in items if i.finished]
    assert [e.outputs for e in ends] == [w.outputs for w in whole]
    for end in ends:
        deltas = [i.delta for i in items if i.request_id == end.request_id]
        assert "".join(deltas) == end.outputs[0].text
    with pytest.raises(InvalidParameterError):  # at the call, not at the first item
        llm.generate(5, stream=True)  # type: ignore[call-overload]


@pytest.mark.drawn_seeds
def test_seeds(llm: LLM, loaded: SimpleNamespace) -> None:
    """PAINS P38: the drawn seed is reported and repeats the answer."""
    hot = SamplingParams(temperature=2.0, max_tokens=20)
    first, second = llm.generate(["hello", "hello"], hot)
    assert first.outputs[0].seed != second.outputs[0].seed
    assert texts([first]) != texts([second])
    same = SamplingParams(temperature=2.0, max_tokens=20, seed=first.outputs[0].seed)
    assert texts(llm.generate("hello", same)) == texts([first])
    again = LLM("fake", seed=1)
    assert texts(again.generate(["hello", "hello"], hot)) == texts([first, second])


def test_chat(llm: LLM, loaded: SimpleNamespace) -> None:
    turn = [{"role": "user", "content": "hello"}]
    first = llm.chat(turn, GREEDY)[0]
    assert first.prompt_token_ids == loaded.chat_template.encode(turn)
    turn += [
        {"role": "assistant", "content": first.outputs[0].text},
        {"role": "user", "content": "go on"},
    ]
    second = llm.chat(turn, GREEDY)[0]
    assert second.metrics.cached_tokens >= first.metrics.prompt_tokens - 1
    both = llm.chat([turn[:1], turn], GREEDY)
    assert texts(both) == texts([first, second])
    llm.chat(turn, GREEDY, tools=[{"type": "function"}], chat_template_kwargs={"think": True})
    assert loaded.chat_template.options == {"tools": [{"type": "function"}], "think": True}
    items = list(llm.chat(turn, GREEDY, stream=True))
    assert [i.finished for i in items] == [False] * (len(items) - 1) + [True]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {5: 5}),
        ("chat_template_kwargs", [5]),
        ("tools", 5),
        ("tools", "search"),
    ],
)
def test_bad_template_options(llm: LLM, name: str, bad: Any) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        llm.chat([{"role": "user", "content": "hello"}], GREEDY, **{name: bad})


@pytest.mark.parametrize("bad", [[], {}, None, "hi", [None], [[]], [["hi"]], {"messages": []}, 5])
def test_bad_messages(llm: LLM, bad: Any) -> None:
    """PAINS P57."""
    with pytest.raises(InvalidParameterError, match="messages"):
        llm.chat(bad)


def test_without_a_template(llm: LLM, loaded: SimpleNamespace) -> None:
    """PAINS P29: never a silent fallback."""
    loaded.chat_template = None
    with pytest.raises(ChatTemplateError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])
    loaded.chat_template_error = ChatTemplateError("line 3: unexpected end")
    with pytest.raises(ChatTemplateError, match="line 3"):
        llm.chat([{"role": "user", "content": "hello"}])
    assert llm.generate("hello", GREEDY)


def test_two_threads(llm: LLM) -> None:
    """PAINS P63."""
    expected = {p: texts(llm.generate(p, GREEDY)) for p in ("left", "right")}
    wrong: list[Any] = []

    def work(prompt: str) -> None:
        for _ in range(25):
            stream = llm.generate(prompt, GREEDY, stream=True)
            next(stream)
            stream.close()
            got = texts(llm.generate(prompt, GREEDY))
            if got != expected[prompt]:
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(p,)) for p in expected]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


def test_close(llm: LLM, loaded: SimpleNamespace, tmp_path: Path) -> None:
    assert repr(llm) == "LLM('fake', context_length=250, num_threads=2, activations='int8')"
    llm.close()
    llm.close()
    assert loaded.program.closed
    with pytest.raises(LlambaError, match="closed"):
        llm.generate("hello")
    for use in (llm.save_prefix_cache, llm.load_prefix_cache):
        with pytest.raises(LlambaError, match="closed"):  # before the unmapped file is read
            use(tmp_path / "prefixes")


def test_a_forked_process_is_told(
    llm: LLM, loaded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for stream in (False, True):
        with pytest.raises(LlambaError, match="spawn"):
            llm.generate("hello", stream=stream)
    monkeypatch.setattr(loaded.chat_template, "encode", None)  # its lock may be held: not asked
    with pytest.raises(LlambaError, match="spawn"):
        llm.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(LlambaError, match="spawn"):
        llm.engine.run_between_steps(lambda: None)  # as saving and loading prefixes do
    llm.close()  # does nothing there: the threads and their memory are the parent's
    monkeypatch.undo()
    assert llm.generate("hello", GREEDY)


def test_defaults_of_the_file(caplog: pytest.LogCaptureFixture) -> None:
    params = default_params(
        {
            "general.name": "x",
            "general.sampling.temp": 0.6,
            "general.sampling.top_k": 20,
            "general.sampling.penalty_repeat": 1.05,
            "general.sampling.mirostat": 0,
            "general.sampling.top_p": 7.0,
            "general.sampling.temperature": 0.9,
        }
    )
    assert "general.sampling.temperature is ignored: temperature: given twice" in caplog.text
    assert (params.temperature, params.top_k, params.repeat_penalty) == (0.6, 20, 1.05)
    assert params.top_p == 0.95 and "general.sampling.top_p is ignored" in caplog.text


def test_bad_settings(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf()
    for name, bad in [("context_length", 10**9), ("num_threads", 0), ("activations", "f8")]:
        with pytest.raises(InvalidParameterError, match=name):
            LLM(path, **{name: bad})  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="chat_template"):
        LLM(path, chat_template="no-such-file.jinja")
    with pytest.raises(InvalidParameterError, match=r"a readable file \(longer than 4,194,304 ch"):
        LLM(path, chat_template="/dev/zero")
    with pytest.raises(InvalidParameterError, match="seed"):
        LLM(path, seed=1.5)  # type: ignore[arg-type]


@pytest.mark.kernels
def test_suppressed_tokens_are_never_given(tiny_gguf: Callable[..., Path]) -> None:
    """Whatever else is banned or asked for."""
    most = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(tiny_gguf(weights="Q8_0"), context_length=64) as llm:
        usual = set(llm.generate("hello", most)[0].outputs[0].token_ids)
        texts = map(llm.tokenizer.token_text, range(llm.tokenizer.vocab_size))
        digits = {i for i, text in enumerate(texts) if text.isdigit() and text != "7"}
        ends = llm.tokenizer.stop_ids
    suppressed = usual | digits
    metadata = {"tokenizer.ggml.suppress_tokens": sorted(suppressed)}
    hot = SamplingParams(temperature=3.0, max_tokens=24, ignore_eos=True, n=3, repeat_penalty=1.1)
    number = SamplingParams(max_tokens=9, ignore_eos=True, structured_outputs={"regex": "[0-9]+"})
    with LLM(tiny_gguf(weights="Q8_0", metadata=metadata), context_length=64) as llm:
        for params in (most, hot):
            for answer in llm.generate("hello", params)[0].outputs:
                assert len(answer.token_ids) == 24
                assert not (suppressed | ends) & set(answer.token_ids)
        assert set(llm.generate("hello", number)[0].outputs[0].text) == {"7"}


@pytest.mark.model("smollm2")
def test_a_real_model(model_path: Path) -> None:
    with LLM(model_path, context_length=512) as llm:
        prompt = "The capital of France is"
        [answer] = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=4, logprobs=2))
        assert answer.outputs[0].text.startswith(" Paris")
        assert answer.outputs[0].logprobs and len(answer.outputs[0].logprobs) == 4
        turn = [{"role": "user", "content": "Say hello."}]
        [first] = llm.chat(turn, SamplingParams(temperature=0, max_tokens=30))
        text = first.outputs[0].text
        assert text and "<|im_" not in text
        turn += [{"role": "assistant", "content": text}, {"role": "user", "content": "Again."}]
        items = list(llm.chat(turn, SamplingParams(temperature=0, max_tokens=10), stream=True))
        assert items[-1].metrics.cached_tokens >= first.metrics.prompt_tokens
        assert "".join(i.delta for i in items) == items[-1].outputs[0].text
        hot = SamplingParams(temperature=1.5, seed=3, max_tokens=12, dry_multiplier=0.8)
        assert texts(llm.generate(prompt, hot)) == texts(llm.generate(prompt, hot))
