"""POST /api/chat and /api/generate with the real client: whole and streamed, options, tools."""

import asyncio
import json
from typing import Any

import jsonschema
import pytest

ollama = pytest.importorskip("ollama")

from .conftest import until  # noqa: E402

HELLO = [{"role": "user", "content": "Say hello in one short sentence."}]
GREEDY = {"temperature": 0, "num_predict": 16}
COUNTS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)


@pytest.fixture(scope="module")
def client(live: Any) -> Any:
    with ollama.Client(host=live.url) as made:
        yield made


def lines_of(live: Any, path: str, **body: Any) -> list[dict[str, Any]]:
    """A stream's lines."""
    reply = live.post(path, {"model": live.model, "options": GREEDY, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


def test_chat_whole(client: Any, live: Any) -> None:
    answer = client.chat(model=live.model, messages=HELLO, options=GREEDY)
    assert answer.message.role == "assistant" and answer.message.content
    assert answer.message.thinking is None and answer.message.tool_calls is None
    assert answer.model == live.model and answer.done is True
    assert answer.done_reason in ("stop", "length")
    assert all(isinstance(answer[name], int) for name in COUNTS)
    assert 0 < answer.eval_count <= 16 and answer.total_duration >= answer.eval_duration > 0


def test_chat_stream_is_whole(client: Any, live: Any) -> None:
    for options in (GREEDY, {"temperature": 0.9, "seed": 5, "num_predict": 24}):
        client.chat(model=live.model, messages=HELLO, options=options)  # into the cache, which
        whole = client.chat(model=live.model, messages=HELLO, options=options)  # may change a token
        items = list(client.chat(model=live.model, messages=HELLO, options=options, stream=True))
        assert "".join(item.message.content for item in items) == whole.message.content
        assert [item.done for item in items] == [False] * (len(items) - 1) + [True]
        assert items[-1].done_reason == whole.done_reason
        assert items[-1].eval_count == whole.eval_count


def test_lines(live: Any) -> None:
    """It streams unless told otherwise, and every line is complete."""
    lines = lines_of(live, "/api/chat", messages=HELLO)
    for line in lines:
        assert line["model"] == live.model and line["created_at"].endswith("Z")
        assert line["message"]["role"] == "assistant"
    assert all(set(COUNTS) <= set(line) for line in lines[-1:])
    assert not any("done_reason" in line for line in lines[:-1])
    assert lines[-1]["message"]["content"] == ""
    lines = lines_of(live, "/api/generate", prompt="Hi")
    assert all(isinstance(line["response"], str) for line in lines)
    assert lines[-1]["done"] is True and "message" not in lines[-1]


def test_asyncio(live: Any) -> None:
    async def main() -> tuple[str, str, str]:
        async with ollama.AsyncClient(host=live.url) as client:
            asked = {"model": live.model, "options": GREEDY}
            await asyncio.gather(*(client.chat(messages=HELLO, **asked) for _ in range(3)))
            whole = await client.chat(messages=HELLO, **asked)
            stream = await client.chat(messages=HELLO, stream=True, **asked)
            texts = [item.message.content async for item in stream]
            generated = await client.generate(prompt=HELLO[0]["content"], **asked)
        return whole.message.content, "".join(texts), generated.response

    whole, streamed, generated = asyncio.run(main())
    assert whole == streamed == generated


def test_generate(client: Any, live: Any) -> None:
    asked = {"model": live.model, "options": GREEDY}
    client.generate(
        prompt="Say hello.",
        system="You are a pirate.",
        **asked,
        # A cached prompt may change a token.
    )
    whole = client.generate(prompt="Say hello.", system="You are a pirate.", **asked)
    streamed = client.generate(
        prompt="Say hello.", system="You are a pirate.", stream=True, **asked
    )
    assert "".join(item.response for item in streamed) == whole.response != ""
    raw = client.generate(prompt="The capital of France is", raw=True, **asked)
    assert raw.prompt_eval_count < whole.prompt_eval_count
    client.chat(messages=[{"role": "user", "content": "Hi"}], **asked)
    chat = client.chat(messages=[{"role": "user", "content": "Hi"}], **asked)
    again = client.generate(prompt="Hi", **asked)
    assert (again.response, again.prompt_eval_count) == (
        chat.message.content,
        chat.prompt_eval_count,
    )


def test_options(client: Any, live: Any) -> None:
    def text(**options: Any) -> Any:
        given = {"temperature": 0, "num_predict": 12, **options}
        return client.chat(model=live.model, messages=HELLO, options=given)

    text()  # into the cache, which may change a token
    free = text()
    assert text(num_predict=3).eval_count == 3 and text(num_predict=3).done_reason == "length"
    assert text(num_predict=0).eval_count == 0
    stop = free.message.content[3:6]
    cut = text(stop=[stop], num_predict=-1)
    assert cut.message.content == free.message.content.partition(stop)[0]
    assert cut.done_reason == "stop"
    assert text(num_predict=-2, stop=["e"]).done_reason == "stop"
    assert text(num_ctx=512).message.content == free.message.content
    hot = {"temperature": 1.5, "seed": 1, "min_p": 0.0, "typical_p": 1.0, "top_k": 0, "top_p": 1}
    assert text(**hot).message.content == text(**hot).message.content
    assert text(**hot).message.content != text(**{**hot, "seed": 2}).message.content
    penalties = {"repeat_penalty": 1.5, "repeat_last_n": -1, "presence_penalty": 1.0}
    assert text(**penalties, frequency_penalty=0.5).eval_count > 0
    machine = ollama.Options(num_thread=4, num_gpu=0, num_batch=512, use_mmap=True, num_keep=4)
    assert client.chat(model=live.model, messages=HELLO, options={**dict(machine), **GREEDY})


def test_machine_options_are_named(live: Any) -> None:
    options = {**GREEDY, "num_thread": 4, "num_gpu": 1, "mirostat": 0, "tfs_z": 1.0, "what": 2}
    body = {"model": live.model, "messages": HELLO, "options": options, "surprise": 1}
    reply = live.post("/api/chat", {**body, "stream": False})
    assert reply.status_code == 200
    assert set(reply.headers["x-llamba-ignored"].split(", ")) == {
        "surprise",
        "options.what",
        "options.num_thread",
        "options.num_gpu",
    }


def test_formats(client: Any, live: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "legs": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    asked = {"model": live.model, "options": {"temperature": 0, "num_predict": 100}}
    describe = [{"role": "user", "content": "Describe a dog as JSON."}]
    answer = client.chat(messages=describe, format=schema, **asked)
    jsonschema.validate(json.loads(answer.message.content), schema)
    answer = client.generate(prompt="Describe a cat as JSON.", format=schema, **asked)
    jsonschema.validate(json.loads(answer.response), schema)
    answer = client.generate(prompt="A cat: ", format=schema, raw=True, **asked)
    jsonschema.validate(json.loads(answer.response), schema)
    answer = client.chat(messages=describe, format="json", **asked)
    assert answer.message.content.startswith("{")
    if answer.done_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)
    for wrong in ("yaml", {"type": "nonsense"}):
        with pytest.raises(ollama.ResponseError):
            live_format(live, wrong)


def live_format(live: Any, form: Any) -> None:
    reply = live.post("/api/chat", {"model": live.model, "messages": HELLO, "format": form})
    if reply.status_code != 200:
        raise ollama.ResponseError(reply.text, reply.status_code)


def test_logprobs(client: Any, live: Any) -> None:
    asked = {"model": live.model, "options": GREEDY, "logprobs": True, "top_logprobs": 3}
    client.chat(messages=HELLO, **asked)  # into the cache, which may change a token
    whole = client.chat(messages=HELLO, **asked)
    assert len(whole.logprobs) == whole.eval_count
    for entry in whole.logprobs:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
    items = client.chat(messages=HELLO, stream=True, **asked)
    streamed = [position for item in items for position in item.logprobs or ()]
    assert [p.token for p in streamed] == [p.token for p in whole.logprobs]
    answer = client.generate(prompt="Hi", model=live.model, options=GREEDY, logprobs=True)
    assert answer.logprobs and answer.logprobs[0].top_logprobs is None


def get_weather(city: str, days: int | str) -> str:
    """The weather of a city.

    Args:
      city: its name
      days: how many
    """
    return f"{city}: sunny for {days} days"


def test_tools(client: Any, live: Any) -> None:
    """The client's own tools, made from a function (whose types it joins to one text)."""
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = {"model": live.model, "options": {"temperature": 0, "num_predict": 64}}
    client.chat(
        messages=question,
        tools=[get_weather],
        **asked,
        # A cached prompt may change a token.
    )
    answer = client.chat(messages=question, tools=[get_weather], **asked)
    items = list(client.chat(messages=question, tools=[get_weather], stream=True, **asked))
    calls = [call for item in items for call in item.message.tool_calls or ()]
    whole = answer.message.tool_calls or []
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        (c.function.name, c.function.arguments) for c in whole
    ]
    assert "".join(item.message.content for item in items) == answer.message.content
    for call in calls:
        assert call.function.name == "get_weather" and set(call.function.arguments) >= {"city"}
    messages = [
        *question,
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}],
        },
        {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
    ]
    assert client.chat(messages=messages, tools=[get_weather], **asked).done


def test_loading_and_unloading(serve: Any, tiny_gguf: Any) -> None:
    live = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))})
    with ollama.Client(host=live.url) as client:
        loaded = client.chat(model="tiny", messages=[], keep_alive="10m")
        assert loaded.done_reason == "load" and loaded.message.content == ""
        assert [m.model for m in client.ps().models] == ["tiny:latest"]
        assert client.generate(model="tiny", prompt="", keep_alive=-1).done_reason == "load"
        assert client.ps().models[0].expires_at.year == 2300
        unloaded = client.generate(model="tiny", prompt="", keep_alive=0)
        assert unloaded.done_reason == "unload" and unloaded.response == ""
        until(lambda: client.ps().models == [])
        assert client.generate(model="tiny", prompt="", keep_alive=0).done_reason == "unload"
        assert client.ps().models == []
        # The next request loads it again.
        assert client.chat(model="tiny", messages=HELLO, options={"num_predict": 1}).done


def test_curl_says_that_json_is_a_form(live: Any) -> None:
    body = json.dumps({"model": live.model, "prompt": "Hi", "stream": False, "options": GREEDY})
    with live.client() as http:
        for kind in ("application/x-www-form-urlencoded", "text/plain", None):
            headers = {} if kind is None else {"content-type": kind}
            reply = http.post("/api/generate", content=body.encode(), headers=headers)
            assert reply.status_code == 200 and reply.json()["response"]
        headers = {"origin": "https://evil.example", "content-type": "text/plain"}
        reply = http.post("/api/generate", content=body.encode(), headers=headers)
        assert reply.status_code == 403
