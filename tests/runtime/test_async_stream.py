"""Streams in asyncio: any loop, several loops, cancellation; without a plug-in for pytest."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llamba.runtime.engine import Engine
from llamba.runtime.request import Request


@pytest.fixture
def program(fakes: SimpleNamespace) -> Any:
    return fakes.Program(num_pages=24, max_tokens=64)


@pytest.fixture
def engine(fakes: SimpleNamespace, program: Any) -> Iterator[Engine]:
    engine = fakes.engine(program)
    yield engine
    engine.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def turns(program: Any, count: int) -> threading.Semaphore:
    """So many steps run; the next one waits for a release, so that no answer ends by itself."""
    left = threading.Semaphore(count)
    program.before = lambda _: left.acquire(timeout=60)
    return left


ALL = 10_000  # more steps than any answer here takes


async def read(stream: Any) -> list[Any]:
    return [item async for item in stream]


def test_async_for(fakes: SimpleNamespace, engine: Engine) -> None:
    items = asyncio.run(read(engine.submit(fakes.request("hello", max_tokens=40))))
    assert "".join(i.delta for i in items) == items[-1].outputs[0].text
    assert items[-1].outputs == fakes.alone("hello", max_tokens=40).outputs


def test_many_tasks(fakes: SimpleNamespace, engine: Engine) -> None:
    async def main() -> None:
        prompts = [f"prompt {i}" for i in range(20)]
        streams = [engine.submit(fakes.request(p, max_tokens=9)) for p in prompts]
        half = len(streams) // 2
        read_ones = await asyncio.gather(*(read(s) for s in streams[:half]))
        results = await asyncio.gather(*(s.wait_result() for s in streams[half:]))
        for prompt, output in zip(prompts, [r[-1] for r in read_ones] + results, strict=True):
            assert output.outputs == fakes.alone(prompt, max_tokens=9).outputs

    asyncio.run(main())


def test_the_loop_goes_on_and_nothing_polls(
    fakes: SimpleNamespace, engine: Engine, program: Any
) -> None:
    left = turns(program, 0)

    async def used() -> float:
        before = time.process_time()
        await asyncio.sleep(0.3)
        return time.process_time() - before

    async def main() -> None:
        task = asyncio.create_task(read(engine.submit(fakes.request("hello", max_tokens=3))))
        tries = 10  # what polls is never quiet; others of this process are now and then
        while tries and await used() >= 0.05:
            tries -= 1
        assert tries and not task.done()
        left.release(ALL)
        assert (await task)[-1].finished

    asyncio.run(main())


@pytest.mark.parametrize("how", ["iterate", "result"])
def test_a_cancelled_task_cancels_its_request(
    fakes: SimpleNamespace, engine: Engine, program: Any, how: str
) -> None:
    left = turns(program, 5)

    async def main() -> None:
        request = fakes.request("hello", max_tokens=200)
        stream = engine.submit(request)
        task = asyncio.create_task(read(stream) if how == "iterate" else stream.wait_result())
        await until(lambda: request.num_new_tokens == 5 and bool(request._waiters))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left.release(ALL)
        await until(lambda: request.finished)
        assert request.finish_reason == "abort" and request.num_new_tokens < 150
        assert not engine.core.has_work and not engine.stats.pages_used

    asyncio.run(main())
    assert engine.stats.cancellations == 1


def test_leaving_early(fakes: SimpleNamespace, engine: Engine, program: Any) -> None:
    async def first_item(request: Request) -> Any:
        async with engine.submit(request) as stream:
            async for item in stream:
                return item

    async def forget(request: Request) -> None:
        async for _ in engine.submit(request):
            break

    async def main() -> None:
        for leave in (first_item, forget):
            left, request = turns(program, 1), fakes.request("hello", max_tokens=200)
            item = await leave(request)
            assert item is None or not item.finished
            left.release(ALL)
            await until(lambda request=request: request.finished)
            assert not engine.core.has_work and not engine.stats.pages_used

    asyncio.run(main())
    assert engine.stats.cancellations == 2


@pytest.mark.parametrize("how", ["iterate", "interval", "result"])
def test_leaving_does_not_wait_for_the_step(
    fakes: SimpleNamespace, engine: Engine, program: Any, how: str
) -> None:
    held, gate, first = threading.Event(), threading.Event(), asyncio.Event()
    steps = itertools.count(1 if how == "interval" else 2)  # with an interval one item comes first

    def before(_: object) -> None:
        if next(steps) > 1:
            held.set()
            gate.wait(60)

    program.before = before

    async def read_some(stream: Any) -> list[Any]:
        items = []
        async for item in stream:
            items.append(item)
            first.set()
        return items

    async def main() -> None:
        request = fakes.request("hello", max_tokens=200)
        stream = engine.submit(request)
        stream.interval_s = 1000.0 if how == "interval" else 0.0
        reading = stream.wait_result() if how == "result" else read_some(stream)
        task: asyncio.Task[Any] = asyncio.create_task(reading)
        assert await asyncio.to_thread(held.wait, 60)
        if how == "interval":
            await first.wait()
        stream.leave()
        found = await task
        assert not gate.is_set()
        if how == "result":
            assert not found.finished
        else:
            assert [item.finished for item in found] == [False] * (how == "interval")
        gate.set()
        await until(lambda: request.finished)

    asyncio.run(main())
    assert engine.stats.cancellations == 1


def test_a_loop_that_ends_leaves_the_engine_usable(
    fakes: SimpleNamespace, engine: Engine, program: Any
) -> None:
    left, request = turns(program, 5), fakes.request("hello", max_tokens=200)
    loop = asyncio.new_event_loop()
    task = loop.create_task(read(engine.submit(request)))
    loop.run_until_complete(until(lambda: request.num_new_tokens == 5 and bool(request._waiters)))
    loop.close()  # with the task pending in it
    left.release(ALL)
    output = engine.submit(fakes.request("other", max_tokens=9)).result()
    assert output.outputs == fakes.alone("other", max_tokens=9).outputs
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task


def test_errors(fakes: SimpleNamespace, engine: Engine, program: Any) -> None:
    program.before = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        asyncio.run(read(engine.submit(fakes.request("hello"))))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(engine.submit(fakes.request("hello")).wait_result())


def test_two_loops_in_two_threads(fakes: SimpleNamespace, engine: Engine) -> None:
    expected = {p: fakes.alone(p, max_tokens=12).outputs for p in ("left", "right")}
    done: list[str] = []

    def work(prompt: str) -> None:
        async def main() -> None:
            for _ in range(20):
                items = await read(engine.submit(fakes.request(prompt, max_tokens=12)))
                assert items[-1].outputs == expected[prompt]

        asyncio.run(main())
        done.append(prompt)

    threads = [threading.Thread(target=work, args=(p,)) for p in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == ["left", "right"]
