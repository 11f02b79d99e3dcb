"""Engine: the loop `schedule -> run -> sample -> commit` over the requests that were submitted."""

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import LlambaError
from .batch import Batch, Logits, Segment
from .config import num_pages_for
from .pages import PagePool
from .request import FinishReason, Request, Status
from .sampler import top_logprobs

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer


class Runs(Protocol):
    """What the engine needs of a Program; tests put 20 lines in its place."""

    num_pages: int
    max_tokens: int

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits, float32 (rows, vocab_size), a view valid until the next run."""
        ...


class Engine:
    """Runs requests one after another, first come first served; whoever waits drives it.

    `step` may be called from any thread: one lock guards everything, and a step advances the
    request at the head of the queue, whoever submitted it. So two callers both get their answers,
    and an iterator that nobody reads blocks nobody else.

    The pages of the last finished request are kept; a request whose tokens begin like it takes
    over the common part and runs only the rest.
    """

    def __init__(self, program: Runs, tokenizer: "Tokenizer") -> None:
        self.program = program
        self.pages = PagePool(program.num_pages)
        self.lock = threading.RLock()
        self._tokenizer = tokenizer
        self._waiting: deque[Request] = deque()
        self._running: Request | None = None
        self._cached_ids: list[int] = []  # tokens whose KV is in the cached pages
        self._cached_pages: list[int] = []
        self._closed = False

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        with self.lock:
            if self._closed:
                raise LlambaError("the model was closed")
            request.submitted_at = time.perf_counter()
            self._waiting.append(request)

    def cancel(self, request: Request) -> None:
        """End a request in whatever state; its pages are free when this returns."""
        request.cancelled = True
        with self.lock:
            self._reap()

    def step(self) -> bool:
        """Run one step; False if there was nothing to do.

        A failure ends the requests of the step and is kept in their `error`; an interrupt
        (KeyboardInterrupt) ends them as cancelled and goes on to the caller. The engine stays
        usable.
        """
        with self.lock:
            self._reap()
            request = self._running
            try:
                batch = self._schedule()
                request = self._running
                if request is None:
                    return False
                started = time.perf_counter()
                logits = self.program.run(batch)
                self._commit(request, batch.segments[0], logits, started)
            except Exception as error:
                request = request or self._running  # it may have become that in this very step
                if request is None:
                    raise
                request.error = error
                self._finish(request, "abort")
            except BaseException:
                self._abort_all_of_step(request)
                raise
            return True

    def forget(self) -> None:
        """Drop the cached pages."""
        with self.lock:
            self._cached_ids, self._cached_pages = [], []
            self._restore_pages()

    def close(self) -> None:
        """Cancel everything; later submissions are refused."""
        with self.lock:
            self._closed = True
            for request in [*self._waiting, self._running]:
                if request is not None:
                    request.cancelled = True
            self._reap()
            self.forget()

    def _schedule(self) -> Batch:
        """The next chunk of the request at the head: what is pending, at most a step's tokens."""
        while self._waiting and self._waiting[0].status is not Status.WAITING:
            self._waiting.popleft()
        if self._running is None:
            if not self._waiting:
                return Batch(())
            self._start(self._waiting[0])
        request = self._running
        assert request is not None
        start = request.num_computed
        num_tokens = min(request.num_pending, self.program.max_tokens)
        self._grow(request, start + num_tokens)
        # Logits are computed where a token is chosen: after the last one, if any may follow.
        last = num_tokens == request.num_pending and request.max_new_tokens > 0
        segment = Segment(
            token_ids=np.array(request.token_ids[start : start + num_tokens], np.int32),
            start=start,
            block_table=request.block_table[: len(request.pages)],
            logits=Logits.LAST if last else Logits.NONE,
        )
        return Batch((segment,))

    def _commit(
        self, request: Request, segment: Segment, logits: NDArray[np.float32], started: float
    ) -> None:
        """Note what was computed; choose a token where the segment ends the sequence so far."""
        prefill = request.num_new_tokens == 0
        request.num_computed += segment.num_tokens
        reason: FinishReason | None = None
        if segment.logits is Logits.LAST:
            row = logits[0]
            token_id = request.sampler.sample(row)
            if request.params.logprobs is not None:
                request.logprobs.append(
                    top_logprobs(row, token_id, request.params.logprobs, self._tokenizer)
                )
            reason = request.append(token_id)
        elif request.num_pending == 0:
            reason = "length"
        now = time.perf_counter()
        if prefill:
            request.prefill_s += now - started
            if request.num_new_tokens:
                request.first_token_at = now
        else:
            request.decode_s += now - started
        if reason is not None:
            self._finish(request, reason)

    def _start(self, request: Request) -> None:
        """Make a request the running one, with the cached pages of what it has in common."""
        self._running = request
        request.status = Status.RUNNING
        request.started_at = time.perf_counter()
        request.block_table = np.zeros(self.pages.num_pages, np.int32)
        # The last token always runs: its logits are needed.
        common = common_prefix_len(self._cached_ids, request.prompt_ids[:-1])
        kept = num_pages_for(common)
        request.pages = self._cached_pages[:kept]
        request.block_table[:kept] = request.pages
        request.num_computed = request.cached_tokens = common
        self.forget()  # what is not taken over

    def _grow(self, request: Request, num_tokens: int) -> None:
        """Pages for so many positions; the request was checked against the context at the door."""
        have, need = len(request.pages), num_pages_for(num_tokens)
        if need > have:
            after = request.pages[-1] if have else None
            request.pages += self.pages.allocate(need - have, after=after)
            request.block_table[have:need] = request.pages[have:]

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request; its pages become the cached ones."""
        request.finish(reason)
        if request is self._running:
            self._running = None
            valid = num_pages_for(request.num_computed)
            self._cached_ids = request.token_ids[: request.num_computed]
            self._cached_pages = request.pages[:valid]
        request.pages = []
        self._restore_pages()

    def _abort_all_of_step(self, request: Request | None) -> None:
        for each in (request, self._running):
            if each is not None and not each.finished:
                self._finish(each, "abort")

    def _reap(self) -> None:
        """End the requests that were cancelled since the last step."""
        if self._running is not None and self._running.cancelled:
            self._finish(self._running, "abort")
        for request in [r for r in self._waiting if r.cancelled]:
            self._waiting.remove(request)
            request.finish("abort")

    def _restore_pages(self) -> None:
        running = self._running.pages if self._running is not None else []
        self.pages.restore([running, self._cached_pages])


def common_prefix_len(a: list[int], b: list[int]) -> int:
    """How many tokens two sequences have in common at their beginning.

    >>> common_prefix_len([1, 2, 3], [1, 2, 4, 5])
    2
    """
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
