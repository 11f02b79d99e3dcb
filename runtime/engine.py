"""Engine: the thread that drives an EngineCore, and what other threads leave for it."""

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from ..errors import LlambaError, ResourceError
from .batch import Runs
from .core import EngineCore
from .outputs import RequestOutput
from .priority import lower_priority
from .request import Request
from .stats import EngineStats, StepStats
from .stream import RequestStream

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_EXIT_S = 10.0  # the longest that the end of the interpreter waits for a step


class _Mailbox:
    """What the threads share. The engine's thread, while parked, holds only this."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.requests: deque[Request] = deque()
        self.tasks: deque[Callable[[], None]] = deque()
        self.busy = False  # the core has something to do; only the engine's thread sets it
        self.closed = False
        self.failure: BaseException | None = None  # what ended the thread, if not close()

    def wait_for_work(self) -> bool:
        """Park until there is something to do; False when closed."""
        if not (self.busy or self.requests or self.tasks or self.closed):
            with self.condition:
                while not (self.requests or self.tasks or self.closed):
                    self.condition.wait()
        return not self.closed

    def close(self) -> None:
        with self.condition:
            self.closed = True
            self.condition.notify_all()


class Engine:
    """Runs the requests of all threads together, in one thread of its own.

    That thread starts with the first request, is parked while there is nothing to do, and ends with
    `close`, with the interpreter, or when nobody holds the engine any more. Every method may be
    called from any thread.

    Args:
        program: runs the batches; the engine's thread is the only one that uses it.
        tokenizer: shows tokens in log-probabilities.
        max_sequences: answers that are made at once; the others wait.
        prefix_cache: keep the pages of what ended, and find them for others.
        whole_prompts: the program is an encoder.
        nice: added to the priority number of the engine's thread; runtime/priority.py.
    """

    def __init__(
        self,
        program: Runs,
        tokenizer: "Tokenizer",
        *,
        max_sequences: int = 16,
        prefix_cache: bool = True,
        whole_prompts: bool = False,
        nice: int = 0,
    ) -> None:
        self.core = EngineCore(
            program,
            tokenizer,
            max_sequences=max_sequences,
            prefix_cache=prefix_cache,
            whole_prompts=whole_prompts,
        )
        self._mailbox = _Mailbox()
        self._thread: threading.Thread | None = None
        self._nice = nice
        self._listeners: list[Callable[[StepStats], None]] = []
        self._process_id = os.getpid()
        weakref.finalize(self, self._mailbox.close).atexit = False
        _engines.add(self)

    def submit(self, request: Request) -> RequestStream:
        """Run a request; LlambaError if the engine was closed, or in a forked process."""
        return self.submit_all([request])

    def submit_all(
        self, entries: Sequence[Request | RequestOutput], *, lone: bool = True
    ) -> RequestStream:
        """Run requests at once. Outputs among them take part in the stream only."""
        self.check_process()
        requests = [entry for entry in entries if isinstance(entry, Request)]
        mailbox, now = self._mailbox, self.core.clock()
        with mailbox.condition:
            self._check_open()
            self._wake()  # it can't look before the lock is free
            for request in requests:
                request.submitted_at = now
            mailbox.requests.extend(requests)
        return RequestStream(self, entries, lone=lone)

    def cancel(self, request: Request) -> None:
        """End a request in whatever state, within one step. Never waits."""
        self.core.cancel(request)

    def run_between_steps(self, work: Callable[[], _T]) -> _T:
        """Call something while no step runs, in the engine's thread; return what it returns."""
        self.check_process()
        if threading.current_thread() is self._thread:
            return work()
        future: Future[_T] = Future()

        def task() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        with self._mailbox.condition:
            self._check_open()
            self._wake()
            self._mailbox.tasks.append(task)
        try:
            return future.result()
        finally:
            future.cancel()  # if the wait was interrupted before it began

    @property
    def stats(self) -> EngineStats:
        """The figures right now."""
        return self.core.stats

    def add_step_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have something called after each step, in the engine's thread: it must be quick."""
        with self._mailbox.condition:
            self._listeners = [*self._listeners, listener]

    def check_may_wait(self) -> None:
        """Raise LlambaError in the engine's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise LlambaError("a step listener can't wait for an answer: the engine waits for it")

    def check_process(self) -> None:
        """Raise LlambaError in a forked process, where locks may be held for ever: comes first."""
        if os.getpid() != self._process_id:  # fork copies no threads: the engine never answers
            raise LlambaError(
                f"this LLM belongs to process {self._process_id} and can't be used in a forked one "
                f"({os.getpid()}): make an LLM there, or start processes with 'spawn'"
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Cancel everything and end the thread, after the step under way; may be repeated."""
        if os.getpid() != self._process_id:
            return  # a forked child has no such thread, and its locks may be held for ever
        self._mailbox.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    # -- inside -----------------------------------------------------------------------------------
    def _check_open(self) -> None:
        failure = self._mailbox.failure
        if failure is not None:
            raise LlambaError(
                f"the engine has stopped after an unexpected {type(failure).__name__}: {failure}; "
                "make a new LLM"
            ) from failure
        if self._mailbox.closed:
            raise LlambaError("the model was closed")

    def _wake(self) -> None:
        """Start the thread, or end its parking; under the mailbox's lock."""
        if self._thread is None:
            thread = threading.Thread(
                target=_serve,
                args=(self._mailbox, weakref.ref(self)),
                name="llamba-engine",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError as error:
                raise ResourceError(
                    f"the system gives no thread for the engine ({error})"
                ) from error
            self._thread = thread
            lower_priority([thread], self._nice)
        self._mailbox.condition.notify()

    def _turn(self) -> None:
        """One turn of the thread: what was left for it, then a step."""
        mailbox, core = self._mailbox, self.core
        while mailbox.requests:
            core.submit(mailbox.requests.popleft())
        while mailbox.tasks:
            mailbox.tasks.popleft()()
        before = core.counters.last_step
        try:
            core.step()
        except Exception as error:
            count = core.reset(error)
            logger.exception("the engine failed and ended %d requests", count)
        mailbox.busy = core.has_work
        step = core.counters.last_step
        if step is not None and step is not before:
            for listener in self._listeners:
                self._tell(listener, step)

    def _tell(self, listener: Callable[[StepStats], None], step: StepStats) -> None:
        try:
            listener(step)
        except Exception:
            logger.exception("a step listener failed and is not called again")
            with self._mailbox.condition:
                self._listeners = [each for each in self._listeners if each is not listener]

    def _end(self) -> None:
        """The thread ends: nobody may be left waiting."""
        core, mailbox = self.core, self._mailbox
        while mailbox.requests:
            core.submit(mailbox.requests.popleft())
        failure = mailbox.failure
        core.end_all(failure if isinstance(failure, Exception) else None)
        while mailbox.tasks:
            mailbox.tasks.popleft()()  # each keeps its own errors


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def _serve(mailbox: _Mailbox, reference: "weakref.ref[Engine]") -> None:
    """The thread. Between turns it holds no engine, so that one can be forgotten."""
    while mailbox.wait_for_work():
        engine = reference()
        if engine is None:
            return
        try:
            engine._turn()
        except BaseException as error:
            logger.exception("the engine's thread failed: it ends, and so does every request")
            mailbox.failure = error
            mailbox.close()
        del engine
    engine = reference()
    if engine is not None:
        engine._end()


@atexit.register
def _close_all() -> None:
    """Kernels must not run while the interpreter takes their memory away."""
    for engine in list(_engines):
        engine.close(_EXIT_S)
