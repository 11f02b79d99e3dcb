"""How models mark their thinking: which tags, and whether the template can switch it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..tokenizer import Tokenizer

# Variables that templates ask for whether to think; all of them mean True for yes.
_SWITCHES = ("enable_thinking", "thinking")
_CODE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
_TEXT = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


@dataclass(frozen=True)
class ReasoningFormat:
    """Thinking stands between two texts at the answer's beginning.

    switches: the template's variables that turn it on and off. shown: ids of control tokens that
    must be shown in the answer's text, since they are the tags.
    """

    name: str
    start: str
    end: str
    switches: tuple[str, ...] = ()
    shown: frozenset[int] = field(default=frozenset())

    @property
    def can_switch(self) -> bool:
        """Whether the template has a switch at all."""
        return bool(self.switches)

    def template_kwargs(self, on: bool) -> dict[str, Any]:
        """What to pass to the template to turn thinking on or off; {}: it has no switch."""
        return dict.fromkeys(self.switches, on)


REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    ReasoningFormat("thought", "<thought>", "</thought>"),
    ReasoningFormat("kimi", "◁think▷", "◁/think▷"),
    ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("gemma4", "<|channel>thought", "<channel|>"),
    ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
)


def find_reasoning_format(source: str | None, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The way in which a model thinks, from its template's text or else from its special tokens.

    source: the Jinja text; None: no template, so no conversation either. None: it doesn't think.
    """
    if source is None:
        return None
    special = control_ids(tokenizer) | {text: i for i, text in tokenizer.shown_special_tokens()}
    # A template that only cuts old thinking out names just the end.
    named = [form for form in REASONING_FORMATS if form.end in source]
    named += [f for f in REASONING_FORMATS if f.start in special and f.end in special]
    if not named:
        return None
    form = named[0]
    switches = tuple(name for name in _SWITCHES if _is_asked_for(name, source))
    return replace(form, switches=switches, shown=shown_ids(tokenizer, (form.start, form.end)))


def _is_asked_for(variable: str, source: str) -> bool:
    """Whether a template's code, not its texts, speaks of a variable."""
    code = " ".join(_CODE.findall(source))
    return re.search(rf"(?<![\w.]){variable}\b", _TEXT.sub(" ", code)) is not None


def is_open(reasoning: ReasoningFormat, prompt_tail: str) -> bool:
    """Whether the prompt itself opens the thinking (PAINS P30): it ends with the start text.

    prompt_tail: the text of the prompt's last tokens, special ones shown. Text of messages can't
    fool this: the template's own opening of the answer comes after all of it.
    """
    return prompt_tail.rstrip().endswith(reasoning.start)


def control_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The control tokens, which answers don't show: text -> id."""
    texts = tokenizer.vocabulary.texts
    return {texts[i]: i for i in tokenizer.vocabulary.controls}


def shown_ids(tokenizer: Tokenizer, texts: Iterable[str]) -> frozenset[int]:
    """Which of these tags are control tokens of this vocabulary."""
    controls = control_ids(tokenizer)
    return frozenset(controls[text] for text in texts if text in controls)
