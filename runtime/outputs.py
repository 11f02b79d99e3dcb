"""What comes back for a request: its answers so far, and their figures."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "abort", "error"]


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

    index: int  # its place in RequestOutput.outputs
    text: str
    token_ids: list[int]  # all that were generated, an end token included
    logprobs: list[dict[int, Logprob]] | None  # a position's tokens by id, most likely first
    finish_reason: FinishReason | None  # None while it runs
    # The stop string or stop_token_ids' id that ended it; "timeout" when its time was up.
    stop_reason: int | str | None
    seed: int  # the same seed gives the same tokens
    # Sum of the chosen tokens' log-probabilities; None unless they or a best_of were asked for.
    cumulative_logprob: float | None = None
    delta: str = field(default="", compare=False)  # the text that is new since the item before


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Counts and times of one request, by the engine's clock: a slow reader changes nothing.

    Other requests run in the same steps, so the rates are what this request saw, not what the
    engine did.
    """

    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken from the KV cache instead of run
    completion_tokens: int  # of all its answers
    queue_s: float  # from submission to the first step
    ttft_s: float | None  # from submission to the first token; None before it
    prefill_s: float  # from the first step to the first token
    decode_s: float  # from the first token to the last
    num_sequences: int = 1  # answers made at once

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens run a second; 0 before any time was taken."""
        tokens = self.prompt_tokens - self.cached_tokens
        return tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second after the first of each answer, which prefill yields."""
        tokens = max(0, self.completion_tokens - self.num_sequences)
        return tokens / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's state at one moment: the final one, or one item of a stream."""

    request_id: str
    prompt: str | None  # None when it was given as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    delta: str = ""  # outputs[0]'s text that is new since the stream's item before
    # One entry a prompt token, so far as they were computed: None for the first.
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error: Exception | None = None  # why it was not answered, when it was one of several prompts
    # LLM.embed's result, float32 (dim,) or (dimensions,), when it is finished; else None.
    embedding: NDArray[np.float32] | None = field(default=None, compare=False)


def failed_output(
    error: Exception, request_id: str, prompt: str | None, prompt_token_ids: list[int], seed: int
) -> RequestOutput:
    """What stands in the place of a prompt that could not be run."""
    nothing = CompletionOutput(
        index=0,
        text="",
        token_ids=[],
        logprobs=None,
        finish_reason="error",
        stop_reason=None,
        seed=seed,
    )
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=prompt_token_ids,
        outputs=[nothing],
        finished=True,
        metrics=RequestMetrics(len(prompt_token_ids), 0, 0, 0.0, None, 0.0, 0.0),
        error=error,
    )
