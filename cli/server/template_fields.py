"""What a request tells the chat template: whether and how long to think, and its own variables."""

from typing import Any, Literal

from pydantic import Field

from .errors import bad_request
from .fields import Body, RequestBody

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Tokens of thinking for each effort; None: as long as the model likes.
EFFORT_BUDGETS: dict[str, int | None] = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": None,
    "xhigh": None,
    "max": None,
}
_TEMPLATE_EFFORTS = ("low", "medium", "high")  # that templates know
_SWITCHES = ("enable_thinking", "thinking")
_SETTINGS = ("merge_roles", "developer_as_system", "continue_final_message")
# Names that the renderer sets itself.
_RESERVED = frozenset(
    "messages tools add_generation_prompt chat_template self raise_exception strftime_now "
    "bos_token eos_token unk_token pad_token".split()
)


class Reasoning(Body):
    """`reasoning` as OpenRouter's clients send it."""

    effort: Effort | None = None
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    enabled: bool | None = None

    refused = {"exclude": ((False,), "reasoning is always part of the answer")}


class TemplateFields(RequestBody):
    """Thinking and variables of the template.

    The effort is a budget of thinking tokens: none 0 (off), minimal 256, low 1024, medium 4096,
    high (and more) no limit. A budget that is given as well overrides it.
    """

    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    thinking_budget: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="Tokens of thinking. 0: off; -1: no limit."
    )
    reasoning_budget: int | None = Field(None, ge=-1, le=2**31 - 1)
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def thinking(self) -> bool | None:
        """Whether to think; None: as the template does. ApiError: yes and no at once."""
        decided = self._votes()
        if len(set(decided.values())) > 1:
            raise bad_request(
                f"{' and '.join(decided)} contradict each other about thinking",
                param=next(iter(decided)),
            )
        return next(iter(decided.values()), None)

    def thinking_wishes(self) -> list[str]:
        """The fields that ask for thinking, which some models can't do."""
        return [name for name, vote in self._votes().items() if vote]

    def _votes(self) -> dict[str, bool]:
        enabled = self.reasoning.enabled if self.reasoning is not None else None
        votes = {"enable_thinking": self.enable_thinking, "reasoning.enabled": enabled}
        for name in _SWITCHES:
            value = (self.chat_template_kwargs or {}).get(name)
            votes[f"chat_template_kwargs.{name}"] = value if isinstance(value, bool) else None
        effort = self.effort()
        name = "reasoning_effort" if self.reasoning_effort is not None else "reasoning.effort"
        votes[name] = None if effort is None else effort != "none"
        votes["thinking_budget"] = False if self._given_budget() == 0 else None
        return {name: vote for name, vote in votes.items() if vote is not None}

    def effort(self) -> str | None:
        """How hard to think, by whichever name it was given."""
        inner = self.reasoning.effort if self.reasoning is not None else None
        if inner is not None and self.reasoning_effort not in (None, inner):
            raise bad_request(
                "reasoning_effort and reasoning.effort differ: give one of them",
                param="reasoning_effort",
            )
        return inner or self.reasoning_effort

    def budget(self) -> int | None:
        """Most tokens of thinking; None: no limit."""
        given = self._given_budget()
        if given is None:
            effort = self.effort()
            return None if effort is None else EFFORT_BUDGETS[effort]
        return None if given == -1 else given

    def template_kwargs(self) -> dict[str, Any]:
        """Variables for the template; ApiError: one that requests may not set."""
        kwargs = dict(self.chat_template_kwargs or {})
        for name, value in kwargs.items():
            where = f"chat_template_kwargs.{name[:64]}"
            if name in _RESERVED or name.startswith("_") or not name.isidentifier():
                raise bad_request(f"{where}: can't be set by a request", param=where)
            if name in _SETTINGS and not isinstance(value, bool):
                raise bad_request(f"{where}: must be true or false", param=where)
        effort = self.effort()
        if effort in _TEMPLATE_EFFORTS:
            kwargs.setdefault("reasoning_effort", effort)
        return kwargs

    def _given_budget(self) -> int | None:
        inner = self.reasoning.max_tokens if self.reasoning is not None else None
        given = {v for v in (self.thinking_budget, self.reasoning_budget, inner) if v is not None}
        if len(given) > 1:
            raise bad_request(
                "thinking_budget, reasoning_budget and reasoning.max_tokens are one setting: "
                "give one of them",
                param="thinking_budget",
            )
        return given.pop() if given else None
