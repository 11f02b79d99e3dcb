"""The clients of the three APIs, unchanged, over a server with SmolLM2: only a URL is set."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]

MODEL = "smollm2"
KEY = "the-key-of-a-test"
HELLO: Any = [{"role": "user", "content": "Say hello."}]
WEATHER: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
LONG: Any = [{"role": "user", "content": "word " * 3000}]  # the context has 2048 positions
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 16}},
    "required": ["city"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = (
    ("get_weather", "The weather of a city.", CITY),
    ("get_time", "The time now.", EMPTY),
)


def warm(ask: Callable[..., Any], **asked: Any) -> Any:
    """The second answer: what the prefix cache holds may change the last bits (PAINS P39)."""
    ask(**asked)
    return ask(**asked)


def tools() -> Any:
    """As OpenAI's chat and Ollama take them."""
    return [
        {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
        for name, about, schema in FUNCTIONS
    ]


def check_arguments(name: str, arguments: Any) -> None:
    """They fit the schema of the tool."""
    assert isinstance(arguments, dict)
    if name == "get_weather":
        assert set(arguments) == {"city"} and len(arguments["city"]) <= 16
    else:
        assert name == "get_time" and arguments == {}


def openai_client(live: Any, kind: str = "OpenAI", **options: Any) -> Any:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    options = {"base_url": f"{live.url}/v1", "api_key": "any", "max_retries": 0, **options}
    return getattr(openai, kind)(**options)


def anthropic_client(live: Any, kind: str = "Anthropic", **options: Any) -> Any:
    anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
    options = {"base_url": live.url, "api_key": "any", "max_retries": 0, **options}
    return getattr(anthropic, kind)(**options)


def ollama_client(live: Any, kind: str = "Client", **options: Any) -> Any:
    ollama = pytest.importorskip("ollama", reason="the package ollama is not installed")
    return getattr(ollama, kind)(host=live.url, **options)


# -- openai ---------------------------------------------------------------------------------------
def test_openai_chat(live: Any) -> None:
    with openai_client(live) as client:
        asked = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "temperature": 0}
        whole = warm(client.chat.completions.create, **asked)
        assert whole.choices[0].message.content and whole.usage.completion_tokens <= 8
        again = list(
            client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
        text = "".join(c.choices[0].delta.content or "" for c in again if c.choices)
        assert text == whole.choices[0].message.content
        assert again[-1].usage.total_tokens == whole.usage.total_tokens
        names = [model.id for model in client.models.list()]
        assert MODEL in names and client.models.retrieve(MODEL).id == MODEL
        old = client.completions.create(
            model=MODEL, prompt="One, two,", max_tokens=4, temperature=0
        )
        assert old.choices[0].text


@pytest.mark.parametrize("name", ["get_weather", "get_time", None])
def test_openai_tools(live: Any, name: str | None) -> None:
    named = {"type": "function", "function": {"name": name}}
    with openai_client(live) as client:
        asked = {
            "model": MODEL,
            "messages": WEATHER,
            "tools": tools(),
            "tool_choice": "required" if name is None else named,
            "parallel_tool_calls": False,
            "max_tokens": 60,
            "temperature": 0,
        }
        reply = warm(client.chat.completions.create, **asked)
        [call] = reply.choices[0].message.tool_calls
        assert reply.choices[0].finish_reason in ("tool_calls", "stop")
        assert name in (None, call.function.name)
        check_arguments(call.function.name, json.loads(call.function.arguments))
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion()
        [again] = final.choices[0].message.tool_calls
        assert again.function.arguments == call.function.arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
        messages = [*WEATHER, reply.choices[0].message, result]
        last = client.chat.completions.create(
            **{**asked, "messages": messages, "tool_choice": "none", "max_tokens": 6}
        )
        assert last.choices[0].message.content


def test_openai_schema_and_embeddings(live: Any) -> None:
    import pydantic

    class Place(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=16)

    with openai_client(live) as client:
        reply = client.chat.completions.parse(
            model=MODEL, messages=WEATHER, response_format=Place, temperature=0
        )
        assert isinstance(reply.choices[0].message.parsed, Place)
        cat, dog = client.embeddings.create(model=MODEL, input=["A cat.", "A dog."]).data
        assert len(cat.embedding) == len(dog.embedding) > 100
        assert abs(sum(x * x for x in cat.embedding) - 1) < 1e-3
        floats = client.embeddings.create(model=MODEL, input="A cat.", encoding_format="float")
        near = zip(floats.data[0].embedding, cat.embedding, strict=True)
        assert all(abs(a - b) < 1e-2 for a, b in near)


def test_openai_errors(live: Any) -> None:
    with openai_client(live) as client:
        import openai

        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=LONG)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=[])
        assert caught.value.param == "messages"
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nope", messages=HELLO)
        assert missing.value.code == "model_not_found"


def test_openai_async(live: Any) -> None:
    async def ask() -> tuple[list[Any], str]:
        async with openai_client(live, "AsyncOpenAI") as client:
            asked = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "temperature": 0}
            ones = [client.chat.completions.create(**asked) for _ in range(3)]
            text = ""
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            return await asyncio.gather(*ones), text

    replies, text = asyncio.run(ask())
    assert text and all(reply.choices[0].message.content for reply in replies)


# -- anthropic ------------------------------------------------------------------------------------
def test_anthropic_messages(live: Any) -> None:
    with anthropic_client(live) as client:
        asked = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "system": "Be brief."}
        counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
        whole = warm(client.messages.create, **asked, extra_body={"temperature": 0})
        assert whole.content[0].type == "text" and whole.usage.output_tokens <= 8
        assert counted.input_tokens > 0
        with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert final.stop_reason == whole.stop_reason


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_time"}])
def test_anthropic_tools(live: Any, choice: dict[str, Any]) -> None:
    with anthropic_client(live) as client:
        asked: Any = {
            "model": MODEL,
            "messages": WEATHER,
            "tools": [
                {"name": name, "description": about, "input_schema": schema}
                for name, about, schema in FUNCTIONS
            ],
            "max_tokens": 60,
            "extra_body": {"temperature": 0},
        }
        once = {**choice, "disable_parallel_tool_use": True}
        reply = client.messages.create(**asked, tool_choice=once)
        [call] = reply.content
        assert reply.stop_reason == "tool_use" and call.type == "tool_use"
        assert choice.get("name") in (None, call.name)
        check_arguments(call.name, call.input)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
        asked["messages"] = [
            *WEATHER,
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": [result]},
        ]
        last = client.messages.create(**{**asked, "max_tokens": 6}, tool_choice={"type": "none"})
        assert last.content[0].type == "text"


def test_anthropic_errors(live: Any) -> None:
    with anthropic_client(live) as client:
        import anthropic

        for messages in (LONG, [], [{"role": "robot", "content": "x"}]):
            with pytest.raises(anthropic.BadRequestError):
                client.messages.create(model=MODEL, messages=messages, max_tokens=5)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="nope", messages=HELLO, max_tokens=5)


def test_anthropic_async(live: Any) -> None:
    async def ask() -> Any:
        async with anthropic_client(live, "AsyncAnthropic") as client:
            async with client.messages.stream(
                model=MODEL, messages=HELLO, max_tokens=6, extra_body={"temperature": 0}
            ) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                return text, await stream.get_final_message()

    text, message = asyncio.run(ask())
    assert text == message.content[0].text


# -- ollama ---------------------------------------------------------------------------------------
def test_ollama_chat(live: Any) -> None:
    client = ollama_client(live)
    options = {"temperature": 0, "num_predict": 8}
    whole = warm(client.chat, model=MODEL, messages=HELLO, options=options)
    assert whole.message.content and whole.done and whole.eval_count <= 8
    parts = list(client.chat(MODEL, messages=HELLO, options=options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts].count(True) == 1 and parts[-1].done_reason
    text = client.generate(MODEL, prompt="Say hello.", options=options)
    assert text.response
    assert MODEL in [(model.model or "").partition(":")[0] for model in client.list().models]
    assert client.show(MODEL).details is not None
    assert client.ps().models


def test_ollama_tools_schema_and_embeddings(live: Any) -> None:
    client = ollama_client(live)
    reply = client.chat(
        MODEL, messages=WEATHER, tools=tools(), options={"num_predict": 40, "temperature": 0}
    )
    for call in reply.message.tool_calls or ():
        check_arguments(call.function.name, dict(call.function.arguments))
    formed = client.chat(MODEL, messages=WEATHER, format=CITY, options={"temperature": 0})
    check_arguments("get_weather", json.loads(formed.message.content or ""))
    vectors = client.embed(MODEL, input=["A cat.", "A dog."]).embeddings
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-3
    assert len(client.embeddings(MODEL, prompt="A cat.").embedding) == len(vectors[0])


def test_ollama_errors(live: Any) -> None:
    client = ollama_client(live)
    import ollama

    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("nope", messages=HELLO)
    assert caught.value.status_code == 404 and "nope" in caught.value.error
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(MODEL, messages=LONG)
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as caught:
        list(client.chat("nope", messages=HELLO, stream=True))
    assert caught.value.status_code == 404


def test_ollama_async(live: Any) -> None:
    async def ask() -> tuple[str, Any]:
        client = ollama_client(live, "AsyncClient")
        text = ""
        options = {"num_predict": 6, "temperature": 0}
        async for part in await client.chat(MODEL, messages=HELLO, stream=True, options=options):
            text += part.message.content or ""
        return text, await client.chat(MODEL, messages=HELLO, options=options)

    text, reply = asyncio.run(ask())
    assert text and reply.message.content


# -- keys -----------------------------------------------------------------------------------------
def test_keys(serve: Callable[..., Any], tiny_gguf: Callable[..., Any]) -> None:
    """Each client sends a key in its own way, and knows the error for a wrong one."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
    ollama = pytest.importorskip("ollama", reason="the package ollama is not installed")
    closed = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))}, api_keys=(KEY,))
    for key, welcome in ((KEY, True), ("wrong", False)):
        with (
            openai_client(closed, api_key=key) as one,
            anthropic_client(closed, api_key=key) as two,
        ):
            three = ollama_client(closed, headers={"Authorization": f"Bearer {key}"})
            if welcome:
                assert one.models.list().data and three.list().models
                assert two.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
                continue
            with pytest.raises(openai.AuthenticationError):
                one.models.list()
            with pytest.raises(openai.AuthenticationError):
                one.responses.create(model="tiny", input="hi")
            with pytest.raises(anthropic.AuthenticationError):
                two.messages.create(model="tiny", messages=HELLO, max_tokens=1)
            with pytest.raises(ollama.ResponseError) as caught:
                three.list()
            assert caught.value.status_code == 401
