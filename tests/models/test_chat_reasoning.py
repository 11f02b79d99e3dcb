"""Reasoning formats: found in templates and vocabularies, switched, opened by prompts."""

from typing import Any

import numpy as np
import pytest

from llamba.models.chat import ChatTemplate
from llamba.models.chat.reasoning import REASONING_FORMATS, find_reasoning_format, is_open
from llamba.models.tokenizer import Tokenizer
from llamba.models.tokenizer.bpe import CHAR_OF_BYTE

CONTROL, USER_DEFINED = 3, 4
# What the templates of these models say about thinking.
QWEN3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}"
    "{% endif %}{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
R1 = (
    "{% for m in messages %}{% set content = m.content %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)
SMOLLM3 = (
    "{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}"
    "{{ messages[0].content }}"
    "{% if not enable_thinking %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}"
)
GRANITE = (
    "{% if thinking %}{{ 'You are a helpful thinking AI. Write your thoughts between "
    "<think></think>.' }}{% endif %}{{ messages[0].content }}"
)
MAGISTRAL = "{{ '[SYSTEM_PROMPT]First draft your thinking in [THINK]...[/THINK][/SYSTEM_PROMPT]' }}"


def tokenizer(**special: int) -> Tokenizer:
    class File:
        metadata: dict[str, Any] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*CHAR_OF_BYTE.values(), *special],
            "tokenizer.ggml.token_type": np.array([1] * 256 + [*special.values()], np.int32),
            "tokenizer.ggml.merges": ["a b"],
        }

    return Tokenizer.from_gguf(File())


PLAIN = tokenizer()


@pytest.mark.parametrize(
    ("source", "name", "switches"),
    [
        (QWEN3, "think", ("enable_thinking",)),
        (R1, "think", ()),
        (SMOLLM3, "think", ("enable_thinking",)),
        (GRANITE, "think", ("thinking",)),
        (MAGISTRAL, "mistral", ()),
        ("{{ message.thinking }}{{ 'thinking </think>' }}", "think", ()),
        ("{{ messages[0].content }}", None, None),
        ("{{ 'I was thinking' }}", None, None),
        (None, None, None),
    ],
)
def test_found_in_the_template(
    source: str | None, name: str | None, switches: tuple[str, ...] | None
) -> None:
    form = find_reasoning_format(source, PLAIN)
    if name is None or form is None:
        assert form is None and name is None
        return
    assert (form.name, form.switches, form.can_switch) == (name, switches, bool(switches))
    assert form.template_kwargs(False) == {switch: False for switch in form.switches}
    assert form.shown == frozenset()


def test_found_in_the_vocabulary() -> None:
    """A template that says nothing about it, or one given by the user, doesn't change a model."""
    chatml = "{{ messages[0].content }}"
    think = tokenizer(**{"<think>": USER_DEFINED, "</think>": USER_DEFINED})
    form = find_reasoning_format(chatml, think)
    assert form is not None and (form.name, form.shown) == ("think", frozenset())
    magistral = tokenizer(**{"[THINK]": CONTROL, "[/THINK]": CONTROL})
    form = find_reasoning_format(chatml, magistral)
    assert form is not None and (form.name, form.shown) == ("mistral", {256, 257})
    assert find_reasoning_format(chatml, tokenizer(**{"<think>": CONTROL})) is None


def test_p30_opened_by_the_prompt() -> None:
    user = [{"role": "user", "content": "What does <think> do? <think>"}]
    for source, kwargs, opened in (
        (QWEN3, {}, False),
        (QWEN3, {"enable_thinking": False}, False),
        (R1, {}, True),
        (SMOLLM3, {"enable_thinking": False}, False),
    ):
        form = find_reasoning_format(source, PLAIN)
        assert form is not None
        prompt = ChatTemplate(source, PLAIN).render(user, **kwargs)  # type: ignore[arg-type]
        assert is_open(form, prompt[-32:]) == opened
    assert not is_open(REASONING_FORMATS[0], "")


def test_earlier_thinking_is_passed_to_the_template() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "4", "reasoning_content": "plan"},
        {"role": "user", "content": "b"},
    ]
    prompt = ChatTemplate(QWEN3, PLAIN).render(messages)
    assert "<think>\nplan\n</think>\n\n4<|im_end|>" in prompt


def test_tags_that_are_control_tokens_can_be_shown() -> None:
    vocabulary = tokenizer(**{"[THINK]": CONTROL, "[/THINK]": CONTROL, "<|x|>": CONTROL})
    form = find_reasoning_format(MAGISTRAL, vocabulary)
    assert form is not None
    ids = [256, ord("a"), 257, 258, ord("b")]
    stream = vocabulary.stream(show=form.shown)
    assert "".join(map(stream.push, ids)) == "[THINK]a[/THINK]b"
    stream = vocabulary.stream()
    assert "".join(map(stream.push, ids)) == "ab"
    stream = vocabulary.stream(skip_special=False)
    assert "".join(map(stream.push, ids)) == "[THINK]a[/THINK]<|x|>b"
