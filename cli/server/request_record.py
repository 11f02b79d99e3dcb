"""What is known of the HTTP request at hand, gathered on its way for the log."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...runtime.outputs import RequestMetrics


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One HTTP request; it may hold several requests to the engine (prompts of one list)."""

    id: str
    model: str | None = None
    dialect: str | None = None
    reason: str | None = None
    client_gone: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    load_s: float = 0.0  # for which it waited for its model to be loaded
    queue_s: float = 0.0
    ttft_s: float | None = None
    decode_s: float = 0.0
    num_sequences: int = 0

    def add(self, model: str, dialect: str, reason: str, metrics: "RequestMetrics | None") -> None:
        """One request to the engine has ended."""
        self.model, self.dialect, self.reason = model, dialect, reason
        if metrics is None:
            return
        self.prompt_tokens += metrics.prompt_tokens
        self.cached_tokens += metrics.cached_tokens
        self.completion_tokens += metrics.completion_tokens
        self.num_sequences += metrics.num_sequences
        self.queue_s = max(self.queue_s, metrics.queue_s)
        self.decode_s = max(self.decode_s, metrics.decode_s)
        if metrics.ttft_s is not None:
            self.ttft_s = (
                metrics.ttft_s if self.ttft_s is None else min(self.ttft_s, metrics.ttft_s)
            )

    def fields(self) -> dict[str, Any]:
        """What the log shows of it, beside HTTP's own: counts and times, never texts."""
        if self.model is None:
            return {}
        load_ms = round(1000 * self.load_s, 1)
        if self.dialect is None:  # it did not come to the engine
            return {"model": self.model, "load_ms": load_ms}
        tokens = max(0, self.completion_tokens - self.num_sequences)
        return {
            "model": self.model,
            "dialect": self.dialect,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "load_ms": load_ms,
            "queue_ms": round(1000 * self.queue_s, 1),
            "ttft_ms": None if self.ttft_s is None else round(1000 * self.ttft_s, 1),
            "tokens_per_s": round(tokens / self.decode_s, 2) if self.decode_s > 0 else None,
            "reason": self.reason,
        }


# Of the request that the current task answers.
current: ContextVar[RequestRecord | None] = ContextVar("request", default=None)
