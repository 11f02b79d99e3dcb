"""Streams of chats and completions: chunk by chunk what the whole answer says."""

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from openai.types.chat import ChatCompletionChunk  # noqa: E402

from .conftest import until  # noqa: E402

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]
HI = [{"role": "user", "content": "Write an emoji and a word."}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def events(live: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events' data; the stream ended as it should."""
    reply = live.post(path, {**body, "stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    blocks = reply.text.split("\n\n")
    assert blocks.pop() == "" and blocks.pop() == "data: [DONE]"
    return [json.loads(b.removeprefix("data: ")) for b in blocks if not b.startswith(":")]


@pytest.fixture
def steady(live: Any, serve: Callable[..., Any]) -> Any:
    """A server whose answers don't depend on what runs beside them (PAINS P39)."""
    engine = {"context_length": 256, "deterministic": True}
    return serve(models=live.server.settings.models, engine=engine)


def chunks(live: Any, **fields: Any) -> list[Any]:
    body = {"messages": HI, "max_tokens": 8, "temperature": 0, **fields}
    return [
        ChatCompletionChunk.model_validate_json(json.dumps(each), strict=True)
        for each in events(live, CHAT, body)
    ]


def whole(live: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = live.post(path, body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_stream_of_chunks(live: Any) -> None:
    chunks(live)  # into the cache, which may change a token
    first, *middle, last = chunks(live)
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    assert all(each.choices[0].delta.content for each in middle)
    assert all(each.choices[0].finish_reason is None for each in (first, *middle))
    assert last.choices[0].finish_reason == "length"
    assert last.choices[0].delta.model_dump(exclude_unset=True) == {}
    assert last.model_extra["timings"]["predicted_n"] == 8
    assert len({(each.id, each.created, each.model) for each in (first, *middle, last)}) == 1
    assert "usage" not in first.model_fields_set
    text = "".join(each.choices[0].delta.content for each in middle)
    body = {"messages": HI, "max_tokens": 8, "temperature": 0}
    assert text == whole(live, CHAT, body)["choices"][0]["message"]["content"]


def test_the_usage_comes_last(live: Any) -> None:
    *others, last = chunks(live, stream_options={"include_usage": True})
    assert all(each.usage is None and "usage" in each.model_fields_set for each in others)
    assert others[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage.completion_tokens == 8
    assert last.model_extra["timings"]["predicted_n"] == 8


def test_p38_a_stream_says_the_same_as_a_whole_answer(steady: Any) -> None:
    check_same_chats(steady)
    check_same_completions(steady)


def check_same_chats(live: Any) -> None:
    body = {"messages": HI, "max_tokens": 8, "temperature": 1.2, "seed": 7, "n": 2}
    body |= {"logprobs": True, "top_logprobs": 1, "cache_prompt": False}
    texts, scores, ends = {}, {}, {}
    for each in chunks(live, **body):
        [choice] = each.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.logprobs:
            scores.setdefault(choice.index, []).extend(choice.logprobs.content)
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    for choice in whole(live, CHAT, body)["choices"]:
        index = choice["index"]
        assert texts[index] == choice["message"]["content"]
        assert ends[index] == choice["finish_reason"]
        tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert [entry.token for entry in scores[index]] == tokens


def test_timings_of_each_token(live: Any) -> None:
    answer = chunks(live, timings_per_token=True, max_tokens=3)
    assert all("timings" in each.model_extra for each in answer[1:])


def test_no_tokens_are_a_stream_too(live: Any) -> None:
    first, last = chunks(live, max_tokens=0)
    assert first.choices[0].delta.role == "assistant"
    assert last.choices[0].finish_reason == "length"


def test_p34_every_event_is_whole_text(live: Any) -> None:
    body = {"prompt": "🌍🌍🌍 日本語 🌍", "max_tokens": 8, "ignore_eos": True}
    for each in events(live, TEXT, body):
        json.dumps(each, ensure_ascii=False).encode()


def check_same_completions(live: Any) -> None:
    prompts = ["Once upon", "The sky is", [10, 11, 12]]
    body: dict[str, Any] = {"prompt": prompts, "max_tokens": 4, "temperature": 0, "seed": 1, "n": 2}
    body |= {"logprobs": 1, "echo": True, "cache_prompt": False}
    answer = whole(live, TEXT, body)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    got: dict[int, dict[str, Any]] = {}
    seen = events(live, TEXT, body | {"stream_options": {"include_usage": True}})
    for each in seen[:-1]:
        [choice] = each["choices"]
        one = got.setdefault(choice["index"], {"text": "", "tokens": [], "text_offset": []})
        one["text"] += choice["text"]
        for name in ("tokens", "text_offset"):
            one[name] += (choice["logprobs"] or {}).get(name, [])
        one["finish_reason"] = choice["finish_reason"]
    for choice in answer["choices"]:
        one = got[choice["index"]]
        assert one["text"] == choice["text"]
        assert one["finish_reason"] == choice["finish_reason"]
        assert one["tokens"] == choice["logprobs"]["tokens"]
        assert one["text_offset"] == choice["logprobs"]["text_offset"]
    assert seen[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]


def test_more_prompts_than_run_at_once(steady: Any) -> None:
    body = {"prompt": [f"{i}, {i + 1}," for i in range(20)], "max_tokens": 1, "temperature": 0}
    answer = whole(steady, TEXT, body)
    texts: dict[int, str] = {}
    for each in events(steady, TEXT, body):
        [choice] = each["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert [texts[i] for i in range(20)] == [choice["text"] for choice in answer["choices"]]
    assert answer["usage"]["completion_tokens"] == 20
    steady.idle()


@pytest.mark.parametrize("stream", [False, True])
def test_p61_nobody_waits_for_several_prompts(live: Any, stream: bool) -> None:
    before = live.idle()
    body = {"prompt": ["a", "b"] * 12, "ignore_eos": True, "stream": stream}
    if stream:
        with live.client() as client, client.stream("POST", TEXT, json=body) as reply:
            next(reply.iter_bytes())
    else:
        client = http.client.HTTPConnection(live.url.removeprefix("http://"), timeout=60)
        client.request("POST", TEXT, json.dumps(body), {"Content-Type": "application/json"})
        until(lambda: live.llm.stats.running)
        client.close()
    assert live.idle().cancellations > before.cancellations


def test_errors_after_the_headers_are_events(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from llamba.cli.server.running import Running
    from llamba.errors import LlambaError

    async def events_that_fail(self: Any) -> Any:
        self.close()
        raise LlambaError("the engine broke")
        yield

    monkeypatch.setattr(Running, "events", events_that_fail)
    [error] = events(live, CHAT, {"messages": HI})
    assert error["error"]["message"] == "the engine broke"
    assert error["error"]["type"] == "server_error"


def test_openai_client(live: Any) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=HI,
            max_tokens=4,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        seen = list(answer)
        assert seen[-1].usage.completion_tokens == 4
        with client.chat.completions.stream(
            model="smollm2", messages=HI, extra_body={"guided_choice": ["fine"]}
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == "fine"
        text = client.completions.create(
            model="smollm2", prompt="a", max_tokens=2, temperature=0, stream=True
        )
        assert [each.choices[0].finish_reason for each in text][-1] == "length"
