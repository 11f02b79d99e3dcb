"""Engine: the thread and the streams, over a program that only keeps books."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llamba.errors import LlambaError
from llamba.runtime.engine import Engine
from llamba.runtime.outputs import failed_output
from llamba.runtime.request import Request
from llamba.runtime.stats import StepStats

DEADLINE_S = 30.0  # of what must come at once, on a machine that is busy


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def idle(engine: Engine) -> bool:
    return not engine.core.has_work and engine.stats.pages_used == 0


@pytest.fixture
def program(fakes: SimpleNamespace) -> Any:
    return fakes.Program(num_pages=24, max_tokens=64)


@pytest.fixture
def engine(fakes: SimpleNamespace, program: Any) -> Iterator[Engine]:
    engine = fakes.engine(program)
    yield engine
    engine.close()


class Turns:
    """So many steps run; the next one waits for more, so that no answer ends by itself."""

    def __init__(self, program: Any, count: int) -> None:
        self._left = threading.Semaphore(count)
        program.before = lambda _: self._left.acquire(timeout=DEADLINE_S)

    def all(self) -> None:
        """From now on every step runs: more of them than any answer here takes."""
        self._left.release(10_000)


def test_a_result(fakes: SimpleNamespace, engine: Engine) -> None:
    output = engine.submit(fakes.request("hello", max_tokens=20)).result()
    assert output.outputs == fakes.alone("hello", max_tokens=20).outputs
    assert idle(engine) and engine.stats.finished == 1


def test_a_stream_gives_everything(fakes: SimpleNamespace, engine: Engine) -> None:
    stream = engine.submit(fakes.request("hello", max_tokens=40))
    items = list(stream)
    assert "".join(i.delta for i in items) == items[-1].outputs[0].text
    assert items[-1].outputs == fakes.alone("hello", max_tokens=40).outputs
    assert [i.finished for i in items] == [False] * (len(items) - 1) + [True]
    assert stream.result().outputs == items[-1].outputs  # may be asked for at any time
    assert list(stream) == []


def test_a_slow_reader_loses_nothing(fakes: SimpleNamespace, engine: Engine) -> None:
    stream = engine.submit(fakes.request("hello", max_tokens=40, n=2, temperature=1.0))
    items = [next(stream)]
    wait_until(lambda: idle(engine))  # it does not wait for the reader
    items += stream  # nothing more, where the first item already held everything
    assert len(items) <= 2 and items[-1].finished
    for i, completion in enumerate(items[-1].outputs):
        assert "".join(item.outputs[i].delta for item in items) == completion.text
    assert "".join(item.delta for item in items) == items[-1].outputs[0].text
    assert len(items[-1].outputs[0].token_ids) == 40


def test_items_of_several_answers(fakes: SimpleNamespace, engine: Engine) -> None:
    items = list(engine.submit(fakes.request("q", max_tokens=30, n=3, temperature=1.0)))
    for i in range(3):
        assert "".join(item.outputs[i].delta for item in items) == items[-1].outputs[i].text
        assert items[-1].outputs[i].index == i
    assert all(len(item.outputs) == 3 for item in items)
    [only] = engine.submit(fakes.request("q", max_tokens=5, best_of=3, temperature=1.0))
    assert only.finished and only.delta == only.outputs[0].text


def test_several_requests_in_order(fakes: SimpleNamespace, engine: Engine) -> None:
    requests = [fakes.request(p, max_tokens=n) for p, n in (("a", 30), ("b", 3), ("c", 9))]
    items = list(engine.submit_all(requests))
    ids = list(dict.fromkeys(i.request_id for i in items))
    assert ids == [r.request_id for r in requests]
    assert sum(i.finished for i in items) == 3
    assert engine.stats.steps < 40  # they ran at once


def test_each_end_is_told(fakes: SimpleNamespace, engine: Engine) -> None:
    """Also of what could not be run: a bar that counts them comes to its end."""
    told: list[int] = []
    refused = failed_output(LlambaError("too long"), "req-x", "b", [], 0)
    entries = [fakes.request("a", max_tokens=9), refused, fakes.request("c", max_tokens=2)]
    outputs = engine.submit_all(entries, lone=False).results(lambda: told.append(1))
    assert outputs[1] is refused and all(output.finished for output in outputs)
    assert len(told) == 3


def test_each_end_is_told_before_the_results_are_there(
    fakes: SimpleNamespace, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end in one step; who is woken by the first one's end sees the second one's, too."""
    told: list[int] = []
    requests = [fakes.request("a", max_tokens=4), fakes.request("b", max_tokens=4)]
    wake = Request.wake

    def late(request: Request) -> None:
        if request is requests[1] and request.finished:
            time.sleep(0.2)
        wake(request)

    monkeypatch.setattr(Request, "wake", late)
    engine.submit_all(requests).results(lambda: told.append(1))
    assert len(told) == 2


def test_closing_a_stream_frees_its_pages(
    fakes: SimpleNamespace, engine: Engine, program: Any
) -> None:
    for i in range(20):
        turns = Turns(program, i % 2)
        requests = [fakes.request("hello", max_tokens=200), fakes.request("more")]
        with engine.submit_all(requests) as stream:
            if i % 2:
                next(stream)
        steps = engine.stats.steps
        turns.all()
        assert list(stream) == []
        wait_until(lambda: idle(engine))
        assert engine.stats.steps <= steps + 2
        partial = stream.result()
        assert partial.finished and partial.outputs[0].finish_reason == "abort"


def test_an_abandoned_stream_blocks_nobody(
    fakes: SimpleNamespace, engine: Engine, program: Any
) -> None:
    turns = Turns(program, 1)
    first = engine.submit(fakes.request("hello", max_tokens=10))
    next(first)
    turns.all()
    second = engine.submit(fakes.request("other", max_tokens=10)).result()
    assert second.outputs == fakes.alone("other", max_tokens=10).outputs
    assert list(first)[-1].outputs == fakes.alone("hello", max_tokens=10).outputs
    turns = Turns(program, 1)
    request = fakes.request("lost", max_tokens=200)
    lost = engine.submit(request)
    next(lost)
    del lost
    gc.collect()
    turns.all()
    wait_until(lambda: request.finished)
    assert request.finish_reason == "abort" and request.num_new_tokens < 100 and idle(engine)


def test_cancel_from_elsewhere_ends_the_stream(
    fakes: SimpleNamespace, engine: Engine, program: Any
) -> None:
    """The reader gets what was generated, as the last item."""
    turns = Turns(program, 1)
    request = fakes.request("hello", max_tokens=200)
    stream = engine.submit(request)
    first = next(stream)
    engine.cancel(request)
    turns.all()
    items = [first, *stream]
    assert items[-1].finished and items[-1].outputs[0].finish_reason == "abort"
    assert "".join(i.delta for i in items) == items[-1].outputs[0].text
    assert engine.stats.cancellations == 1


def test_timeouts(fakes: SimpleNamespace, engine: Engine, program: Any) -> None:
    program.before = lambda _: time.sleep(0.005)  # each step takes a while
    output = engine.submit(fakes.request("hello", max_tokens=200, timeout_s=0.06)).result()
    completion = output.outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("abort", "timeout")
    assert len(completion.token_ids) < 150 and idle(engine)
    assert engine.stats.expirations == 1


@pytest.mark.parametrize("wait", [next, lambda stream: stream.result()])
def test_an_interrupted_caller_cancels_its_requests(
    fakes: SimpleNamespace,
    engine: Engine,
    program: Any,
    request: pytest.FixtureRequest,
    wait: Callable[[Any], object],
) -> None:
    """KeyboardInterrupt comes to whoever waits in the main thread, not to the engine."""
    # What a shell starts in the background inherits an ignored SIGINT.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    turns = Turns(program, 0)
    asked = fakes.request("hello", max_tokens=200)
    stream = engine.submit(asked)

    def interrupt() -> None:
        wait_until(lambda: bool(asked._waiters))
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupter.start()
        wait(stream)
    interrupter.join()
    turns.all()
    wait_until(lambda: idle(engine))
    program.before = None
    assert engine.stats.cancellations == 1 and list(stream) == []
    output = engine.submit(fakes.request("hello", max_tokens=9)).result()
    assert output.outputs == fakes.alone("hello", max_tokens=9).outputs


def test_errors_reach_who_waits(fakes: SimpleNamespace, engine: Engine, program: Any) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("kernel failed")

    program.before = fail
    with pytest.raises(RuntimeError, match="kernel failed"):
        engine.submit(fakes.request("bad")).result()
    with pytest.raises(RuntimeError, match="kernel failed"):
        list(engine.submit(fakes.request("bad")))
    outputs = engine.submit_all([fakes.request("a"), fakes.request("b")], lone=False).results()
    assert all(isinstance(o.error, RuntimeError) and o.finished for o in outputs)
    assert [o.outputs[0].finish_reason for o in outputs] == ["error", "error"]
    program.before = None
    output = engine.submit(fakes.request("good", max_tokens=5)).result()
    assert output.outputs == fakes.alone("good", max_tokens=5).outputs


def test_wrong_books_do_not_stop_the_thread(
    fakes: SimpleNamespace, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine.core.pool, "allocate", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.submit(fakes.request("hello", max_tokens=3)).result()
    output = engine.submit(fakes.request("hello", max_tokens=3)).result()
    assert output.outputs == fakes.alone("hello", max_tokens=3).outputs


def test_a_fault_that_ends_the_thread_is_told(
    fakes: SimpleNamespace, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits gets it, and whoever comes later is told what it was."""
    monkeypatch.setattr(engine.core, "step", lambda: 1 / 0)
    monkeypatch.setattr(engine.core, "reset", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.submit(fakes.request("hello")).result()
    with pytest.raises(LlambaError, match="ZeroDivisionError: division by zero; make a new LLM"):
        engine.submit(fakes.request("hello"))


def test_a_stream_of_nothing(engine: Engine) -> None:
    stream = engine.submit_all([])
    assert list(stream) == []
    with pytest.raises(LlambaError, match="no prompts"):
        stream.result()


def test_eight_threads_cancel_and_resend(
    fakes: SimpleNamespace, engine: Engine, program: Any
) -> None:
    """PAINS P63: everybody gets the own answer, with cancelled requests in between."""
    prompts = [f"prompt {i}" for i in range(8)]
    expected = {p: fakes.alone(p, max_tokens=15).outputs for p in prompts}
    wrong: list[object] = []

    def work(prompt: str) -> None:
        for i in range(100):
            stream = engine.submit(fakes.request(prompt, max_tokens=60))
            if i % 3:
                next(stream)
            stream.close()
            if i % 4 == 0:
                output = engine.submit(fakes.request(prompt, max_tokens=15)).result()
                if output.outputs != expected[prompt]:
                    wrong.append(output)

    threads = [threading.Thread(target=work, args=(p,)) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong
    wait_until(lambda: idle(engine))
    engine.core.scheduler.check()
    stats = engine.run_between_steps(lambda: engine.stats)  # the last one that ended is counted
    assert stats.finished + stats.cancellations == 8 * 125 and not stats.failures


def test_work_between_steps(fakes: SimpleNamespace, engine: Engine, program: Any) -> None:
    running = threading.Event()

    def before(_: object) -> None:
        running.set()
        time.sleep(0.002)
        running.clear()

    program.before = before
    assert engine.run_between_steps(lambda: 5) == 5  # also before the first request
    stream = engine.submit(fakes.request("hello", max_tokens=100))
    for _ in range(10):
        assert not engine.run_between_steps(running.is_set)
    with pytest.raises(ZeroDivisionError):
        engine.run_between_steps(lambda: 1 / 0)
    nested = engine.run_between_steps(lambda: engine.run_between_steps(lambda: "inner"))
    assert nested == "inner"
    stream.close()


def test_step_listeners(
    fakes: SimpleNamespace, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[StepStats] = []
    refused: list[Exception] = []
    engine.add_step_listener(steps.append)

    def fail(_: StepStats) -> None:
        raise ZeroDivisionError

    engine.add_step_listener(fail)

    def ask(_: StepStats) -> None:
        stream = engine.submit(fakes.request("inner", max_tokens=1))
        try:
            stream.result()
        except LlambaError as error:
            refused.append(error)

    engine.submit(fakes.request("hello", max_tokens=5)).result()
    wait_until(lambda: len(steps) == 5)
    assert [(s.num_decode, s.num_prefill) for s in steps] == [(0, 6)] + [(1, 0)] * 4
    assert caplog.text.count("a step listener failed") == 1
    engine.add_step_listener(ask)
    engine.submit(fakes.request("hello", max_tokens=1)).result()
    wait_until(lambda: bool(refused))
    assert "the engine waits for it" in str(refused[0])


def test_an_idle_engine_sleeps(fakes: SimpleNamespace, engine: Engine) -> None:
    engine.submit(fakes.request("hello", max_tokens=5)).result()

    def used() -> float:
        before = time.process_time()
        time.sleep(0.5)
        return time.process_time() - before

    # One that polls is never quiet; others of this process are now and then.
    assert any(used() < 0.05 for _ in range(10))


def test_close(fakes: SimpleNamespace, engine: Engine, program: Any) -> None:
    turns = Turns(program, 1)
    requests = [fakes.request("hello", max_tokens=200) for _ in range(3)]
    streams = [engine.submit(r) for r in requests]
    next(streams[0])
    results: list[str | None] = []
    reader = threading.Thread(
        target=lambda: results.append(streams[1].result().outputs[0].finish_reason)
    )
    reader.start()
    closers = [threading.Thread(target=engine.close) for _ in range(3)]
    for thread in closers:
        thread.start()
    wait_until(lambda: engine._mailbox.closed)
    turns.all()
    for thread in [*closers, reader]:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    engine.close()
    assert results == ["abort"] and [r.finish_reason for r in requests] == ["abort"] * 3
    assert idle(engine)
    with pytest.raises(LlambaError, match="closed"):
        engine.submit(fakes.request("hello"))
    with pytest.raises(LlambaError, match="closed"):
        engine.run_between_steps(lambda: None)


def test_close_in_the_engines_own_thread(fakes: SimpleNamespace) -> None:
    engine = fakes.engine(fakes.Program())
    engine.add_step_listener(lambda _: engine.close())
    output = engine.submit(fakes.request("hello", max_tokens=50)).result()
    assert output.outputs[0].finish_reason == "abort"


def test_a_forgotten_engine_ends_its_thread(fakes: SimpleNamespace) -> None:
    program = fakes.Program()
    engine = fakes.engine(program)
    engine.submit(fakes.request("hello", max_tokens=3)).result()
    thread = engine._thread
    assert thread is not None and thread.daemon
    reference = weakref.ref(engine)
    del engine
    wait_until(lambda: bool(gc.collect() or True) and reference() is None)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


EXIT = """
import importlib.util, sys, time, threading, types
spec = importlib.util.spec_from_file_location("stand_ins", {conftest!r})
module = importlib.util.module_from_spec(spec)
sys.modules["stand_ins"] = module
spec.loader.exec_module(module)
fakes = module.fakes.__wrapped__()
program = fakes.Program()
program.before = lambda _: time.sleep(0.01)
engine = fakes.engine(program)
stream = engine.submit(fakes.request("hello", max_tokens=200))
next(stream)
{more}
print("leaving")
"""


@pytest.mark.parametrize(
    "more",
    [
        "",
        "threading.Thread(target=stream.result, daemon=True).start()",
        "raise SystemExit(0)",
        "del engine",
        "import os; os.fork() or print('child')",
    ],
)
def test_exit_of_the_interpreter_while_requests_run(more: str) -> None:
    """Neither hangs nor crashes nor complains."""
    code = EXIT.format(conftest=str(Path(__file__).with_name("conftest.py")), more=more)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "leaving" in done.stdout or "SystemExit" in more
