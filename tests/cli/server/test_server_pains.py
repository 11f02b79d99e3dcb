"""Failures of other servers that need nothing but a conversation: stops, repeats, turns."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = [pytest.mark.kernels, pytest.mark.model("smollm2")]

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Count from one to twenty in words."}]


def text_of(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"]


def streamed(live: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = live.post(CHAT, {**body, "stream": True})
    assert reply.status_code == 200, reply.text
    blocks = [block.removeprefix("data: ") for block in reply.text.split("\n\n") if block]
    return [json.loads(block) for block in blocks if block.startswith("{")]


def test_p32_a_stop_string_over_several_tokens_never_shows(live: Any) -> None:
    body = {"messages": ASK, "max_tokens": 40, "temperature": 0}
    live.post(CHAT, body)  # what is cached afterwards may change the last bits of logits
    whole = text_of(live.post(CHAT, body).json())
    middle = len(whole) // 2
    stop = whole[middle - 6 : middle + 6]  # no token is that long here
    tokenizer = live.llm.tokenizer
    assert max(map(len, map(tokenizer.token_text, tokenizer.encode(whole)))) < len(stop)
    before = whole[: whole.index(stop)]

    reply = live.post(CHAT, {**body, "stop": [stop]}).json()
    assert (text_of(reply), reply["choices"][0]["finish_reason"]) == (before, "stop")
    shown, reason = "", None
    for chunk in streamed(live, {**body, "stop": stop}):
        [choice] = chunk["choices"]
        shown += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        assert before.startswith(shown)
    assert (shown, reason) == (before, "stop")


def test_p39_a_deterministic_server_gives_the_same_answer_when_busy_and_cached(
    live: Any, serve: Callable[..., Any]
) -> None:
    engine = {"context_length": 512, "kv_tokens": 4096, "deterministic": True}
    steady = serve(models=live.server.settings.models, engine=engine)
    body = {"messages": ASK, "max_tokens": 24, "temperature": 0}
    other = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 24}
    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(steady.post, CHAT, {**other, "seed": i}) for i in range(4)]
        same = [pool.submit(steady.post, CHAT, body) for _ in range(8)]
        replies = [future.result().json() for future in same]
        assert all(future.result().status_code == 200 for future in others)
    again = steady.post(CHAT, body).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert len({text_of(reply) for reply in [*replies, again]}) == 1


@pytest.mark.model("gemma3")
def test_p65_turns_of_a_sliding_window_model_run_only_what_is_new(
    models: Callable[[str], Any], serve: Callable[..., Any]
) -> None:
    engine = {"context_length": 2048, "max_sequences": 1}
    server = serve(models={"gemma3": str(models("gemma3"))}, engine=engine)
    text = "Rivers run to the sea. " * 120  # longer than the window of 512
    known = 0
    for turn in range(3):
        text += f"\nQuestion {turn}: why?\nAnswer:"
        body = {"prompt": text, "max_tokens": 12, "temperature": 0}
        reply = server.post("/v1/completions", body).json()
        usage = reply["usage"]
        # Not cached: the new turn, and the end of the answer before, which is tokenized anew.
        new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        assert new <= usage["prompt_tokens"] - known + (16 if turn else 0)
        known = usage["prompt_tokens"]
        text += reply["choices"][0]["text"]
    assert known > 550
