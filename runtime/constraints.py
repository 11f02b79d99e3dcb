"""Constraints: what one model's requests may answer; compiled in the caller's thread."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .params import SamplingParams
from .structured import StructuredOutputs, WholeAnswer

if TYPE_CHECKING:
    from ..models.chat import ChatTemplate
    from ..models.tokenizer import Tokenizer
    from .grammar import GrammarCompiler, TokenConstraint
    from .thinking import ThinkingTokens

_TAIL = 64  # tokens of a prompt's end in which thinking may be opened


class Constraints:
    """Makes the token constraints of requests; what they need is built on first use.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        # The template in use and its way of thinking; there is one in all but odd programs.
        self._known: tuple[str, ThinkingTokens | None] | None = None

    def of(
        self, params: SamplingParams, prompt_ids: Sequence[int], template: "ChatTemplate | None"
    ) -> "Callable[[], TokenConstraint] | None":
        """What makes the constraint of one answer; None: it is free.

        template: that of a conversation, which tells how the model thinks. ConstraintError: the
        form of the answer is invalid or can't be enforced.
        """
        structured = params.structured_outputs
        if structured is None and params.thinking_budget is None:
            return None
        begin = None
        if structured is not None:
            begin = self.compiler.compile(StructuredOutputs.of(structured)).start
        tokens = None if template is None else self._thinking(template)
        if tokens is None:
            return begin
        tail = self._tokenizer.decode(list(prompt_ids[-_TAIL:]), skip_special=False).rstrip()
        if tail.endswith(tokens.form.end):  # the prompt has opened and closed it: it is turned off
            return begin

        from ..models.chat.reasoning import is_open
        from .thinking import ThinkingConstraint

        opened, budget = is_open(tokens.form, tail), params.thinking_budget
        # Otherwise the grammar knows nothing of what the model writes before what it says.
        framed = isinstance(structured, WholeAnswer)
        return lambda: ThinkingConstraint(
            tokens, opened=opened, budget=budget, begin=begin, framed=framed
        )

    @property
    def compiler(self) -> "GrammarCompiler":
        """Compiles the model's grammars."""
        with self._lock:
            if self._compiler is None:
                from .grammar import GrammarCompiler

                self._compiler = GrammarCompiler(self._tokenizer)
            return self._compiler

    def _thinking(self, template: "ChatTemplate") -> "ThinkingTokens | None":
        source = getattr(template, "source", None)
        if source is None:
            return None
        with self._lock:
            if self._known is None or self._known[0] != source:
                from ..models.chat.reasoning import find_reasoning_format
                from .thinking import ThinkingTokens

                form = find_reasoning_format(source, self._tokenizer)
                tokens = None if form is None else ThinkingTokens(self._tokenizer, form)
                self._known = source, tokens
            return self._known[1]
