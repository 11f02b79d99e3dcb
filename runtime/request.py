"""Request, the engine's state of what was asked, and RequestOutput, what comes back."""

from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Literal

import numpy as np

from .params import SamplingParams as SamplingParams
from .stop import TextAssembler

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer
    from .sampler import Sampler

FinishReason = Literal["stop", "length", "abort"]
_ids = count()


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability at one position, of the raw logits."""

    token_id: int
    logprob: float
    rank: int  # 1 is the most likely token
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: list[int]  # all that were generated, an end token included
    logprobs: list[dict[int, Logprob]] | None  # a position's tokens by id, most likely first
    finish_reason: FinishReason | None  # None while it runs
    stop_reason: int | str | None  # the stop string or stop_token_ids' id that ended it
    seed: int  # the same seed gives the same tokens

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the chosen tokens' log-probabilities; None if they were not asked for."""
        if self.logprobs is None:
            return None
        pairs = zip(self.token_ids, self.logprobs, strict=True)
        return sum(position[token_id].logprob for token_id, position in pairs)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Counts and times of one request. Rates leave out the caller's pauses between items."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken from the KV cache instead of run
    completion_tokens: int
    queue_s: float  # from submission to the first step
    ttft_s: float | None  # from submission to the first token; None before it
    prefill_s: float
    decode_s: float

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens run a second; 0 before any time was taken."""
        tokens = self.prompt_tokens - self.cached_tokens
        return tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second after the first, which prefill yields."""
        return (self.completion_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's state at one moment: the final one, or one item of a stream."""

    request_id: str
    prompt: str | None  # None when it was given as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    delta: str = ""  # the text that is new since the stream's item before


class Status(Enum):
    """Where a request stands."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


@dataclass(eq=False)
class Request:
    """The engine's state of one request. Fields are changed by the engine only, under its lock."""

    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    sampler: "Sampler"
    text: TextAssembler
    max_new_tokens: int  # what params and the context leave
    end_ids: frozenset[int] = frozenset()  # the model's end tokens
    request_id: str = field(default_factory=lambda: f"req-{next(_ids)}")
    status: Status = Status.WAITING
    token_ids: list[int] = field(default_factory=list)  # prompt and what was generated
    num_computed: int = 0  # tokens whose KV is in the pages
    pages: list[int] = field(default_factory=list)  # the block table
    block_table: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: Exception | None = None  # why a step failed; raised to whoever waits for the request
    cached_tokens: int = 0
    submitted_at: float = 0.0
    started_at: float | None = None
    first_token_at: float | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cancelled: bool = False  # asked to end; set by anyone at any time

    def __post_init__(self) -> None:
        """The sequence begins as the prompt."""
        self.token_ids = list(self.prompt_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)

    @property
    def num_new_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def num_pending(self) -> int:
        """Tokens whose KV is not computed yet."""
        return len(self.token_ids) - self.num_computed

    @property
    def finished(self) -> bool:
        """Nothing more will come."""
        return self.status is Status.FINISHED

    def append(self, token_id: int) -> FinishReason | None:
        """Take a chosen token; return why the generation ends with it, None if it goes on."""
        self.token_ids.append(token_id)
        if token_id in self.end_ids or token_id in self.params.stop_token_ids:
            self.stop_reason = token_id if token_id in self.params.stop_token_ids else None
            return "stop"
        self.text.push(token_id)
        if self.text.stop_string is not None:
            self.stop_reason = self.text.stop_string
            return "stop"
        return "length" if self.num_new_tokens >= self.max_new_tokens else None

    def finish(self, reason: FinishReason) -> None:
        """The generation has ended: what was held back of the text is shown now."""
        if not self.finished:
            self.text.flush()
            self.finish_reason = reason
            self.status = Status.FINISHED

    def output(self, shown: int = 0) -> RequestOutput:
        """A snapshot; `shown` characters of the text have been given out before."""
        text = self.text.text
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=self.token_ids[self.num_prompt_tokens :],
            logprobs=None if self.params.logprobs is None else list(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            seed=self.sampler.seed,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=[completion],
            finished=self.finished,
            metrics=self._metrics(),
            delta=text[shown:],
        )

    def _metrics(self) -> RequestMetrics:
        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - self.submitted_at

        return RequestMetrics(
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.num_new_tokens,
            queue_s=since(self.started_at) or 0.0,
            ttft_s=since(self.first_token_at),
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
        )


def end_ids_of(tokenizer: "Tokenizer", params: SamplingParams) -> frozenset[int]:
    """The model's end tokens that end this request; none of them is chosen with ignore_eos."""
    return frozenset() if params.ignore_eos else frozenset(tokenizer.stop_ids)
