"""Which models there are, and when they are in memory."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llamba.cli.server import models as models_module
from llamba.cli.server.model_memory import MemoryBudget, fit_context, measure
from llamba.cli.server.model_names import ModelNames
from llamba.cli.server.models import Models
from llamba.cli.server.settings import ServerSettings
from llamba.cli.server.worker import Worker
from llamba.errors import (
    InvalidModelFileError,
    InvalidParameterError,
    ModelNotFoundError,
    OverloadedError,
    ResourceError,
)
from llamba.models import chat
from llamba.models.gguf import GGUFFile
from llamba.runtime.memory import MemoryNeed

MB = 1_000_000
TWO = {"a": "/models/a.gguf", "b": "/models/b.gguf"}


class FakeLLM:
    """What a loaded model is to the shelf."""

    def __init__(self, source: str) -> None:
        self.source, self.closed = source, False
        self.chat_template = self.tokenizer = None
        self.stats = SimpleNamespace(waiting=0)

    def close(self) -> None:
        self.closed = True


class Loader:
    """Loads slowly, or when it is let, or fails, as told; remembers what it loaded."""

    def __init__(self, seconds: float = 0.0, *, let: threading.Event | None = None) -> None:
        self.seconds, self.let, self.loaded = seconds, let, []
        self.failures: list[Exception] = []
        self.at_once = self.most_at_once = 0

    def __call__(self, source: str, **_: Any) -> FakeLLM:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.seconds)
        if self.let is not None:
            self.let.wait(100)
        self.at_once -= 1
        if self.failures:
            raise self.failures.pop(0)
        self.loaded.append(FakeLLM(source))
        return self.loaded[-1]


@pytest.fixture(autouse=True)
def no_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "find_tool_format", lambda *_: None)


def need(num_bytes: int = MB) -> Callable[..., MemoryNeed]:
    return lambda *_: MemoryNeed(weights=num_bytes // 2, kv=num_bytes // 4, arena=num_bytes // 4)


def shelf(loader: Loader, *, num_bytes: int = MB, **settings: Any) -> Models:
    chosen = ServerSettings(**{"models": TWO, **settings})
    return Models(chosen, load=loader, need_of=need(num_bytes))  # type: ignore[arg-type]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


# -- names ----------------------------------------------------------------------------------------
def names(**options: Any) -> ModelNames:
    return ModelNames(options.get("models", TWO), options.get("aliases", {}))


def test_names_aliases_and_ollamas_suffix() -> None:
    found = names(aliases={"gpt-4o": "b"})
    for asked, name in {
        None: "a",
        "a": "a",
        "a:latest": "a",
        "gpt-4o": "b",
        "gpt-4o:latest": "b",
    }.items():
        assert found.find(asked).name == name
    assert found.find("b").aliases == ("gpt-4o",)


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../a", "/models/a.gguf", "hf:a/b", "hf:a/b:Q4", "https://x/y", "a\0", "A/"]
    + ["smollm2", "a:7b", "~/a", "x" * 10_000, "\x1b[31m"],
)
def test_s1_requests_reach_no_path_url_or_download(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llamba.models import store

    monkeypatch.setattr(store, "resolve", lambda *_, **__: pytest.fail("resolved"))
    with pytest.raises(ModelNotFoundError) as raised:
        names().find(name)
    assert len(str(raised.value)) < 300 and "\x1b" not in str(raised.value)


def test_unknown_names_are_told_near_ones() -> None:
    many = names(models={"smollm2": "x", "qwen": "y"}, aliases={"gpt-4o": "qwen"})
    with pytest.raises(ModelNotFoundError, match="did you mean smollm2"):
        many.find("smolm2")
    with pytest.raises(ModelNotFoundError, match="this server has smollm2, qwen, gpt-4o"):
        many.find("zzzzzzzzz")


def test_wrong_aliases_are_refused_at_the_start() -> None:
    with pytest.raises(InvalidParameterError, match="no such model among a, b"):
        names(aliases={"x": "c"})
    with pytest.raises(InvalidParameterError, match="name of a model already"):
        names(aliases={"a": "b"})


def test_without_names_the_cache_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    from llamba.models import store

    cached = [SimpleNamespace(name="x", path=Path("/c/x.gguf"), num_bytes=1, source="file")]
    monkeypatch.setattr(store, "list_models", lambda: cached)
    found = names(models={})
    assert [each.name for each in found.all()] == ["x"]
    assert found.find(None).source == "/c/x.gguf"
    monkeypatch.setattr(store, "list_models", lambda: [])
    with pytest.raises(ModelNotFoundError, match="llamba pull"):
        names(models={}).find(None)


def test_p71_no_home_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from llamba.errors import ModelError
    from llamba.models import store

    def homeless() -> None:
        raise ModelError("there is no home folder")

    monkeypatch.setattr(store, "list_models", homeless)
    assert names(models={}).all() == []


# -- loading --------------------------------------------------------------------------------------
def test_many_ask_and_one_load_happens() -> None:
    async def work() -> None:
        loader = Loader(0.1)
        models = shelf(loader)

        async def ask() -> Any:
            async with models.use("a") as model:
                return model.llm

        found = await asyncio.gather(*(ask() for _ in range(20)))
        assert len({id(llm) for llm in found}) == 1 == len(loader.loaded)

    run(work)


def test_two_models_are_loaded_one_after_the_other() -> None:
    async def work() -> None:
        loader = Loader(0.05)
        models = shelf(loader)

        async def ask(name: str) -> str:
            async with models.use(name) as model:
                return model.name

        assert await asyncio.gather(ask("a"), ask("b"), ask("a")) == ["a", "b", "a"]
        assert loader.most_at_once == 1 and len(loader.loaded) == 2

    run(work)


def test_a_failing_load_fails_for_all_who_wait_and_the_next_tries_again() -> None:
    async def work() -> None:
        loader = Loader(0.05)
        loader.failures.append(InvalidModelFileError("bad"))
        models = shelf(loader)

        async def ask() -> Any:
            async with models.use("a") as model:
                return model

        found = await asyncio.gather(*(ask() for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in found] == [InvalidModelFileError] * 3
        assert (await ask()).name == "a"

    run(work)


def test_who_leaves_does_not_break_the_load_of_others() -> None:
    async def work() -> None:
        let = threading.Event()
        loader = Loader(let=let)
        models = shelf(loader)

        async def ask() -> str:
            async with models.use("a") as model:
                return model.name

        first = asyncio.create_task(ask())
        second = asyncio.create_task(ask())
        try:
            while not loader.at_once:
                await asyncio.sleep(0.01)
            assert models.entries()[0].loading
            first.cancel()
            await asyncio.wait([first])
        finally:
            let.set()
        assert await second == "a"
        assert first.cancelled() and len(loader.loaded) == 1

    run(work)


def test_waits_end_when_the_server_stops() -> None:
    async def work() -> None:
        let = threading.Event()
        models = shelf(Loader(let=let))
        asyncio.get_running_loop().call_later(0.05, models.abort_waits)
        try:
            with pytest.raises(OverloadedError, match="stopping"):
                async with models.use("a"):
                    pass
            assert models.is_loading
        finally:
            let.set()

    run(work)


def test_the_first_model_is_loaded_at_the_start() -> None:
    async def work() -> None:
        failures: list[BaseException] = []
        models = shelf(Loader(0.05))
        models.start(failures.append)
        assert not models.ready
        await models.wait_ready()
        assert models.ready and models.entries()[0].loaded is not None and not failures

        loader = Loader()
        loader.failures.append(ResourceError("too big"))
        models = shelf(loader)
        models.start(failures.append)
        await models.wait_ready()
        await asyncio.sleep(0)
        assert [str(each) for each in failures] == ["too big"]

    run(work)


# -- unloading ------------------------------------------------------------------------------------
async def use(models: Models, name: str, keep_alive_s: float | None = None) -> Any:
    async with models.use(name, keep_alive_s=keep_alive_s) as model:
        return model.llm


async def gone(llm: Any, within_s: float = 50.0) -> bool:
    deadline = time.monotonic() + within_s
    while not llm.closed and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return llm.closed


def test_idle_models_are_unloaded_and_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time=lambda: 1000.0, monotonic=time.monotonic)
    monkeypatch.setattr(models_module, "time", clock)

    async def work() -> None:
        loader = Loader()
        models = shelf(loader, idle_unload_s=0.1)
        llm = await use(models, "a")
        entry = models.find("a")
        assert entry.loaded is not None and entry.expires_at == 1000.1
        assert await gone(llm)
        assert models.find("a").loaded is None and models.find("a").expires_at is None
        assert await use(models, "a") is loader.loaded[1]

    run(work)


def test_models_in_use_stay() -> None:
    async def work() -> None:
        models = shelf(Loader(), idle_unload_s=0.05)
        async with models.use("a") as model:
            await use(models, "a")
            await asyncio.sleep(0.2)
            assert models.find("a").loaded is model and models.find("a").expires_at is None
        assert await gone(model.llm)

    run(work)


def test_keep_alive_of_a_request() -> None:
    async def work() -> None:
        models = shelf(Loader(), idle_unload_s=0.1)
        kept = await use(models, "a", -1)
        assert models.find("a").expires_at is None
        await asyncio.sleep(0.3)
        assert not kept.closed
        assert await use(models, "a", 0) is kept
        assert await gone(kept)
        longer = await use(models, "b", 60)
        await asyncio.sleep(0.2)
        assert not longer.closed

    run(work)


def test_models_without_an_idle_time_stay() -> None:
    async def work() -> None:
        models = shelf(Loader(), idle_unload_s=None)
        await use(models, "a")
        assert models.find("a").expires_at is None

    run(work)


def test_close_closes_all() -> None:
    async def work() -> None:
        loader = Loader()
        models = shelf(loader)
        await use(models, "a")
        await use(models, "b")
        await models.close()
        assert models.closed and all(llm.closed for llm in loader.loaded)

    run(work)


def test_a_step_that_does_not_end_does_not_hold_up_the_end() -> None:
    async def work() -> None:
        loader = Loader()
        models = shelf(loader)
        llm = await use(models, "a")
        release = threading.Event()
        ended: list[bool] = []
        llm.close = lambda: ended.append(release.wait(100))
        try:
            await models.close(timeout_s=0.1)
            assert not models.closed and not ended
        finally:
            release.set()

    run(work)


# -- memory ---------------------------------------------------------------------------------------
def test_the_limit_refuses_with_numbers() -> None:
    async def work() -> None:
        models = shelf(Loader(), num_bytes=100 * MB, memory_limit=50 * MB)
        with pytest.raises(ResourceError) as raised:
            await use(models, "a")
        text = str(raised.value)
        assert "a needs 100 MB" in text and "50 MB" in text and "smaller" in text

    run(work)


def test_idle_models_make_room_the_oldest_first() -> None:
    async def work() -> None:
        three = {**TWO, "c": "/models/c.gguf"}
        models = shelf(Loader(), num_bytes=100 * MB, memory_limit=250 * MB, models=three)
        a, b = await use(models, "a"), await use(models, "b")
        await use(models, "a")
        c = await use(models, "c")
        assert (a.closed, b.closed, c.closed) == (False, True, False)

    run(work)


def test_models_that_were_to_stay_make_room_last() -> None:
    async def work() -> None:
        three = {**TWO, "c": "/models/c.gguf"}
        models = shelf(Loader(), num_bytes=100 * MB, memory_limit=250 * MB, models=three)
        a, b = await use(models, "a", -1), await use(models, "b")
        await use(models, "c")
        assert (a.closed, b.closed) == (False, True)

    run(work)


def test_models_in_use_make_no_room() -> None:
    async def work() -> None:
        models = shelf(Loader(), num_bytes=100 * MB, memory_limit=150 * MB)
        async with models.use("a") as model:
            with pytest.raises(ResourceError, match="a, in use just now, takes 100 MB"):
                await use(models, "b")
            assert models.find("a").loaded is model
        assert await use(models, "b") is not None
        assert models.find("a").loaded is None

    run(work)


def test_the_machine_is_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from llamba.cli.server import model_memory

    monkeypatch.setattr(model_memory, "available_memory", lambda: 300 * MB)
    budget = MemoryBudget(None)
    budget.nothing_loaded()
    one = MemoryNeed(weights=60 * MB, kv=20 * MB, arena=20 * MB)
    budget.check("a", one, [])
    with pytest.raises(ResourceError, match="b needs 100 MB.*this machine has 166 MB"):
        budget.check("b", one, [("a", one)])


def test_measure_counts_what_the_model_takes(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf(weights="Q4_K")
    small = measure(str(path), {"kv_tokens": 256, "chat_template": "chatml"})
    large = measure(str(path), {"kv_tokens": 1024})
    assert large.kv == 4 * small.kv and large.weights == small.weights > 0


# -- the real thing -------------------------------------------------------------------------------
@pytest.mark.kernels
def test_real_models_come_and_go(serve: Callable[..., Any], tiny_gguf: Callable[..., Path]) -> None:
    paths = {
        "a": str(tiny_gguf(weights="Q4_K")),
        "b": str(tiny_gguf(architecture="qwen2", weights="Q4_K")),
    }
    server = serve(models=paths, aliases={"other": "b"}, idle_unload_s=0.3)

    def ask(name: str) -> int:
        body = {"model": name, "prompt": "hello", "max_tokens": 4}
        return server.post("/v1/completions", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, ["a", "b", "other", "b:latest"] * 4)) == {200}
    assert ask("/etc/passwd") == ask("hf:a/b") == 404
    deadline = time.monotonic() + 60
    while any(entry.loaded for entry in server.server.models.entries()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert 'llamba_model_loaded{model="a"} 0.0' in server.get("/metrics").text
    assert ask("a") == 200


def test_the_module_documents_its_protocol() -> None:
    from llamba.cli.server import served

    for name in ("use", "entries", "find"):
        assert hasattr(served.Models, name) and hasattr(models_module.Models, name)


def test_the_loading_thread_outlives_errors_and_those_who_wait() -> None:
    async def work() -> None:
        worker = Worker("test")

        def fail() -> None:
            raise ValueError("no")

        threads = {await worker.call(threading.get_ident) for _ in range(3)}
        assert len(threads) == 1 and threads != {threading.get_ident()}
        with pytest.raises(ValueError, match="no"):
            await worker.call(fail)
        release = threading.Event()
        done: list[int] = []
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await worker.call(lambda: (release.wait(100), done.append(1)))
        finally:
            release.set()
        assert await worker.call(lambda: done) == [1]
        worker.stop()

    run(work)


def test_one_context_for_models_of_several(tiny_gguf: Callable[..., Path]) -> None:
    """A model whose own context is shorter than --ctx-size keeps its own (a BERT beside a chat)."""
    path = str(tiny_gguf())
    longest = GGUFFile.open(path).metadata["llama.context_length"]
    for given, used in ((longest * 8, longest), (longest // 2, longest // 2), (None, None)):
        assert fit_context(path, {"context_length": given, "seed": 1}) == {
            "context_length": used,
            "seed": 1,
        }
