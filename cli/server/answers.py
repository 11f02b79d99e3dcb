"""What is generated, in pieces and whole: the events of a request, the same for all dialects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...models.chat import ContentText, Part, ReasoningText, ToolCallStart

if TYPE_CHECKING:
    from ...runtime.outputs import Logprob, RequestOutput


@dataclass(slots=True)
class Delta:
    """What is new of one answer."""

    index: int
    parts: Sequence[Part]
    token_ids: Sequence[int]
    logprobs: "Sequence[dict[int, Logprob]] | None"  # of the new tokens, if they were asked for


@dataclass(slots=True)
class End:
    """One answer is complete.

    reason: "stop", "length", "tool_calls"; "timeout" when its time was up; "abort".
    """

    index: int
    reason: str
    stop_sequence: str | None
    seed: int


@dataclass(slots=True)
class Summary:
    """The request is complete: counts and times."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    timings: dict[str, float]

    @property
    def usage(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


Event = Delta | End | Summary


@dataclass
class Call:
    """A tool call of a whole answer."""

    name: str
    arguments: str = ""


@dataclass
class Answer:
    """A whole answer, folded from its deltas."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: "list[dict[int, Logprob]] | None" = None
    reason: str = "stop"
    stop_sequence: str | None = None
    seed: int = 0

    def add(self, delta: Delta) -> None:
        """Take the next delta."""
        for part in delta.parts:
            if isinstance(part, ContentText):
                self.content += part.text
            elif isinstance(part, ReasoningText):
                self.reasoning += part.text
            elif isinstance(part, ToolCallStart):
                self.calls.append(Call(part.name))
            else:
                self.calls[part.index].arguments += part.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *delta.logprobs]


def summary_of(output: "RequestOutput", reasoning_tokens: int) -> Summary:
    """The figures of a snapshot, of the last one or an earlier."""
    m = output.metrics
    prompt_n, decode_n = m.prompt_tokens - m.cached_tokens, m.completion_tokens
    prompt_ms, predicted_ms = 1000 * m.prefill_s, 1000 * m.decode_s
    timings = {
        "cache_n": m.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n if prompt_n else 0.0,
        "prompt_per_second": m.prefill_tokens_per_s,
        "predicted_n": decode_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / decode_n if decode_n else 0.0,
        "predicted_per_second": m.decode_tokens_per_s,
        "queue_ms": 1000 * m.queue_s,
        "ttft_ms": 1000 * (m.ttft_s or 0.0),
    }
    rounded = {name: round(value, 3) for name, value in timings.items()}
    return Summary(m.prompt_tokens, m.cached_tokens, m.completion_tokens, reasoning_tokens, rounded)
