"""Request: what was asked, and the state of its answers, which engine and readers share."""

import logging
import threading
from collections.abc import Callable, Collection
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics
from .outputs import RequestOutput as RequestOutput
from .params import SamplingParams as SamplingParams
from .pooling import Pooler, Pooling
from .sampler import Sampler
from .sequence import Sequence
from .stop import TextAssembler

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer
    from .grammar import TokenConstraint

logger = logging.getLogger(__name__)
_ids = count()
_MAX_SEED = 2**64


def new_request_id() -> str:
    """Another one each time."""
    return f"req-{next(_ids)}"


class Completion:
    """One answer being made: the scheduler's sequence, and what its tokens mean."""

    __slots__ = (
        "cumulative_logprob",
        "finish_reason",
        "logprobs",
        "num_counted",
        "request",
        "sampler",
        "sequence",
        "stop_reason",
        "table",
        "table_len",
        "table_version",
        "text",
    )

    def __init__(
        self, request: "Request", sequence: Sequence, sampler: Sampler, text: TextAssembler
    ) -> None:
        self.request = request
        self.sequence = sequence
        self.sampler = sampler
        self.text = text
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.num_counted = 0  # of sequence.num_cached, in the engine's figures
        self.table = np.empty(0, np.int32)  # its block table, of which so many entries are written
        self.table_len = self.table_version = 0

    def block_table(self) -> NDArray[np.int32]:
        """The sequence's pages, int32 (num_pages,); only what changed is written."""
        sequence = self.sequence
        pages = sequence.pages
        done, count = self.table_len, len(pages)
        if done != count or sequence.table_version != self.table_version:
            if sequence.table_version != self.table_version:
                done, self.table_version = 0, sequence.table_version
            if count > len(self.table):
                self.table = np.resize(self.table, 2 * count)
            self.table[done:count] = pages[done:]
            self.table_len = count
        return self.table[:count]

    def took(self, token_id: int) -> FinishReason | None:
        """The sequence got this token; return why the answer ends with it, None if it goes on."""
        request = self.request
        if token_id in request.end_ids or token_id in request.params.stop_token_ids:
            self.stop_reason = token_id if token_id in request.params.stop_token_ids else None
            return "stop"
        self.text.push(token_id)
        if self.text.stop_string is not None:
            self.stop_reason = self.text.stop_string
            return "stop"
        if self.sampler.finished:
            return "stop"
        return "length" if self.sequence.num_new >= request.max_new_tokens else None

    def end(self, reason: FinishReason) -> None:
        """Nothing more comes: what was held back of the text is shown now."""
        if self.finish_reason is None:
            self.text.flush()
            self.sampler.release()
            self.finish_reason = reason

    def output(self, index: int, shown: int) -> CompletionOutput:
        """A snapshot; `shown` characters of the text have been given out before."""
        params, sequence = self.request.params, self.sequence
        return CompletionOutput(
            index=index,
            text=self.text.text,
            token_ids=sequence.token_ids[sequence.num_prompt :],
            logprobs=None if params.logprobs is None else list(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            seed=self.sampler.seed,
            cumulative_logprob=self.cumulative_logprob if params.wants_logprobs else None,
            delta=self.text.text[shown:],
        )


class Request:
    """What was asked, and the state of its best_of answers.

    The engine changes it under `lock`; readers take snapshots under it, and ask to be woken by
    `subscribe`. Only `cancelled` may be set by anyone at any time.

    Args:
        prompt: the text, None when it came as token ids.
        prompt_ids: at least one token.
        params: how to choose tokens; answer i draws with the seed + i.
        tokenizer: turns tokens into text.
        seed: used where `params` have none.
        max_new_tokens: what `params` and the context leave.
        priority: 0 is interactive, 1 works in the background.
        timeout_s: seconds from submission after which it ends, with what there is.
        cache_prompt: False: only its own answers share its pages.
        namespace: pages are shared with requests of the same one; 0 is everybody's.
        adapters: a scale for each of the model's; none: 0.
        constrain: makes what constrains the tokens of one answer.
        pooling: an embedding of the prompt is wanted, and no answer; max_new_tokens is 0.
        show_ids: control tokens that are part of the text: tags of tool calls and of thinking.
    """

    def __init__(
        self,
        prompt: str | None,
        prompt_ids: list[int],
        params: SamplingParams,
        tokenizer: "Tokenizer",
        *,
        seed: int,
        max_new_tokens: int,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_prompt: bool = True,
        namespace: int = 0,
        adapters: tuple[float, ...] = (),
        pooling: Pooling | None = None,
        constrain: "Callable[[], TokenConstraint] | None" = None,
        show_ids: Collection[int] = (),
    ) -> None:
        self.request_id = new_request_id()
        self.prompt, self.prompt_ids, self.params = prompt, prompt_ids, params
        self.max_new_tokens = max_new_tokens
        self.timeout_s = timeout_s
        self.cache_prompt = cache_prompt
        self.adapters = adapters
        self.end_ids = frozenset() if params.ignore_eos else frozenset(tokenizer.stop_ids)
        self.lock = threading.Lock()
        self.version = 0  # changes whenever a snapshot would
        self.cancelled = False  # asked to end
        self.finished = False  # nothing more will come
        self.error: Exception | None = None  # why it was ended; raised to who waits for it
        self.prompt_logprobs: list[dict[int, Logprob] | None] = []
        self.pooler = None if pooling is None else Pooler(pooling, len(prompt_ids))
        self.embedding: NDArray[np.float32] | None = None
        self.submitted_at = 0.0
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.last_step_at = 0.0
        self._num_open = params.num_sequences
        self._waiters: list[tuple[Callable[[], None], bool]] = []
        seed = seed if params.seed is None else params.seed
        self.completions: list[Completion] = []
        for i in range(params.num_sequences):
            sequence = Sequence(
                prompt_ids,
                max_new_tokens=max_new_tokens,
                priority=priority,
                all_logits=params.prompt_logprobs is not None and i == 0,
                hidden="" if self.pooler is None else self.pooler.needs,
                namespace=namespace,
                wait_for=self.completions[0].sequence if i else None,
            )
            sampler = Sampler.for_request(
                params,
                tokenizer,
                seed=(seed + i) % _MAX_SEED,
                prompt_ids=prompt_ids,
                constraint=None if constrain is None else constrain(),
            )
            text = TextAssembler(
                tokenizer,
                tuple(params.stop),
                skip_special=params.skip_special_tokens,
                show=show_ids,
            )
            self.completions.append(Completion(self, sequence, sampler, text))

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)

    @property
    def num_new_tokens(self) -> int:
        """Tokens generated so far, of all answers."""
        return sum(completion.sequence.num_new for completion in self.completions)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why its first answer ended."""
        return self.completions[0].finish_reason

    # -- the engine's side: all but `wake` under the lock -----------------------------------------
    def end(self, completion: Completion, reason: FinishReason) -> bool:
        """One answer has ended; True if it was the last one: the request has, too."""
        if completion.finish_reason is None:
            completion.end(reason)
            self._num_open -= 1
            self.finished = self._num_open == 0
            self.version += 1
        return self.finished

    def end_all(
        self,
        reason: FinishReason,
        *,
        stop_reason: str | None = None,
        error: Exception | None = None,
    ) -> None:
        """Everything that still runs has ended."""
        self.error = self.error or error
        for completion in self.completions:
            if completion.finish_reason is None:
                completion.stop_reason = stop_reason
                self.end(completion, reason)

    def wake(self) -> None:
        """Call whoever waits for a change, or for the end if that has come."""
        if not self._waiters:
            return
        with self.lock:
            waiters = self._waiters
            self._waiters = [w for w in waiters if w[1] and not self.finished]
        for callback, at_end in waiters:
            if self.finished or not at_end:
                try:
                    callback()
                except Exception:  # the waiter's fault must not stop the engine
                    logger.exception("what waited for %s failed", self.request_id)

    # -- the readers' side ------------------------------------------------------------------------
    def subscribe(self, callback: Callable[[], None], *, seen: int, at_end: bool = False) -> bool:
        """Have `callback` called once, from the engine's thread, when there is something new.

        That is a version other than `seen`, or the end if `at_end`. False, and nothing is noted, if
        it is there already.
        """
        with self.lock:
            if self.finished or (not at_end and self.version != seen):
                return False
            self._waiters.append((callback, at_end))
            return True

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Nobody waits with this callback any more."""
        with self.lock:
            self._waiters = [w for w in self._waiters if w[0] is not callback]

    def output(self) -> RequestOutput:
        """A snapshot."""
        return self.snapshot()[0]

    def snapshot(self, shown: list[int] | None = None) -> tuple[RequestOutput, int]:
        """What there is, and its version; of each answer `shown` characters were given out."""
        with self.lock:
            outputs = [
                completion.output(i, 0 if shown is None else shown[i])
                for i, completion in enumerate(self._ranked())
            ]
            scores = self.prompt_logprobs if self.params.prompt_logprobs is not None else None
            output = RequestOutput(
                request_id=self.request_id,
                prompt=self.prompt,
                prompt_token_ids=self.prompt_ids,
                outputs=outputs,
                finished=self.finished,
                metrics=self._metrics(),
                delta=outputs[0].delta,
                prompt_logprobs=None if scores is None else list(scores),
                error=self.error,
                embedding=self.embedding,
            )
            return output, self.version

    def _ranked(self) -> list[Completion]:
        """The answers to show: all in order, or the best of more, once they are known."""
        n = self.params.n
        if len(self.completions) == n:
            return self.completions
        if not self.finished:
            return self.completions[:n]
        return sorted(self.completions, key=lambda c: -c.cumulative_logprob)[:n]

    def _metrics(self) -> RequestMetrics:
        submitted, started, first = self.submitted_at, self.started_at, self.first_token_at
        read_until = self.last_step_at if first is None else first
        return RequestMetrics(
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=self.completions[0].sequence.num_cached,
            completion_tokens=self.num_new_tokens,
            queue_s=0.0 if started is None else started - submitted,
            ttft_s=None if first is None else first - submitted,
            prefill_s=0.0 if started is None else read_until - started,
            decode_s=0.0 if first is None else self.last_step_at - first,
            num_sequences=len(self.completions),
        )
