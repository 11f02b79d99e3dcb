"""What every OpenAI answer says about itself: id, time, model, build."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .... import __version__
from ..answers import End, Summary
from ..replies import new_id
from ..running import Running

if TYPE_CHECKING:
    from ..served import ServedModel

FINGERPRINT = f"llamba-{__version__}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields around the choices, the same in all chunks of a stream."""

    id: str
    created: int
    model: str

    @classmethod
    def of(cls, running: Running, prefix: str) -> "Envelope":
        """A new one for a request that runs."""
        return cls(new_id(prefix), running.created, running.name)

    def around(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole object; kind: "chat.completion.chunk" and the like."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }


def closing(end: End, *, legacy: bool = False) -> dict[str, Any]:
    """How a choice ended. OpenAI has no word for a time limit: "length", and `timed_out` tells.

    stop_reason: the stop string that ended it (vLLM's name). seed: gives the same answer again.
    """
    reason = {"timeout": "length", "abort": "length"}.get(end.reason, end.reason)
    if legacy and reason == "tool_calls":
        reason = "function_call"
    fields: dict[str, Any] = {"finish_reason": reason, "seed": end.seed}
    fields["stop_reason"] = end.stop_sequence
    if end.reason == "timeout":
        fields["timed_out"] = True
    return fields


def figures(summary: Summary) -> dict[str, Any]:
    """Usage and timings of a whole answer."""
    return {"usage": summary.usage, "timings": summary.timings}


def end_ids(model: "ServedModel", running: Running) -> frozenset[int]:
    """Tokens that end an answer and are no part of its text, so that logprobs leave them out."""
    params = running.params
    if params is None:
        return frozenset()
    own = () if params.ignore_eos else model.llm.tokenizer.stop_ids
    return frozenset((*own, *params.stop_token_ids))
