"""Streams in asyncio: any loop, several loops, cancellation; without a plug-in for pytest."""

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llamba.runtime.engine import Engine


@pytest.fixture
def program(fakes: SimpleNamespace) -> Any:
    return fakes.Program(num_pages=24, max_tokens=64)


@pytest.fixture
def engine(fakes: SimpleNamespace, program: Any) -> Iterator[Engine]:
    engine = fakes.engine(program)
    yield engine
    engine.close()


async def until_idle(engine: Engine) -> None:
    while engine.core.has_work or engine.stats.pages_used:
        await asyncio.sleep(0.001)


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
    gate = threading.Event()
    program.before = lambda _: gate.wait(30)

    async def main() -> None:
        task = asyncio.create_task(read(engine.submit(fakes.request("hello", max_tokens=3))))
        await asyncio.sleep(0.05)
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.05 and not task.done()
        gate.set()
        assert (await task)[-1].finished

    asyncio.run(main())


@pytest.mark.parametrize("how", ["iterate", "result"])
def test_a_cancelled_task_cancels_its_request(
    fakes: SimpleNamespace, engine: Engine, program: Any, how: str
) -> None:
    program.before = lambda _: time.sleep(0.002)

    async def main() -> None:
        request = fakes.request("hello", max_tokens=200)
        stream = engine.submit(request)
        task = asyncio.create_task(read(stream) if how == "iterate" else stream.wait_result())
        await asyncio.sleep(0.03)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_idle(engine)
        assert request.finish_reason == "abort" and request.num_new_tokens < 150

    asyncio.run(main())
    assert engine.stats.cancellations == 1


def test_leaving_early(fakes: SimpleNamespace, engine: Engine, program: Any) -> None:
    program.before = lambda _: time.sleep(0.002)

    async def first_item() -> Any:
        async with engine.submit(fakes.request("hello", max_tokens=200)) as stream:
            async for item in stream:
                return item

    async def forget() -> None:
        async for _ in engine.submit(fakes.request("hello", max_tokens=200)):
            break

    async def main() -> None:
        assert not (await first_item()).finished
        await until_idle(engine)
        await forget()
        await until_idle(engine)

    asyncio.run(main())
    assert engine.stats.cancellations == 2


@pytest.mark.parametrize("how", ["iterate", "interval", "result"])
def test_leaving_does_not_wait_for_the_step(
    fakes: SimpleNamespace, engine: Engine, program: Any, how: str
) -> None:
    gate, first = threading.Event(), asyncio.Event()
    if how != "interval":
        program.before = lambda _: gate.wait(60)

    async def read_some(stream: Any) -> list[Any]:
        items = []
        async for item in stream:
            items.append(item)
            program.before = lambda _: gate.wait(60)
            first.set()
        return items

    async def main() -> None:
        stream = engine.submit(fakes.request("hello", max_tokens=200))
        stream.interval_s = 1000.0 if how == "interval" else 0.0
        task = asyncio.create_task(stream.wait_result() if how == "result" else read_some(stream))
        await (first.wait() if how == "interval" else asyncio.sleep(0))  # now it waits
        stream.leave()
        found = await task
        assert not gate.is_set()
        if how == "result":
            assert not found.finished
        else:
            assert [item.finished for item in found] == [False] * (how == "interval")
        gate.set()
        await until_idle(engine)

    asyncio.run(main())
    assert engine.stats.cancellations == 1


def test_a_loop_that_ends_leaves_the_engine_usable(
    fakes: SimpleNamespace, engine: Engine, program: Any
) -> None:
    program.before = lambda _: time.sleep(0.002)
    loop = asyncio.new_event_loop()
    task = loop.create_task(read(engine.submit(fakes.request("hello", max_tokens=200))))
    loop.run_until_complete(asyncio.sleep(0.02))
    loop.close()  # with the task pending in it
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
