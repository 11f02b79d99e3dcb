"""EngineCore: the loop `schedule -> copies -> run -> sample -> commit`, for a single owner."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceLostError
from .batch import Logits, Runs
from .candidates import CandidateRow, CandidateRows
from .chunks import Chunk, Schedule
from .logprobs import token_logprob, top_logprobs
from .look_ahead import make_batch
from .outputs import FinishReason, Logprob
from .pages import PagePool
from .request import Completion, Request
from .row_groups import choose_tokens
from .scheduler import Scheduler
from .stats import Counters, EngineStats, StepStats
from .step_budget import StepBudget

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
Rows = NDArray[np.float32] | CandidateRows


class EngineCore:
    """Runs requests together, step by step. Whoever calls `step` owns it: it takes no locks.

    Only `cancel` may be called by others at any time; it takes effect at the next step.

    Args:
        program: runs the batches.
        tokenizer: shows tokens in log-probabilities.
        max_sequences: answers that are made at once; the others wait.
        prefix_cache: keep the pages of what ended, and find them for others.
        whole_prompts: the program is an encoder: a text runs in one step, and no page is shared.
        clock: seconds; tests have their own.
    """

    def __init__(
        self,
        program: Runs,
        tokenizer: "Tokenizer",
        *,
        max_sequences: int = 16,
        prefix_cache: bool = True,
        whole_prompts: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.program = program
        self.clock = clock
        self.counters = Counters()
        self._tokenizer = tokenizer
        self._max_sequences = max_sequences
        self._whole_prompts = whole_prompts
        self._prefix_cache = prefix_cache and not whole_prompts
        self._budget = StepBudget(program.max_tokens)
        self._on_device = getattr(program, "gives_candidates", False)
        self._live: dict[int, Completion] = {}  # by sequence id
        self._timed: dict[str, Request] = {}  # those with a deadline, by request id
        self._next_deadline = math.inf  # no live request's is earlier
        self._cancelled: deque[Request] = deque()
        self._num_decoding = 0
        self._num_empty = 0  # steps one after another in which nothing could be scheduled
        self.lost_device = False  # every further step fails
        self._make_scheduler()

    def submit(self, request: Request) -> None:
        """Take a request; the next step may run it. One that was cancelled before stays ended."""
        if request.finished:
            return
        request.submitted_at = request.submitted_at or self.clock()
        try:
            for completion in request.completions:
                # Otherwise only its own answers share pages.
                if not (self._prefix_cache and request.cache_prompt):
                    completion.sequence.namespace = request.completions[0].sequence.sequence_id + 1
                self.scheduler.add(completion.sequence)
                self._live[completion.sequence.sequence_id] = completion
        except Exception as error:
            self._fail(request, error)
            return
        if request.timeout_s is not None:
            self._timed[request.request_id] = request
            self._next_deadline = min(self._next_deadline, _deadline(request))

    def cancel(self, request: Request) -> None:
        """End a request, in whatever state, at the next step. From any thread, any time."""
        if not request.finished:
            self._cancelled.append(request)  # before the mark: a marked one gets no more tokens
        request.cancelled = True

    def step(self) -> bool:
        """Run one step; False if there was nothing to run.

        An error of the program ends the requests of the step, one of the sampler that request;
        both are kept in their `error`. An interrupt (KeyboardInterrupt) does the same and goes on
        to the caller.
        """
        started = self.clock()
        self._reap(started)
        budget = self._budget.prefill_tokens(num_decode=self._num_decoding)
        schedule = self.scheduler.schedule(budget)
        self.counters.preemptions += len(schedule.preempted)
        if not schedule.chunks:
            return self._nothing_to_run()
        self._num_empty = 0
        try:
            for source, target in schedule.copies:
                self.program.copy_page(source, target)
            scheduler = self.scheduler if self._on_device else None
            logits = self.program.run(make_batch(schedule.chunks, self._live, scheduler))
        except BaseException as error:
            self._fail_step(schedule, error)
            if not isinstance(error, Exception):
                raise
            return True
        self._commit(schedule, logits, started)
        return True

    @property
    def has_work(self) -> bool:
        """Something is to be done: run, or end."""
        return bool(self._live or self._cancelled)

    def end_all(self, error: Exception | None = None) -> int:
        """End everything there is, as cancelled or with an error; returns how many requests."""
        requests = {c.request.request_id: c.request for c in self._live.values()}
        for request in requests.values():
            if error is None:
                self.counters.cancellations += 1
                self._end(request, "abort")
            else:
                self._fail(request, error)
        self._cancelled.clear()
        return len(requests)

    def reset(self, error: Exception) -> int:
        """After an error in the books themselves: end everything, begin with empty pages."""
        live, self._live = list(self._live.values()), {}
        requests = {c.request.request_id: c.request for c in live}
        self.counters.queried_tokens += self.scheduler.prefix_query_tokens
        self.counters.evictions += self.pool.num_evictions
        self._make_scheduler()
        for request in requests.values():
            self._fail(request, error)
        # Those cancelled stay noted: one of them may not have come here yet.
        self._num_decoding = self._num_empty = 0
        return len(requests)

    @property
    def stats(self) -> EngineStats:
        """A snapshot, from any thread."""
        n, pool = self.counters, self.pool
        return EngineStats(
            steps=n.steps,
            decode_tokens=n.decode_tokens,
            prefill_tokens=n.prefill_tokens,
            cached_tokens=n.cached_tokens,
            queried_tokens=n.queried_tokens + self.scheduler.prefix_query_tokens,
            evictions=n.evictions + pool.num_evictions,
            preemptions=n.preemptions,
            cancellations=n.cancellations,
            expirations=n.expirations,
            failures=n.failures,
            finished=n.finished,
            running=self.scheduler.num_running,
            waiting=self.scheduler.num_waiting,
            pages_used=pool.num_used,
            pages_cached=pool.num_cached,
            pages_free=pool.num_free,
            last_step=n.last_step,
        )

    # -- one step ---------------------------------------------------------------------------------
    def _commit(self, schedule: Schedule, logits: Rows, started: float) -> None:
        """Note what was computed; choose a token where a chunk ends its sequence so far."""
        self.scheduler.commit(schedule)
        num_decode, num_prefill = self._count(schedule, started)
        self._num_decoding = row = depth = 0
        changed: dict[str, Request] = {}
        tokens = self._choose(schedule, logits)
        for number, chunk in enumerate(schedule.chunks):
            at, row = row, row + chunk.num_rows
            if chunk.num_tokens > 1:
                depth = max(depth, chunk.end)
            sequence_id = chunk.sequence.sequence_id
            completion = self._live.get(sequence_id)
            if completion is None or completion.request.cancelled:
                continue  # ended meanwhile, or asked to end: the next step does it
            request = completion.request
            try:
                if chunk.logits is Logits.HIDDEN:
                    self._pool(request, chunk, number)
                if self._take(completion, chunk, logits[at:row], tokens.get(sequence_id)):
                    changed[request.request_id] = request
            except Exception as error:
                self._fail(request, error)
        now = self.clock()
        step = StepStats(now - started, num_decode, num_prefill, len(schedule.chunks))
        self.counters.last_step = step
        self._budget.observe(
            step.seconds, num_decode=num_decode, num_prefill=num_prefill, depth=depth
        )
        for request in changed.values():
            request.wake()

    def _choose(self, schedule: Schedule, logits: Rows) -> dict[int, int | None]:
        """The tokens that candidates give at once, by sequence id."""
        if not isinstance(logits, CandidateRows):
            return {}
        ids, places, samplers, count = [], [], [], 0
        for chunk in schedule.chunks:
            count += chunk.num_rows
            completion = self._live.get(chunk.sequence.sequence_id)
            if chunk.logits is Logits.LAST and completion is not None:
                ids.append(chunk.sequence.sequence_id)
                places.append(count - 1)
                samplers.append(completion.sampler)
        return dict(zip(ids, choose_tokens(logits, places, samplers), strict=True))

    def _count(self, schedule: Schedule, started: float) -> tuple[int, int]:
        """Tokens of decode and prefill in a step; before anybody can see what came of it."""
        num_decode = num_prefill = 0
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            if chunk.num_tokens == 1 and chunk.start >= sequence.num_prompt:
                num_decode += 1
                continue
            num_prefill += chunk.num_tokens
            completion = self._live[sequence.sequence_id]
            self.counters.cached_tokens += sequence.num_cached - completion.num_counted
            completion.num_counted = sequence.num_cached
            if completion.request.started_at is None:
                completion.request.started_at = started
        self.counters.steps += 1
        self.counters.decode_tokens += num_decode
        self.counters.prefill_tokens += num_prefill
        return num_decode, num_prefill

    def _take(self, completion: Completion, chunk: Chunk, rows: Rows, token: int | None) -> bool:
        """Use a chunk's logits, (0, 1 or num_tokens, vocab_size); whether readers see more now."""
        request, sequence = completion.request, completion.sequence
        if chunk.logits is Logits.ALL:
            self._score_prompt(request, chunk, rows)
        request.last_step_at = self.clock()
        if sequence.num_pending:
            return False
        if request.max_new_tokens == 0:
            with request.lock:
                if request.pooler is not None:
                    request.embedding = request.pooler.result()
                self._finish(completion, "length" if request.pooler is None else "stop")
            return True
        if token is None:
            token = completion.sampler.sample(rows[-1])
        else:
            completion.sampler.chose(token)
        scores = self._score(completion, rows[-1], token) if request.params.wants_logprobs else None
        with request.lock:
            request.last_step_at = self.clock()
            if request.first_token_at is None:
                request.first_token_at = request.last_step_at
            self.scheduler.append(sequence, token)
            if scores is not None:
                completion.logprobs.append(scores)
            request.version += 1
            reason = completion.took(token)
            if reason is None:
                self._num_decoding += 1
            else:  # what it held is free before anybody sees that it ended
                self._finish(completion, reason)
        return True

    def _score(
        self, completion: Completion, logits: NDArray[np.float32] | CandidateRow, token_id: int
    ) -> dict[int, Logprob] | None:
        """Count a chosen token's log-probability; what is reported of its place, if anything."""
        if completion.sampler.edits_rows and isinstance(logits, CandidateRow):
            logits = logits.full()  # as the model made it
        count = completion.request.params.logprobs
        if count is None:
            completion.cumulative_logprob += token_logprob(logits, token_id)
            return None
        scores = top_logprobs(logits, token_id, count, self._tokenizer)
        completion.cumulative_logprob += scores[token_id].logprob
        return scores

    def _pool(self, request: Request, chunk: Chunk, segment: int) -> None:
        """Add the hidden states of a chunk, which was that segment of the batch."""
        pooler = request.pooler
        assert pooler is not None
        wanted = pooler.wanted(chunk.start, chunk.num_tokens)
        pooler.add(chunk.start, self.program.hidden_states(segment, wanted))

    def _score_prompt(self, request: Request, chunk: Chunk, rows: Rows) -> None:
        """Log-probabilities of the prompt's tokens that follow those of this chunk."""
        scores, count = request.prompt_logprobs, request.params.prompt_logprobs
        if count is None:
            return
        new: list[dict[int, Logprob] | None] = [None] if not scores else []
        done = len(scores) + len(new)  # a sequence that was preempted comes here again
        for position in range(max(done, chunk.start + 1), chunk.start + len(rows) + 1):
            if position < request.num_prompt_tokens:
                row, token_id = rows[position - 1 - chunk.start], request.prompt_ids[position]
                new.append(top_logprobs(row, token_id, count, self._tokenizer))
        with request.lock:
            scores += new

    # -- ends -------------------------------------------------------------------------------------
    def _finish(self, completion: Completion, reason: FinishReason) -> None:
        """One answer is complete; under the request's lock."""
        request = completion.request
        del self._live[completion.sequence.sequence_id]
        self.scheduler.remove(completion.sequence)
        if request.end(completion, reason):
            self._timed.pop(request.request_id, None)
            self.counters.finished += 1

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: str | None = None,
        error: Exception | None = None,
    ) -> None:
        """End what still runs of a request, in any state; its pages are free after this."""
        for completion in request.completions:
            if self._live.pop(completion.sequence.sequence_id, None) is not None:
                self.scheduler.remove(completion.sequence)
        self._timed.pop(request.request_id, None)
        with request.lock:
            request.end_all(reason, stop_reason=stop_reason, error=error)
        request.wake()

    def _fail(self, request: Request, error: Exception) -> None:
        self.counters.failures += 1
        self._end(request, "error", error=error)

    def _fail_step(self, schedule: Schedule, error: BaseException) -> None:
        """The program failed: nothing of this step counts, and its requests end."""
        self.lost_device = self.lost_device or isinstance(error, DeviceLostError)
        ids = [chunk.sequence.sequence_id for chunk in schedule.chunks]
        requests = {self._live[i].request.request_id: self._live[i].request for i in ids}
        for request in requests.values():
            if isinstance(error, Exception):
                self._fail(request, error)
            else:
                self.counters.cancellations += 1
                self._end(request, "abort")
        logger.warning("a step failed and ended %d requests: %r", len(requests), error)

    def _reap(self, now: float) -> None:
        """End the requests that were cancelled since the last step, and those whose time is up."""
        while self._cancelled:
            request = self._cancelled.popleft()
            if not request.finished:
                self.counters.cancellations += 1
                self._end(request, "abort")
        if now < self._next_deadline:
            return
        for request in list(self._timed.values()):
            if _deadline(request) <= now:
                self.counters.expirations += 1
                self._end(request, "abort", stop_reason="timeout")
        self._next_deadline = min(map(_deadline, self._timed.values()), default=math.inf)

    def _nothing_to_run(self) -> bool:
        """Nothing was scheduled: there is nothing, or the books are wrong, which must not spin."""
        self._num_decoding = 0
        self._num_empty += 1
        if self._live and self._num_empty > 3:
            raise AssertionError("nothing can be scheduled although requests wait")
        return False

    def _make_scheduler(self) -> None:
        program = self.program
        self.pool = PagePool(program.num_pages, prefix_cache=self._prefix_cache)
        self.scheduler = Scheduler(
            self.pool,
            max_tokens=program.max_tokens,
            max_sequences=self._max_sequences,
            max_logits=program.max_logits,
            whole_prompts=self._whole_prompts,
        )


def _deadline(request: Request) -> float:
    return request.submitted_at + (request.timeout_s or 0.0)
