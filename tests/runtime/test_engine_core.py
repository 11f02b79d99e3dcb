"""EngineCore, driven by hand over a program that only keeps books: chunks, ends, failures."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamba.errors import InvalidParameterError, LlambaError
from llamba.runtime.core import EngineCore
from llamba.runtime.logprobs import top_logprobs
from llamba.runtime.params import SamplingParams


def scripted(fakes: SimpleNamespace, prompt: str, tokens: list[int]) -> EngineCore:
    """A core whose program answers a prompt with these tokens."""
    start = len(prompt.encode()) + 1
    return fakes.core(fakes.Program(script={start + i: t for i, t in enumerate(tokens)}))


def pages_used(core: EngineCore) -> int:
    core.scheduler.check()
    return core.stats.pages_used


def test_greedy_equals_the_plain_loop(fakes: SimpleNamespace) -> None:
    program = fakes.Program()
    context = fakes.Tokenizer().encode("abc")
    expected = []
    for _ in range(40):
        expected.append(int(program.logits_of(context + expected).argmax()))
    output = fakes.alone("abc", max_tokens=40)
    assert output.outputs[0].token_ids == expected
    assert output.finished and output.outputs[0].finish_reason == "length"


def test_long_prompts_run_in_chunks(fakes: SimpleNamespace) -> None:
    program = fakes.Program(max_tokens=16)
    [output] = fakes.drive(fakes.core(program), fakes.request("x" * 39, max_tokens=2))
    assert program.chunks == [(0, 16), (16, 16), (32, 8), (40, 1)]
    whole = fakes.core(fakes.Program(max_tokens=512))
    [expected] = fakes.drive(whole, fakes.request("x" * 39, max_tokens=2))
    assert output.outputs == expected.outputs


def test_requests_run_together(fakes: SimpleNamespace) -> None:
    prompts = ["one", "two", "three"]
    core = fakes.core(fakes.Program())
    outputs = fakes.drive(core, *(fakes.request(p, max_tokens=20) for p in prompts))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs == fakes.alone(prompt, max_tokens=20).outputs
        assert output.prompt == prompt
    assert core.stats.steps < 30
    assert core.stats.decode_tokens == 3 * 19


def test_max_tokens(fakes: SimpleNamespace) -> None:
    """PAINS P35, P37: 0 reads the prompt only, n is exactly n, none ends with the context."""
    program = fakes.Program()
    [output] = fakes.drive(fakes.core(program), fakes.request("hello", max_tokens=0))
    assert output.outputs[0].token_ids == [] and output.outputs[0].finish_reason == "length"
    assert output.metrics.prefill_s > 0 and output.metrics.ttft_s is None
    assert program.chunks == [(0, 6)]
    for n in (1, 2, 7):
        assert len(fakes.alone("hello", max_tokens=n).outputs[0].token_ids) == n
    output = fakes.alone("hello", context=50)
    assert len(output.outputs[0].token_ids) == 50 - 6
    assert output.outputs[0].finish_reason == "length"


def test_end_token(fakes: SimpleNamespace) -> None:
    """PAINS P22: it ends the text and is never part of it."""
    core = scripted(fakes, "q", [*b"yes", fakes.EOS])
    output = fakes.drive(core, fakes.request("q"))[0].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("yes", "stop", None)
    assert output.token_ids == [*b"yes", fakes.EOS]
    output = fakes.drive(core, fakes.request("q", ignore_eos=True, max_tokens=9))[0].outputs[0]
    assert fakes.EOS not in output.token_ids and len(output.token_ids) == 9


def test_stop_token_ids(fakes: SimpleNamespace) -> None:
    core = scripted(fakes, "q", [*b"yes!no"])
    output = fakes.drive(core, fakes.request("q", stop_token_ids=[ord("!")]))[0].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("yes", "stop", ord("!"))


def deltas(core: EngineCore, request: object) -> list[str]:
    """What every step showed."""
    shown, seen = [0], []
    core.submit(request)  # type: ignore[arg-type]
    while core.has_work:
        core.step()
        output, _ = request.snapshot(shown)  # type: ignore[attr-defined]
        shown = [len(output.outputs[0].text)]
        assert output.delta == output.outputs[0].delta
        seen.append(output.delta)
    return seen


def test_p32_stop_string_over_several_tokens(fakes: SimpleNamespace) -> None:
    """PAINS P32: no item of a stream shows any of it."""
    request = fakes.request("q", stop="DEFGHIJ")
    seen = deltas(scripted(fakes, "q", [*b"ABCDEFGHIJK"]), request)
    completion = request.output().outputs[0]
    assert "".join(seen) == "ABC" == completion.text
    assert (completion.stop_reason, completion.finish_reason) == ("DEFGHIJ", "stop")


def test_held_back_text_comes_at_the_end(fakes: SimpleNamespace) -> None:
    core = scripted(fakes, "q", [*b"ABCDE"])
    assert deltas(core, fakes.request("q", stop="DEX", max_tokens=5)) == ["A", "B", "C", "", "DE"]


def test_half_characters_are_never_shown(fakes: SimpleNamespace) -> None:
    """PAINS P34: whole characters at every step; the rest as one U+FFFD at the end."""
    core = scripted(fakes, "q", [*"a🌍b".encode(), 0xF0, 0x9F])
    expected = ["a", "", "", "", "🌍", "b", "", "\N{REPLACEMENT CHARACTER}"]
    assert deltas(core, fakes.request("q", max_tokens=8)) == expected


def test_control_tokens_are_shown_on_request_only(fakes: SimpleNamespace) -> None:
    core = scripted(fakes, "q", [ord("a"), fakes.USER, ord("b")])
    assert fakes.drive(core, fakes.request("q", max_tokens=3))[0].outputs[0].text == "ab"
    request = fakes.request("q", max_tokens=3, skip_special_tokens=False)
    assert fakes.drive(core, request)[0].outputs[0].text == "a<user>b"


def test_common_prefix_is_not_run_again(fakes: SimpleNamespace) -> None:
    program = fakes.Program(max_tokens=512)
    core = fakes.core(program)
    [first] = fakes.drive(core, fakes.request("a" * 50, max_tokens=30))
    params = SamplingParams(temperature=0, max_tokens=3)
    ids = first.prompt_token_ids + first.outputs[0].token_ids + [*b" and?"]
    program.chunks.clear()
    [second] = fakes.drive(core, fakes.of_ids(ids, params))
    # The answer's last token was chosen, but never run.
    assert program.chunks[0] == (51 + 29, 6)
    assert second.metrics.cached_tokens == 80 and second.metrics.prompt_tokens == 86
    assert core.stats.cached_tokens == 80
    [fresh] = fakes.drive(fakes.core(fakes.Program()), fakes.of_ids(ids, params))
    assert fresh.metrics.cached_tokens == 0 and fresh.outputs == second.outputs
    private = fakes.core(fakes.Program(max_tokens=512), prefix_cache=False)
    for _ in range(2):
        [third] = fakes.drive(private, fakes.of_ids(ids, params))
        assert third.metrics.cached_tokens == 0 and third.outputs == second.outputs
    assert private.stats.pages_cached == 0


def test_the_same_prompt_twice_runs_its_last_token(fakes: SimpleNamespace) -> None:
    core = fakes.core(fakes.Program())
    one, two = (fakes.drive(core, fakes.request("hello", max_tokens=5))[0] for _ in range(2))
    assert two.metrics.cached_tokens == 5 and two.outputs == one.outputs


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_mix_of_requests_and_cancels(fakes: SimpleNamespace, data: st.DataObject) -> None:
    """Answers are those of a fresh engine, whatever is cached and who else runs."""
    core = fakes.core(fakes.Program(num_pages=6, max_tokens=7, max_logits=4), max_sequences=4)
    requests = []
    for _ in range(data.draw(st.integers(1, 6))):
        prompt = data.draw(st.sampled_from(["a" * 40, "a" * 40 + "b" * 20, "ab" * 15, "zz"]))
        num_tokens = data.draw(st.integers(0, 40))
        n = data.draw(st.integers(1, 3))
        priority = data.draw(st.integers(0, 1))
        request = fakes.request(
            prompt, max_tokens=num_tokens, n=n, priority=priority, context=6 * 32
        )
        core.submit(request)
        requests.append((prompt, num_tokens, request))
        for _ in range(data.draw(st.integers(0, 30))):
            core.step()
            core.scheduler.check()
        if data.draw(st.booleans()):
            core.cancel(requests[data.draw(st.integers(0, len(requests) - 1))][2])
    fakes.drive(core)
    for prompt, num_tokens, request in requests:
        expected = fakes.alone(prompt, max_tokens=num_tokens).outputs[0].token_ids
        for completion in request.output().outputs:
            got = completion.token_ids
            assert got == expected[: len(got)]
            assert len(got) == num_tokens or completion.finish_reason == "abort"
    assert pages_used(core) == 0
    stats = core.stats
    assert stats.finished + stats.cancellations == len(requests) and not stats.failures


def test_cancel_in_every_state(fakes: SimpleNamespace) -> None:
    """PAINS P61: queued, in prefill before the first token, answering; within one step."""
    core = fakes.core(fakes.Program(max_tokens=8), max_sequences=2)
    answering = fakes.request("a", max_tokens=99)
    core.submit(answering)
    core.step()
    core.step()
    reading, queued = fakes.request("x" * 60), fakes.request("y")
    core.submit(reading)
    core.submit(queued)
    core.step()
    assert answering.num_new_tokens == 3 and core.stats.waiting == 1
    for request in (reading, queued, answering):
        core.cancel(request)
        core.cancel(request)
        core.step()
        assert request.finish_reason == "abort" and request.finished
    assert not core.has_work and not core.step()
    assert len(answering.output().outputs[0].token_ids) >= 3  # what there was stays
    assert pages_used(core) == 0 and core.stats.cancellations == 3


def test_cancel_of_a_preempted_request(fakes: SimpleNamespace) -> None:
    core = fakes.core(fakes.Program(num_pages=4, max_tokens=64))
    requests = [fakes.request(c * 30, max_tokens=60) for c in "abc"]
    for request in requests:
        core.submit(request)
    while not core.stats.preemptions:
        core.step()
    [preempted] = [r for r in requests if r.completions[0].sequence.num_preemptions]
    had = list(preempted.output().outputs[0].token_ids)
    core.cancel(preempted)
    core.step()
    assert preempted.finish_reason == "abort"
    assert preempted.output().outputs[0].token_ids == had
    fakes.drive(core)
    assert pages_used(core) == 0 and core.stats.finished == 2


def test_deadlines(fakes: SimpleNamespace) -> None:
    """They end a request in whatever state, with what there is; counted from submission."""
    now = [100.0]
    core = fakes.core(fakes.Program(max_tokens=8), max_sequences=1, clock=lambda: now[0])
    answering = fakes.request("hello", timeout_s=5.0)
    queued = fakes.request("more", timeout_s=6.0)
    patient = fakes.request("last", timeout_s=1000.0, max_tokens=4)
    for request in (answering, queued, patient):
        core.submit(request)
    for _ in range(4):
        core.step()
    now[0] = 105.5
    core.step()
    completion = answering.output().outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("abort", "timeout")
    assert len(completion.token_ids) == 4
    assert not queued.finished
    now[0] = 106.0
    core.step()
    assert queued.finish_reason == "abort" and queued.num_new_tokens <= 1
    fakes.drive(core)
    assert patient.finish_reason == "length"
    assert core.stats.expirations == 2 and core.stats.finished == 1 and pages_used(core) == 0


def test_a_failing_program_fails_the_requests_of_its_step_only(
    fakes: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    program = fakes.Program()
    core = fakes.core(program, max_sequences=2)
    bad, worse, good = (fakes.request(p, max_tokens=5) for p in ("bad", "worse", "good"))

    def fail(batch: object) -> None:
        program.before = None
        raise RuntimeError("kernel failed")

    program.before = fail
    fakes.drive(core, bad, worse, good)
    for request in (bad, worse):
        assert isinstance(request.output().error, RuntimeError)
        assert request.finish_reason == "error"
    assert good.output().outputs == fakes.alone("good", max_tokens=5).outputs
    assert "ended 2 requests" in caplog.text and "kernel failed" in caplog.text
    assert core.stats.failures == 2 and pages_used(core) == 0


def test_a_failing_copy_leaves_nothing_to_find(fakes: SimpleNamespace) -> None:
    program = fakes.Program()
    core = fakes.core(program)
    fakes.drive(core, fakes.request("a" * 40, max_tokens=3))
    copy, program.copy_page = program.copy_page, lambda *_: 1 / 0
    [output] = fakes.drive(core, fakes.request("a" * 36 + "b", max_tokens=3))
    assert isinstance(output.error, ZeroDivisionError)
    program.copy_page = copy
    [output] = fakes.drive(core, fakes.request("a" * 36 + "b", max_tokens=3))
    assert output.outputs == fakes.alone("a" * 36 + "b", max_tokens=3).outputs


def test_a_sampler_error_ends_its_request_only(fakes: SimpleNamespace) -> None:
    program = fakes.Program()
    core = fakes.core(program)
    banned = fakes.request("x", logit_bias={i: -100 for i in range(fakes.VOCAB)}, n=2)
    others = [fakes.request(p, max_tokens=9) for p in ("one", "two")]
    outputs = fakes.drive(core, others[0], banned, others[1])
    assert isinstance(outputs[1].error, InvalidParameterError)
    assert [c.finish_reason for c in outputs[1].outputs] == ["error"] * 2
    for prompt, output in (("one", outputs[0]), ("two", outputs[2])):
        assert output.outputs == fakes.alone(prompt, max_tokens=9).outputs
    logits_of = program.logits_of

    def damaged(context: list[int]) -> np.ndarray:
        return logits_of(context) * (np.nan if context[1] == ord("d") else 1)

    program.logits_of = damaged
    outputs = fakes.drive(core, fakes.request("damaged"), fakes.request("one", max_tokens=9))
    assert isinstance(outputs[0].error, LlambaError) and "finite" in str(outputs[0].error)
    assert outputs[1].outputs == fakes.alone("one", max_tokens=9).outputs
    assert core.stats.failures == 2 and pages_used(core) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_core_usable(
    fakes: SimpleNamespace, error: type[BaseException]
) -> None:
    program = fakes.Program()
    core = fakes.core(program)

    def interrupt(batch: object) -> None:
        if len(program.chunks) == 5:
            raise error

    program.before = interrupt
    request = fakes.request("hello", max_tokens=30)
    with pytest.raises(error):
        fakes.drive(core, request)
    assert request.finish_reason == "abort" and pages_used(core) == 0
    program.before = None
    [output] = fakes.drive(core, fakes.request("hello", max_tokens=30))
    assert output.outputs == fakes.alone("hello", max_tokens=30).outputs
    assert output.metrics.cached_tokens == 5  # what was computed before the interrupt stays


def test_wrong_books_are_made_anew(fakes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    core = fakes.core(fakes.Program())
    request = fakes.request("hello", max_tokens=3)
    core.submit(request)
    with monkeypatch.context() as patch:
        patch.setattr(core.pool, "allocate", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError) as caught:
            core.step()
    assert core.reset(caught.value) == 1
    assert isinstance(request.output().error, ZeroDivisionError) and not core.has_work
    [output] = fakes.drive(core, fakes.request("hello", max_tokens=3))
    assert output.outputs == fakes.alone("hello", max_tokens=3).outputs
    longer_than_the_pool = fakes.request("x", context=24 * 32 + 99)
    fakes.drive(core, longer_than_the_pool, fakes.request("y", max_tokens=2))
    assert longer_than_the_pool.finish_reason == "error" and core.stats.finished == 2


def test_cancelled_before_it_came_and_the_books_were_wrong(fakes: SimpleNamespace) -> None:
    """Another thread's request, on its way when everything is made anew, ends all the same."""
    core = fakes.core(fakes.Program())
    on_its_way = fakes.request("hello", max_tokens=3)
    core.cancel(on_its_way)
    core.reset(RuntimeError("wrong books"))
    [output, other] = fakes.drive(core, on_its_way, fakes.request("other", max_tokens=3))
    assert output.outputs[0].finish_reason == "abort"
    assert other.outputs == fakes.alone("other", max_tokens=3).outputs


def test_logprobs_and_metrics(fakes: SimpleNamespace) -> None:
    output = fakes.alone("hello", max_tokens=4, logprobs=3, temperature=1.0, seed=7)
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


@pytest.mark.parametrize("others", [0, 3])
def test_prompt_logprobs(fakes: SimpleNamespace, others: int) -> None:
    """One entry a token, None for the first; chunk by chunk, whoever else runs."""
    program = fakes.Program(num_pages=8, max_tokens=12, max_logits=5)
    core = fakes.core(program)
    prompt = "the quick brown fox jumps over it"
    fakes.drive(core, fakes.request(prompt, max_tokens=2))  # cached, which must not matter
    for i in range(others):
        core.submit(fakes.request(f"{i}" * 40, max_tokens=60))
    request = fakes.request(prompt, prompt_logprobs=2, max_tokens=3, n=2)
    [output] = fakes.drive(core, request)
    scores, ids = output.prompt_logprobs, output.prompt_token_ids
    assert scores is not None and len(scores) == len(ids) and scores[0] is None
    tokenizer = fakes.Tokenizer()
    for i in range(1, len(ids)):
        assert scores[i] == top_logprobs(program.logits_of(ids[:i]), ids[i], 2, tokenizer)
    for completion in output.outputs:
        expected = fakes.alone(prompt, max_tokens=3).outputs[0]
        assert completion.token_ids == expected.token_ids
    assert fakes.alone(prompt, max_tokens=1).prompt_logprobs is None
    assert len(fakes.alone(prompt, max_tokens=0, prompt_logprobs=0).prompt_logprobs) == len(ids)


def test_several_answers(fakes: SimpleNamespace) -> None:
    """Answer i is what the seed + i gives alone; the prompt runs once."""
    prompt, hot = "x" * 70, {"temperature": 1.5, "max_tokens": 12}
    program = fakes.Program(max_tokens=64)
    core = fakes.core(program)
    [output] = fakes.drive(core, fakes.request(prompt, n=3, seed=5, **hot))
    assert [c.index for c in output.outputs] == [0, 1, 2]
    for i, completion in enumerate(output.outputs):
        expected = fakes.alone(prompt, seed=5 + i, **hot).outputs[0]
        assert completion.seed == 5 + i and completion.token_ids == expected.token_ids
        assert completion.cumulative_logprob is None
    assert len({c.text for c in output.outputs}) == 3
    assert core.stats.prefill_tokens == 71 + 2  # and the last token once for each other answer
    assert output.metrics.completion_tokens == 36 and output.metrics.num_sequences == 3
    assert pages_used(core) == 0


def test_best_of(fakes: SimpleNamespace) -> None:
    prompt, hot = "hello", {"temperature": 2.0, "max_tokens": 8, "seed": 1}
    core = fakes.core(fakes.Program())
    [every] = fakes.drive(core, fakes.request(prompt, n=5, logprobs=0, **hot))
    [best] = fakes.drive(core, fakes.request(prompt, n=2, best_of=5, **hot))
    ranked = sorted(every.outputs, key=lambda c: -(c.cumulative_logprob or 0))
    assert [c.index for c in best.outputs] == [0, 1]
    assert [c.seed for c in best.outputs] == [c.seed for c in ranked[:2]]
    for got, expected in zip(best.outputs, ranked, strict=False):
        assert got.token_ids == expected.token_ids and got.logprobs is None
        assert got.cumulative_logprob == pytest.approx(expected.cumulative_logprob, rel=1e-5)


def test_stats(fakes: SimpleNamespace) -> None:
    core = fakes.core(fakes.Program(max_tokens=64), max_sequences=1)
    core.submit(fakes.request("hello", max_tokens=3))
    core.submit(fakes.request("world", max_tokens=3))
    core.step()
    stats = core.stats
    assert (stats.steps, stats.prefill_tokens, stats.running, stats.waiting) == (1, 6, 1, 1)
    assert stats.last_step is not None and stats.last_step[1:] == (0, 6, 1)
    core.step()
    stats = core.stats
    assert stats.decode_tokens == 1 and stats.last_step is not None
    assert stats.last_step[1:] == (1, 0, 1) and stats.last_step.seconds > 0
    assert stats.pages_used + stats.pages_cached + stats.pages_free == 24
    fakes.drive(core)
    assert core.stats.finished == 2 and core.stats.running == core.stats.waiting == 0
