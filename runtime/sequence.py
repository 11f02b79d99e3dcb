"""Sequence: one answer being made, as the scheduler sees it: token ids, pages, counts."""

import itertools
from collections.abc import Iterable
from enum import Enum
from typing import Literal

from .prefix import Node

_ids = itertools.count()


class SequenceState(Enum):
    """Where a sequence stands; only one that runs has pages."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


class Sequence:
    """Prompt and generated tokens of one answer, and how far their KV is computed.

    Args:
        token_ids: the prompt, at least one token.
        max_new_tokens: most tokens that will be generated; 0: the prompt runs, no logits are made.
        priority: 0 interactive, 1 background.
        all_logits: the logits of every prompt token are wanted. The prompt then takes no prefix
            hits, and its chunks have at most `max_logits` tokens. Each token's logits come exactly
            once, also if the sequence is preempted meanwhile.
        hidden: "all": the same for the prompt tokens' hidden states, in chunks of any length;
            "last": the last one's hidden state is wanted. No logits are made then: max_new_tokens
            is 0.
        namespace: only pages of sequences with the same number are found (0: the common one).
        wait_for: start only after that one's prompt was computed, and find its pages (n > 1);
            it must have been added to the scheduler before.

    The scheduler writes the other attributes; the engine reads them:
        token_ids: list, prompt and then what was generated. `Scheduler.append` extends it.
        num_computed: positions whose KV is in `pages`, as of the last commit.
        pages: the block table, covering at least `num_computed` positions. Entries at the end are
            added as the sequence grows; `table_version` changes whenever others do.
        num_cached: prompt tokens that did not have to run because their pages were found, when
            admitted or by waiting for another that computed the same; what is found again after a
            preemption doesn't count.
        num_preemptions: how often its pages were taken away.
        prompt_done: the whole prompt has been computed (stays True after a preemption).
    """

    __slots__ = (
        "all_logits",
        "hidden",
        "last_turn",
        "max_new_tokens",
        "namespace",
        "node",
        "num_cached",
        "num_computed",
        "num_logits",
        "num_preemptions",
        "num_prompt",
        "pages",
        "priority",
        "prompt_done",
        "rank",
        "sequence_id",
        "state",
        "table_version",
        "token_ids",
        "wait_for",
    )

    def __init__(
        self,
        token_ids: Iterable[int],
        *,
        max_new_tokens: int,
        priority: int = 0,
        all_logits: bool = False,
        hidden: Literal["", "last", "all"] = "",
        namespace: int = 0,
        wait_for: "Sequence | None" = None,
    ) -> None:
        assert not hidden or not (max_new_tokens or all_logits)
        self.sequence_id = next(_ids)
        self.token_ids = list(token_ids)
        self.num_prompt = len(self.token_ids)
        self.max_new_tokens = max_new_tokens
        self.priority = priority
        self.all_logits = all_logits
        self.hidden = hidden
        self.namespace = namespace
        self.wait_for = wait_for
        self.state = SequenceState.WAITING
        self.num_computed = 0
        self.pages: list[int] = []
        self.table_version = 0
        self.num_cached = 0
        self.num_preemptions = 0
        self.prompt_done = False
        # The scheduler's own notes:
        self.rank: tuple[int, int] = (0, 0)  # smaller goes first; (0, 0): not added yet
        self.node: Node | None = None  # of its last full page; while it waits, where to look on
        self.num_logits = 0  # prompt tokens whose logits or states were made (wants_all)
        self.last_turn = 0  # where more decode than may, the longest ago goes first

    def __repr__(self) -> str:
        """For messages of failing tests."""
        return (
            f"<Sequence {self.sequence_id} {self.state.name} {self.num_computed}/"
            f"{len(self.token_ids)} (prompt {self.num_prompt}) pages={self.pages}>"
        )

    @property
    def num_new(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed yet."""
        return len(self.token_ids) - self.num_computed

    @property
    def wants_all(self) -> bool:
        """Some prompt token's logits, or hidden state, are still to be made."""
        wanted = self.all_logits or self.hidden == "all"
        return wanted and self.num_logits < self.num_prompt

    @property
    def blocked(self) -> bool:
        """The one it waits for has not come through its prompt."""
        other = self.wait_for
        return not (other is None or other.prompt_done or other.state is SequenceState.FINISHED)
