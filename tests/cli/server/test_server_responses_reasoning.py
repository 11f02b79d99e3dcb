"""Thinking in the responses API, by a template that makes SmolLM2 think."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("openai", reason="the client that this API is made for")

import openai

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %}{% endif %}"""
FORM: Any = {
    "type": "json_schema",
    "name": "answer",
    "schema": {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    },
}


def test_reasoning(serve: Callable[..., Any], models: Callable[..., Any]) -> None:
    engine = {"context_length": 2048, "chat_template": TEMPLATE}
    running = serve(models={"thinker": str(models("smollm2"))}, engine=engine)
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        asked: Any = {
            "model": "thinker",
            "input": "Is water wet?",
            "text": {"format": FORM},
            "max_output_tokens": 60,
            "temperature": 0,
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "extra_body": {"thinking_budget": 12},
        }
        client.responses.create(**asked)  # into the cache, which may change a token
        whole = client.responses.create(**asked)
        thought, said = whole.output
        assert thought.type == "reasoning" and thought.content and thought.summary == []
        assert "think>" not in thought.content[0].text and thought.encrypted_content
        assert set(json.loads(whole.output_text)) == {"yes"}  # the form is the answer's alone
        assert whole.usage is not None
        assert 6 <= whole.usage.output_tokens_details.reasoning_tokens <= 20
        assert said.type == "message" and said.content[0].type == "output_text"
        shown = "".join(each.token for each in said.content[0].logprobs or [])
        assert shown == whole.output_text

        pieces = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}
        for event in client.responses.create(**asked, stream=True):
            if event.type in pieces:
                pieces[event.type] += event.delta  # type: ignore[union-attr]
        assert list(pieces.values()) == [thought.content[0].text, whole.output_text]

        off = client.responses.create(
            **{**asked, "extra_body": None}, reasoning={"effort": "none", "summary": "auto"}
        )
        assert [item.type for item in off.output] == ["message"]
        assert off.reasoning is not None and off.reasoning.effort == "none"

        # What comes back counts, whether in `content` or in `encrypted_content` alone.
        closed = {**thought.model_dump(), "content": None}
        counts = [
            client.responses.input_tokens.count(
                model="thinker",
                input=[
                    {"role": "user", "content": "Is it?"},
                    *items,
                    {"role": "user", "content": "?"},
                ],
            ).input_tokens
            for items in ([said], [thought, said], [closed, said])
        ]
        assert counts[0] < counts[1] == counts[2]
