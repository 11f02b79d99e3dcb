"""How models mark their thinking: which tags, and whether the template can switch it."""

import re
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

    known_by, not_by: texts that a template's source has all, or none, of; by default the end.
    begun: what the prompt has written of the answer, which later parts of it begin with as well.
    frames: texts around what is said to the user, which are no part of it.
    says: of these, what a part for the user begins with; "": nothing.
    again: thinking may come again later in the answer.
    switches: the template's variables that turn it on and off. shown: ids of control tokens that
    must be shown in the answer's text, since they are in the tags.
    """

    name: str
    start: str
    end: str
    known_by: tuple[str, ...] = ()
    not_by: tuple[str, ...] = ()
    begun: str = ""
    frames: tuple[str, ...] = ()
    says: str = ""
    again: bool = False
    switches: tuple[str, ...] = ()
    shown: frozenset[int] = field(default=frozenset())

    @property
    def can_switch(self) -> bool:
        """Whether the template has a switch at all."""
        return bool(self.switches)

    @property
    def tags(self) -> tuple[str, ...]:
        """The texts that mark parts of an answer."""
        return (self.start, self.end, *self.frames)

    def template_kwargs(self, on: bool) -> dict[str, Any]:
        """What to pass to the template to turn thinking on or off; {}: it has no switch."""
        return dict.fromkeys(self.switches, on)

    def is_known(self, source: str) -> bool:
        """Whether a template speaks of it."""
        # A template that only cuts old thinking out names just the end.
        return all(text in source for text in self.known_by or (self.end,)) and not any(
            text in source for text in self.not_by
        )


# Of messages in messages: each says by its channel for whom it is.
HARMONY_FRAMES = (
    "<|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
    "<|channel|>final json<|message|>",
    "<|channel|>commentary<|message|>",
    "<|channel|>commentary to=assistant",
    "<|end|>",
)
COHERE_FRAMES = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat(
        "harmony",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        known_by=("<|channel|>", "<|message|>", "<|start|>assistant"),
        begun="<|start|>assistant",
        frames=HARMONY_FRAMES,
        says="<|channel|>final<|message|>",
        again=True,
    ),
    ReasoningFormat(
        "granite-response",
        "<think>",
        "</think>",
        known_by=("<response></response>", "</think>"),
        frames=("<response>", "</response>"),
    ),
    ReasoningFormat(
        "hunyuan",
        "<think>",
        "</think>",
        known_by=("<answer>", "</answer>", "</think>"),
        frames=("<answer>", "</answer>"),
    ),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    ReasoningFormat("thought", "<thought>", "</thought>"),
    ReasoningFormat("kimi", "◁think▷", "◁/think▷"),
    ReasoningFormat(
        "cohere",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        known_by=("<|START_RESPONSE|>", "<|END_THINKING|>"),
        frames=COHERE_FRAMES,
        says="<|START_RESPONSE|>",
    ),
    ReasoningFormat(
        "gemma4",
        "<|channel>thought",
        "<channel|>",
        frames=("<|channel>", "<channel|>"),
        again=True,
    ),
    ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
    ReasoningFormat(
        "apriel",
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        frames=("[END FINAL RESPONSE]",),
    ),
)


def find_reasoning_format(source: str | None, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The way in which a model thinks, from its template's text or else from its special tokens.

    source: the Jinja text; None: no template, so no conversation either. None: it doesn't think.
    """
    if source is None:
        return None
    controls = control_ids(tokenizer)
    special = controls | {text: i for i, text in tokenizer.shown_special_tokens()}
    named = [form for form in REASONING_FORMATS if form.is_known(source)]
    named.sort(key=lambda form: not form.known_by)  # the more particular ones first
    if not named:
        bare = [form for form in REASONING_FORMATS if not form.known_by]
        named = [f for f in bare if f.start in special and f.end in special]
    if not named:
        return None
    form = named[0]
    every = "\0".join(form.tags)
    return replace(
        form,
        switches=tuple(name for name in _SWITCHES if _is_asked_for(name, source)),
        shown=frozenset(i for text, i in controls.items() if text and text in every),
    )


def says_of(source: str) -> str:
    """What a part for the user begins with in the answers that a template is for; "": nothing."""
    return next(
        (form.says for form in REASONING_FORMATS if form.says and form.is_known(source)), ""
    )


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
