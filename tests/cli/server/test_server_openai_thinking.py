"""Thinking over a real server: apart from the content, switched, within its budget (PAINS P30)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("openai")

from openai.types.chat import ChatCompletion  # noqa: E402

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]
PATH = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0, "max_tokens": 24}
# SmolLM2 does not think: this template opens the thinking for it, and the budget ends it.
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n<think>\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '\\n</think>\\n\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(live: Any) -> Any:
    """The settings of a server whose model thinks."""
    engine = {"context_length": 512, "chat_template": TEMPLATE}
    return {"models": live.server.settings.models, "engine": engine}


def ask(live: Any, **fields: Any) -> Any:
    reply = live.post(PATH, {**BODY, **fields})
    assert reply.status_code == 200, reply.text
    return ChatCompletion.model_validate_json(reply.content, strict=True)


def test_p30_thinking_is_apart(thinker: Any, serve: Callable[..., Any]) -> None:
    live = serve(**thinker)
    for fields in ({"thinking_budget": 5}, {"reasoning": {"max_tokens": 5}}):
        answer = ask(live, **fields, ignore_eos=True)
        message = answer.choices[0].message
        assert message.reasoning_content and message.content
        assert "think>" not in message.content + message.reasoning_content
        assert 3 <= answer.usage.completion_tokens_details.reasoning_tokens <= 8

    texts = {"reasoning_content": "", "content": ""}
    reply = live.post(PATH, {**BODY, "thinking_budget": 5, "ignore_eos": True, "stream": True})
    for block in reply.text.split("\n\n")[:-2]:
        [choice] = json.loads(block.removeprefix("data: "))["choices"]
        for name in texts:
            texts[name] += choice["delta"].get(name) or ""
    assert texts["content"] == message.content
    assert texts["reasoning_content"] == message.reasoning_content

    form = {"thinking_budget": 5, "guided_choice": ["yes", "no"]}
    message = ask(live, **form).choices[0].message
    assert message.reasoning_content and message.content in ("yes", "no")

    for off in ({"enable_thinking": False}, {"reasoning_effort": "none"}, {"thinking_budget": 0}):
        answer = ask(live, **off, max_tokens=4)
        message = answer.choices[0].message
        assert message.content and "reasoning_content" not in (message.model_extra or {})
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0

    whole = ask(live, thinking_budget=5, reasoning_format="none").choices[0].message
    assert "</think>" in whole.content
