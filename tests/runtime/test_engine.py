"""The engine over a program that only keeps books: chunks, pages, ends, cancellation, failures."""

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamba.errors import LlambaError
from llamba.runtime.request import RequestOutput
from llamba.runtime.stream import RequestStream, run_all


def alone(fakes: SimpleNamespace, prompt: str, **params: object) -> RequestOutput:
    """The answer of a fresh engine."""
    return run_all(fakes.engine(fakes.Program()), [fakes.request(prompt, **params)])[0]


def scripted(fakes: SimpleNamespace, prompt: str, tokens: list[int]) -> SimpleNamespace:
    start = len(prompt.encode()) + 1
    program = fakes.Program(script={start + i: t for i, t in enumerate(tokens)})
    return SimpleNamespace(program=program, engine=fakes.engine(program))


def test_greedy_equals_the_plain_loop(fakes: SimpleNamespace) -> None:
    program = fakes.Program()
    context = fakes.Tokenizer().encode("abc")
    expected = []
    for _ in range(40):
        expected.append(int(program.logits_of(context + expected).argmax()))
    output = alone(fakes, "abc", max_tokens=40)
    assert output.outputs[0].token_ids == expected
    assert output.finished and output.outputs[0].finish_reason == "length"


def test_long_prompts_run_in_chunks(fakes: SimpleNamespace) -> None:
    program = fakes.Program(max_tokens=16)
    output = run_all(fakes.engine(program), [fakes.request("x" * 39, max_tokens=2)])[0]
    assert program.chunks == [(0, 16), (16, 16), (32, 8), (40, 1)]
    whole = run_all(
        fakes.engine(fakes.Program(max_tokens=512)), [fakes.request("x" * 39, max_tokens=2)]
    )
    assert output.outputs[0].token_ids == whole[0].outputs[0].token_ids


def test_requests_run_first_come_first_served(fakes: SimpleNamespace) -> None:
    engine = fakes.engine(fakes.Program())
    prompts = ["one", "two", "three"]
    outputs = run_all(engine, [fakes.request(p, max_tokens=20) for p in prompts])
    for prompt, output in zip(prompts, outputs, strict=True):
        assert (
            output.outputs[0].token_ids == alone(fakes, prompt, max_tokens=20).outputs[0].token_ids
        )
        assert output.prompt == prompt


def test_max_tokens(fakes: SimpleNamespace) -> None:
    """PAINS P35, P37: 0 reads the prompt only, n is exactly n, none ends with the context."""
    program = fakes.Program()
    engine = fakes.engine(program)
    output = run_all(engine, [fakes.request("hello", max_tokens=0)])[0]
    assert output.outputs[0].token_ids == [] and output.outputs[0].finish_reason == "length"
    assert program.chunks == [(0, 6)]
    for n in (1, 2, 7):
        assert len(alone(fakes, "hello", max_tokens=n).outputs[0].token_ids) == n
    output = alone(fakes, "hello", context=50)
    assert len(output.outputs[0].token_ids) == 50 - 6
    assert output.outputs[0].finish_reason == "length"


def test_end_token(fakes: SimpleNamespace) -> None:
    """PAINS P22: it ends the text and is never part of it."""
    s = scripted(fakes, "q", [*b"yes", fakes.EOS])
    output = run_all(s.engine, [fakes.request("q")])[0].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("yes", "stop", None)
    assert output.token_ids == [*b"yes", fakes.EOS]
    output = run_all(s.engine, [fakes.request("q", ignore_eos=True, max_tokens=9)])[0].outputs[0]
    assert fakes.EOS not in output.token_ids and len(output.token_ids) == 9


def test_stop_token_ids(fakes: SimpleNamespace) -> None:
    s = scripted(fakes, "q", [*b"yes!no"])
    output = run_all(s.engine, [fakes.request("q", stop_token_ids=[ord("!")])])[0].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("yes", "stop", ord("!"))


def test_stop_string_over_several_tokens(fakes: SimpleNamespace) -> None:
    """PAINS P32: no item of the stream shows any of it."""
    s = scripted(fakes, "q", [*b"ABCDEFGHIJK"])
    stream = RequestStream(s.engine, [fakes.request("q", stop="DEFGHIJ")])
    items = list(stream)
    assert "".join(i.delta for i in items) == "ABC" == items[-1].outputs[0].text
    assert all("D" not in i.outputs[0].text for i in items)
    assert items[-1].outputs[0].stop_reason == "DEFGHIJ"
    assert items[-1].outputs[0].finish_reason == "stop"


def test_held_back_text_comes_at_the_end(fakes: SimpleNamespace) -> None:
    s = scripted(fakes, "q", [*b"ABCDE"])
    stream = RequestStream(s.engine, [fakes.request("q", stop="DEX", max_tokens=5)])
    assert [i.delta for i in stream] == ["A", "B", "C", "", "DE"]


def test_half_characters_are_never_shown(fakes: SimpleNamespace) -> None:
    """PAINS P34: whole characters in every item; the rest as one U+FFFD at the end."""
    s = scripted(fakes, "q", [*"a🌍b".encode(), 0xF0, 0x9F])
    items = list(RequestStream(s.engine, [fakes.request("q", max_tokens=8)]))
    assert [i.delta for i in items] == ["a", "", "", "", "🌍", "b", "", "\N{REPLACEMENT CHARACTER}"]


def test_control_tokens_are_shown_on_request_only(fakes: SimpleNamespace) -> None:
    s = scripted(fakes, "q", [ord("a"), fakes.USER, ord("b")])
    assert run_all(s.engine, [fakes.request("q", max_tokens=3)])[0].outputs[0].text == "ab"
    request = fakes.request("q", max_tokens=3, skip_special_tokens=False)
    assert run_all(s.engine, [request])[0].outputs[0].text == "a<user>b"


def test_common_prefix_is_not_run_again(fakes: SimpleNamespace) -> None:
    program = fakes.Program(max_tokens=512)
    engine = fakes.engine(program)
    first = run_all(engine, [fakes.request("a" * 50, max_tokens=30)])[0]
    turn = fakes.request("a" * 50 + "?", max_tokens=3)
    turn.prompt_ids = first.prompt_token_ids + first.outputs[0].token_ids + [*b" and?"]
    turn.token_ids = list(turn.prompt_ids)
    program.chunks.clear()
    second = run_all(engine, [turn])[0]
    # The answer's last token was chosen, but never run.
    assert program.chunks[0] == (51 + 29, 6)
    assert second.metrics.cached_tokens == 80 and second.metrics.prompt_tokens == 86
    engine.forget()
    turn = fakes.request("", max_tokens=3)
    turn.prompt_ids = list(second.prompt_token_ids)
    turn.token_ids = list(turn.prompt_ids)
    fresh = run_all(engine, [turn])[0]
    assert fresh.metrics.cached_tokens == 0
    assert fresh.outputs[0].token_ids == second.outputs[0].token_ids


def test_the_same_prompt_twice_runs_its_last_token(fakes: SimpleNamespace) -> None:
    program = fakes.Program()
    engine = fakes.engine(program)
    one, two = (run_all(engine, [fakes.request("hello", max_tokens=5)])[0] for _ in range(2))
    assert two.metrics.cached_tokens == 5 and two.outputs == one.outputs


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_mix_of_requests_and_cancels(fakes: SimpleNamespace, data: st.DataObject) -> None:
    """Answers are those of a fresh engine, whatever is cached; no page is ever lost."""
    engine = fakes.engine(fakes.Program(num_pages=4, max_tokens=7))
    for _ in range(data.draw(st.integers(1, 5))):
        prompt = data.draw(st.sampled_from(["a" * 40, "a" * 40 + "b" * 20, "ab" * 15, "zz"]))
        num_tokens = data.draw(st.integers(1, 40))
        request = fakes.request(prompt, max_tokens=num_tokens)
        engine.submit(request)
        steps = data.draw(st.integers(0, 30))
        for _ in range(steps):
            engine.step()
            engine.pages.check()
        if data.draw(st.booleans()):
            engine.cancel(request)
            assert request.finished
        while engine.step():
            engine.pages.check()
        got = request.output().outputs[0].token_ids
        expected = alone(fakes, prompt, max_tokens=num_tokens).outputs[0].token_ids
        assert got == expected[: len(got)]
        assert len(got) == num_tokens or request.finish_reason == "abort"
    engine.forget()
    assert engine.pages.num_used == 0


def test_cancel_during_prefill(fakes: SimpleNamespace) -> None:
    """PAINS P61: between two chunks, also before the first token."""
    engine = fakes.engine(fakes.Program(max_tokens=8))
    request, queued = fakes.request("x" * 60), fakes.request("y")
    engine.submit(request)
    engine.submit(queued)
    engine.step()
    engine.cancel(request)
    engine.cancel(queued)
    assert request.finish_reason == queued.finish_reason == "abort"
    assert not engine.step()
    assert engine.pages.num_used == 1  # the 8 tokens that were computed stay cached
    engine.forget()
    assert engine.pages.num_used == 0


def test_closing_a_stream_frees_its_pages(fakes: SimpleNamespace) -> None:
    engine = fakes.engine(fakes.Program())
    for _ in range(20):
        with RequestStream(engine, [fakes.request("hello"), fakes.request("more")]) as stream:
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
    assert not engine.step()
    engine.forget()
    assert engine.pages.num_used == 0


def test_an_abandoned_stream_blocks_nobody(fakes: SimpleNamespace) -> None:
    engine = fakes.engine(fakes.Program())
    first = RequestStream(engine, [fakes.request("hello", max_tokens=10)])
    next(first)
    second = list(RequestStream(engine, [fakes.request("other", max_tokens=10)]))
    assert second[-1].outputs == alone(fakes, "other", max_tokens=10).outputs
    rest = list(first)
    assert rest[-1].outputs == alone(fakes, "hello", max_tokens=10).outputs
    stream = RequestStream(engine, [fakes.request("lost")])
    next(stream)
    del stream  # only marks; the next step frees
    assert not engine.step()


def test_two_threads_get_their_own_answers(fakes: SimpleNamespace) -> None:
    """PAINS P63: also with cancel-and-resend in between."""
    engine = fakes.engine(fakes.Program())
    expected = {p: alone(fakes, p, max_tokens=30).outputs for p in ("left", "right")}
    wrong: list[object] = []

    def work(prompt: str) -> None:
        for i in range(30):
            if i % 3 == 0:
                stream = RequestStream(engine, [fakes.request(prompt, max_tokens=30)])
                next(stream)
                stream.close()
            output = run_all(engine, [fakes.request(prompt, max_tokens=30)])[0]
            if output.outputs != expected[prompt]:
                wrong.append(output)

    threads = [threading.Thread(target=work, args=(p,)) for p in expected]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    assert not wrong
    engine.forget()
    assert engine.pages.num_used == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_engine_usable(
    fakes: SimpleNamespace, error: type[BaseException]
) -> None:
    program = fakes.Program()
    engine = fakes.engine(program)

    def interrupt(batch: object) -> None:
        if len(program.chunks) == 5:
            raise error

    program.before = interrupt
    request = fakes.request("hello", max_tokens=30)
    with pytest.raises(error):
        run_all(engine, [request, fakes.request("next")])
    assert request.finish_reason == "abort"
    program.before = None
    output = run_all(engine, [fakes.request("hello", max_tokens=30)])[0]
    assert output.outputs == alone(fakes, "hello", max_tokens=30).outputs
    assert output.metrics.cached_tokens == 5  # what was computed before the interrupt stays
    engine.pages.check()


def test_a_failing_program_fails_its_request_only(fakes: SimpleNamespace) -> None:
    program = fakes.Program()
    engine = fakes.engine(program)
    bad, good = fakes.request("bad"), fakes.request("good", max_tokens=5)

    def fail(batch: object) -> None:
        program.before = None
        raise RuntimeError("kernel failed")

    program.before = fail
    engine.submit(bad)
    engine.submit(good)
    while engine.step():
        pass
    assert isinstance(bad.error, RuntimeError) and bad.finish_reason == "abort"
    assert good.output().outputs == alone(fakes, "good", max_tokens=5).outputs
    program.before = fail
    with pytest.raises(RuntimeError, match="kernel failed"):
        run_all(engine, [fakes.request("bad")])
    with pytest.raises(RuntimeError, match="kernel failed"):
        program.before = fail
        list(RequestStream(engine, [fakes.request("bad")]))


def test_a_request_that_can_not_start_fails_alone(
    fakes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fakes.engine(fakes.Program())
    with monkeypatch.context() as patch:
        patch.setattr(engine.pages, "allocate", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_all(engine, [fakes.request("hello", max_tokens=3)])
    assert engine.pages.num_used == 0
    output = run_all(engine, [fakes.request("hello", max_tokens=3)])[0]
    assert output.outputs[0].token_ids == alone(fakes, "hello", max_tokens=3).outputs[0].token_ids


def test_logprobs_and_metrics(fakes: SimpleNamespace) -> None:
    output = alone(fakes, "hello", max_tokens=4, logprobs=3, temperature=1.0, seed=7)
    completion = output.outputs[0]
    assert completion.seed == 7 and completion.logprobs is not None
    assert len(completion.logprobs) == 4
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert token_id in position and 3 <= len(position) <= 4
        assert [p.rank for p in position.values()][:3] == [1, 2, 3]
    assert completion.cumulative_logprob == pytest.approx(
        sum(p[t].logprob for t, p in zip(completion.token_ids, completion.logprobs, strict=True))
    )
    metrics = output.metrics
    assert (metrics.prompt_tokens, metrics.completion_tokens, metrics.cached_tokens) == (6, 4, 0)
    assert metrics.ttft_s is not None and metrics.ttft_s >= metrics.queue_s >= 0
    assert metrics.prefill_tokens_per_s > 0 and metrics.decode_tokens_per_s > 0


def test_a_closed_engine_refuses(fakes: SimpleNamespace) -> None:
    engine = fakes.engine(fakes.Program())
    request = fakes.request("hello")
    engine.submit(request)
    engine.step()
    engine.close()
    assert request.finish_reason == "abort" and engine.pages.num_used == 0
    with pytest.raises(LlambaError, match="closed"):
        engine.submit(fakes.request("hello"))
