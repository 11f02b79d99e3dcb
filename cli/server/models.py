"""The models of a server: loaded when they are asked for, unloaded when nobody asks any more."""

import asyncio
import gc
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import OverloadedError, ResourceError
from .model_memory import MemoryBudget, fit_context, measure
from .model_names import ModelNames, Offered
from .request_record import RequestRecord, current
from .served import ModelEntry, ServedModel
from .settings import ServerSettings
from .worker import Worker

if TYPE_CHECKING:
    from ...runtime.llm import LLM
    from ...runtime.memory import MemoryNeed
    from ...runtime.stats import EngineStats

Progress = Callable[[str, int, int], None]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Slot:
    """A model that was asked for at least once."""

    offered: Offered
    model: ServedModel | None = None
    need: "MemoryNeed | None" = None
    loading: "asyncio.Task[ServedModel] | None" = None
    users: Counter[object] = field(default_factory=Counter)  # requests that have or await it
    idle_since: float = field(default_factory=time.monotonic)
    keep_alive_s: float = math.inf  # after the last use
    timer: asyncio.TimerHandle | None = None
    expires_at: float | None = None  # time.time()

    def stop_timer(self) -> None:
        """It is used again, or gone."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.expires_at = None


class Models:
    """Loads models one after the other, each once however many requests wait for it.

    Belongs to the event loop's thread; loads run in threads of their own.

    Args:
        settings: names, engine options, memory and idle time.
        progress: what takes long while a model loads, as LLM's.
        load: makes the LLM; for tests.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        progress: Progress | None = None,
        load: "Callable[..., LLM] | None" = None,
        need_of: "Callable[..., MemoryNeed]" = measure,
    ) -> None:
        self._settings = settings
        self._names = ModelNames(settings.models, settings.aliases)
        self._slots: dict[str, _Slot] = {}
        self._budget = MemoryBudget(settings.memory_limit)
        self._lock = asyncio.Lock()  # one model at a time is loaded or unloaded
        self._progress, self._load_llm, self._need_of = progress, load or _open, need_of
        self._worker = Worker("llamba-models")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._aborted = asyncio.Event()
        self._first: asyncio.Task[ServedModel] | None = None
        self.on_load: list[Callable[[str, float], None]] = []  # called with a name and seconds
        self.closed = True  # False: `close` left an engine in its last step

    # -- what requests ask ------------------------------------------------------------------------
    @asynccontextmanager
    async def use(
        self, name: str | None, *, keep_alive_s: float | None = None
    ) -> AsyncIterator[ServedModel]:
        """The model, loaded if need be and kept while in use; `served.Models.use`."""
        slot = self._slot(self._names.find(name))
        # A request of many prompts comes here for each of them, and counts once.
        record = current.get()
        user: object = record or object()
        if record is not None:
            record.model = slot.offered.name
        self._check_queue(slot, user)
        slot.users[user] += 1  # before it is loaded: nobody unloads it meanwhile
        slot.stop_timer()
        try:
            yield slot.model or await self._loaded(slot, record)
        finally:
            slot.users[user] -= 1
            if not slot.users[user]:
                del slot.users[user]
            slot.idle_since = time.monotonic()
            wanted = self._settings.idle_unload_s if keep_alive_s is None else keep_alive_s
            slot.keep_alive_s = math.inf if wanted is None or wanted < 0 else wanted
            if not slot.users:
                self._await_idle(slot)

    def entries(self) -> list[ModelEntry]:
        """All that requests may name."""
        return [self._entry(offered) for offered in self._names.all()]

    def find(self, name: str) -> ModelEntry:
        """One of them, by its name or an alias; ModelNotFoundError."""
        return self._entry(self._names.find(name))

    def stats(self) -> "Iterator[tuple[str, EngineStats | None]]":
        """(name, the engine's figures) of all that were ever asked for; None: not loaded."""
        for name, slot in list(self._slots.items()):
            model = slot.model
            yield name, None if model is None else model.llm.stats

    # -- the server's life ------------------------------------------------------------------------
    def start(self, failed: Callable[[BaseException], None]) -> None:
        """Load the first model in the background; `failed` is called if that can't be done.

        Models of the cache that nobody named are loaded when they are asked for.
        """
        names = self._names.all()
        if not names or not (self._names.are_given or len(names) == 1):
            return

        async def first() -> ServedModel:
            async with self.use(None) as model:
                return model

        def done(task: "asyncio.Task[ServedModel]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(error)

        self._first = self._spawn(first())
        self._first.add_done_callback(done)

    @property
    def ready(self) -> bool:
        """The first model is loaded, or none was to be."""
        return self._first is None or self._first.done()

    @property
    def lost_device(self) -> bool:
        """A model's GPU failed for good: the server has to be started again."""
        models = (slot.model for slot in self._slots.values())
        return any(model is not None and model.llm.engine.core.lost_device for model in models)

    async def wait_ready(self) -> None:
        """Until the first model is loaded, or could not be."""
        if self._first is not None:
            await asyncio.wait([self._first])

    def abort_waits(self) -> None:
        """Requests that wait for a model get OverloadedError."""
        self._aborted.set()

    @property
    def is_loading(self) -> bool:
        """A thread loads a model right now."""
        return any(slot.loading is not None for slot in self._slots.values())

    async def close(self, timeout_s: float = 0.5) -> None:
        """Close all that are loaded; after it the models can't be used any more.

        A step under way is not waited for longer than `timeout_s`; then `closed` stays False.
        """
        self.abort_waits()
        models = [slot.model for slot in self._slots.values() if slot.model is not None]
        for slot in self._slots.values():
            slot.stop_timer()
            slot.model = None
        closers = [Worker("llamba-close") for _ in models]  # each may have to wait for a step
        closing = [
            asyncio.ensure_future(closer.call(model.llm.close))
            for closer, model in zip(closers, models, strict=True)
        ]
        if closing:
            _, late = await asyncio.wait(closing, timeout=timeout_s)
            self.closed = not late
        for each in (self._worker, *closers):
            each.stop()

    # -- inside -----------------------------------------------------------------------------------
    def _slot(self, offered: Offered) -> _Slot:
        slot = self._slots.get(offered.name)
        if slot is None:
            slot = self._slots[offered.name] = _Slot(offered)
        return slot

    def _check_queue(self, slot: _Slot, user: object) -> None:
        """OverloadedError if too many wait, for the model to be loaded or for a place in it.

        Counted here and not by the engine, which sees a burst of requests only after its step.
        """
        from ...runtime.config import DEFAULT_MAX_SEQUENCES

        at_once = self._settings.engine.get("max_sequences", DEFAULT_MAX_SEQUENCES)
        waiting, limit = len(slot.users) - at_once, self._settings.max_queue
        if waiting >= limit and user not in slot.users:
            raise OverloadedError(
                f"{max(0, waiting)} requests wait for {slot.offered.name} already, {limit} may: "
                "try again later"
            )

    def _entry(self, offered: Offered) -> ModelEntry:
        slot = self._slots.get(offered.name)
        return ModelEntry(
            name=offered.name,
            path=None if offered.path is None else str(offered.path),
            num_bytes=offered.num_bytes,
            created=offered.created,
            loaded=None if slot is None else slot.model,
            loading=slot is not None and slot.loading is not None,
            expires_at=None if slot is None else slot.expires_at,
            aliases=offered.aliases,
        )

    async def _loaded(self, slot: _Slot, record: RequestRecord | None) -> ServedModel:
        """Wait for it with the others; the load goes on when this one is cancelled."""
        began = time.monotonic()
        if slot.loading is None:
            slot.loading = self._spawn(self._load(slot))
        task = slot.loading
        aborted = asyncio.create_task(self._aborted.wait())
        try:
            await asyncio.wait([task, aborted], return_when=asyncio.FIRST_COMPLETED)
        finally:
            aborted.cancel()
            if record is not None:
                record.load_s = max(record.load_s, time.monotonic() - began)
        if not task.done():
            raise OverloadedError("the server is stopping: the model was not loaded any more")
        return task.result()

    async def _load(self, slot: _Slot) -> ServedModel:
        try:
            async with self._lock:
                began = time.monotonic()
                await self._make_room(slot)
                model = await self._worker.call(self._open, slot.offered)
                slot.model = model
                for callback in self.on_load:
                    callback(slot.offered.name, time.monotonic() - began)
                return model
        finally:
            slot.loading = None
            if not slot.users:  # all who waited have gone
                self._await_idle(slot)

    async def _make_room(self, slot: _Slot) -> None:
        """Unload idle models, those not used for longest first, until this one fits."""
        while True:
            others = [each for each in self._slots.values() if each.model is not None]
            if not others:
                self._budget.nothing_loaded()
            try:
                slot.need = await self._worker.call(self._measure, slot.offered)
                self._budget.check(slot.offered.name, slot.need, list(_needs(others)))
                return
            except ResourceError:
                idle = [each for each in others if not each.users]
                if not idle:
                    raise
                # Models that were to stay for ever go last.
                await self._unload(
                    min(idle, key=lambda each: (math.isinf(each.keep_alive_s), each.idle_since))
                )

    def _engine(self, offered: Offered) -> dict[str, Any]:
        """Keyword arguments of LLM."""
        lora = self._settings.lora.get(offered.name)
        engine = {**self._settings.engine, **({"lora": lora} if lora else {})}
        if self._settings.memory_limit is not None:  # each alone shrinks to what all may take
            engine["memory_limit"] = self._settings.memory_limit
        # One --ctx-size for all: those with less room have what they have.
        return engine if len(self._names.all()) < 2 else fit_context(offered.source, engine)

    def _measure(self, offered: Offered) -> "MemoryNeed":
        return self._need_of(offered.source, self._engine(offered))

    def _open(self, offered: Offered) -> ServedModel:
        from ...models.chat import find_reasoning_format, find_tool_format

        llm = self._load_llm(offered.source, progress=self._progress, **self._engine(offered))
        try:
            template = llm.chat_template
            source = None if template is None else template.source
            return ServedModel(
                name=offered.name,
                llm=llm,
                reasoning=find_reasoning_format(source, llm.tokenizer),
                tools=find_tool_format(source, llm.tokenizer),
                created=offered.created,
            )
        except BaseException:
            llm.close()
            raise

    def _await_idle(self, slot: _Slot) -> None:
        """Nobody uses it: unload it when its time is up."""
        slot.stop_timer()
        if slot.model is None or math.isinf(slot.keep_alive_s):
            return
        slot.expires_at = time.time() + slot.keep_alive_s
        loop = asyncio.get_running_loop()
        slot.timer = loop.call_later(
            slot.keep_alive_s, lambda: self._spawn(self._unload_idle(slot))
        )

    async def _unload_idle(self, slot: _Slot) -> None:
        async with self._lock:
            if not slot.users and slot.model is not None:
                try:
                    await self._unload(slot)
                except Exception:
                    logger.exception("%s could not be unloaded", slot.offered.name)

    async def _unload(self, slot: _Slot) -> None:
        """Under the lock. Whoever asks from now on waits for it to be loaded again."""
        slot.stop_timer()
        model, slot.model = slot.model, None
        if model is not None:
            await self._worker.call(_close, model)

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        """A task that somebody holds; its error is known to those who wait for it, if any."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return task


def _open(source: str, **engine: Any) -> "LLM":
    from ...runtime.llm import LLM

    return LLM(source, **engine)


def _close(model: ServedModel) -> None:
    model.llm.close()
    gc.collect()  # tokenizers and templates hold each other


def _needs(slots: "list[_Slot]") -> "Iterator[tuple[str, MemoryNeed]]":
    for slot in slots:
        if slot.need is not None:
            yield slot.offered.name, slot.need
