"""litellm and langchain-openai over a server with SmolLM2, by each way that they know."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [
    pytest.mark.model("smollm2"),
    pytest.mark.kernels,
    # litellm's own models make pydantic warn.
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

MODEL = "smollm2"
HELLO: Any = [{"role": "user", "content": "Say hello."}]
WEATHER: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
LONG: Any = [{"role": "user", "content": "word " * 3000}]  # the context has 2048 positions
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 16}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
PROVIDERS = ["openai", "anthropic", "ollama_chat"]


def warm(ask: Callable[..., Any], *args: Any, **asked: Any) -> Any:
    """The second answer: what the prefix cache holds may change the last bits (PAINS P39)."""
    ask(*args, **asked)
    return ask(*args, **asked)


# -- litellm --------------------------------------------------------------------------------------
@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package, kept from asking anything of the network."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LITELLM_TELEMETRY", "False")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    package = pytest.importorskip("litellm", reason="the package litellm is not installed")
    package.telemetry = False
    package.suppress_debug_info = True
    yield package


def via(live: Any, provider: str) -> dict[str, Any]:
    """How litellm is told to come here."""
    base = f"{live.url}/v1" if provider == "openai" else live.url
    return {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "any", "num_retries": 0}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_litellm_chat(live: Any, litellm: Any, provider: str) -> None:
    asked = {**via(live, provider), "messages": HELLO, "max_tokens": 8, "temperature": 0}
    whole = warm(litellm.completion, **asked)
    assert whole.choices[0].message.content and whole.usage.completion_tokens <= 8
    chunks = list(litellm.completion(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_litellm_tools(live: Any, litellm: Any, provider: str, choice: Any) -> None:
    asked = {
        **via(live, provider),
        "messages": WEATHER,
        "tools": [TOOL],
        "parallel_tool_calls": False,
        "max_tokens": 60,
    }
    reply = warm(litellm.completion, **asked, tool_choice=choice, temperature=0)
    message = reply.choices[0].message
    assert message.tool_calls and reply.choices[0].finish_reason in ("tool_calls", "length")
    call = message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    streamed = litellm.completion(**asked, tool_choice=choice, temperature=0, stream=True)
    built = litellm.stream_chunk_builder(list(streamed), messages=WEATHER)
    again = built.choices[0].message.tool_calls[0].function
    assert json.loads(again.arguments) == json.loads(call.function.arguments)
    results = [
        {"role": "tool", "tool_call_id": each.id, "name": "get_weather", "content": "21 degrees"}
        for each in message.tool_calls
    ]
    history = [*WEATHER, message.model_dump(), *results]
    last = litellm.completion(**{**asked, "messages": history, "max_tokens": 6})
    assert last.choices[0].message is not None


def test_litellm_tools_of_ollama(live: Any, litellm: Any) -> None:
    """Ollama's API has no tool_choice: whether there is a call is the model's choice."""
    asked = {**via(live, "ollama_chat"), "messages": WEATHER, "tools": [TOOL], "max_tokens": 60}
    message = litellm.completion(**asked).choices[0].message
    assert message.tool_calls or message.content is not None


@pytest.mark.parametrize("provider", ["openai", "ollama_chat"])
def test_litellm_schema(live: Any, litellm: Any, provider: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}
    asked = {**via(live, provider), "messages": WEATHER, "temperature": 0, "max_tokens": 60}
    reply = litellm.completion(**asked, response_format=form)
    assert set(json.loads(reply.choices[0].message.content)) == {"city"}


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_litellm_embeddings(live: Any, litellm: Any, provider: str) -> None:
    reply = litellm.embedding(**via(live, provider), input=["A cat.", "A dog."])
    vectors = [each["embedding"] for each in reply.data]
    assert len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 100


def test_litellm_responses(live: Any, litellm: Any) -> None:
    asked = {**via(live, "openai"), "input": "Say hello.", "max_output_tokens": 8}
    reply = litellm.responses(**asked, temperature=0)
    [message] = reply.output
    assert message.content[0].text
    events = [event.type for event in litellm.responses(**asked, temperature=0, stream=True)]
    assert str(getattr(events[-1], "value", events[-1])) in (
        "response.completed",
        "response.incomplete",
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_litellm_errors(live: Any, litellm: Any, provider: str) -> None:
    asked = {**via(live, provider), "max_tokens": 5}
    with pytest.raises(litellm.NotFoundError, match="nope"):
        litellm.completion(**{**asked, "model": f"{provider}/nope"}, messages=HELLO)
    # Of Ollama's API it tells this error by its text alone.
    named = provider != "ollama_chat"
    too_long = litellm.ContextWindowExceededError if named else litellm.BadRequestError
    with pytest.raises(too_long, match="prompt is too long"):
        litellm.completion(**asked, messages=LONG)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
    with pytest.raises(litellm.BadRequestError, match="text only"):
        litellm.completion(**asked, messages=[{"role": "user", "content": [picture]}])


def test_litellm_async(live: Any, litellm: Any) -> None:
    async def ask() -> tuple[str, Any]:
        asked = {**via(live, "openai"), "messages": HELLO, "max_tokens": 6, "temperature": 0}
        text = ""
        async for chunk in await litellm.acompletion(**asked, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text, await litellm.acompletion(**asked)

    text, reply = asyncio.run(ask())
    assert text and reply.choices[0].message.content


# -- langchain ------------------------------------------------------------------------------------
@pytest.fixture
def chat_model(live: Any) -> Callable[..., Any]:
    """ChatOpenAI with our URL."""
    langchain = pytest.importorskip(
        "langchain_openai", reason="the package langchain-openai is not installed"
    )

    def make(**options: Any) -> Any:
        base = {"model": MODEL, "base_url": f"{live.url}/v1", "api_key": "any", "max_retries": 0}
        return langchain.ChatOpenAI(**{**base, "temperature": 0, "max_tokens": 40, **options})

    return make


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_chat(chat_model: Callable[..., Any], responses: bool) -> None:
    model = chat_model(max_tokens=8, use_responses_api=responses)
    whole = warm(model.invoke, [("system", "Be brief."), ("human", "Say hello.")])
    assert whole.text and whole.usage_metadata["output_tokens"] <= 8
    pieces = list(model.stream([("system", "Be brief."), ("human", "Say hello.")]))
    assert "".join(piece.text for piece in pieces) == whole.text


def test_langchain_async(chat_model: Callable[..., Any]) -> None:
    async def ask() -> list[str]:
        # One loop for both: langchain keeps one client for a URL.
        models = [chat_model(max_tokens=6, use_responses_api=way) for way in (False, True)]
        texts = [(await model.ainvoke("Say hello.")).text for model in models]
        return [*texts, "".join([piece.text async for piece in models[1].astream("Say hello.")])]

    assert all(asyncio.run(ask()))


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_tools(chat_model: Callable[..., Any], responses: bool) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = chat_model(use_responses_api=responses, max_tokens=120)
    for choice in ("required", "add"):
        bound = model.bind_tools([add], tool_choice=choice, parallel_tool_calls=False)
        history: list[Any] = [HumanMessage("What is 2 + 3?")]
        reply = bound.invoke(history)
        [call] = reply.tool_calls
        assert call["name"] == "add" and set(call["args"]) == {"a", "b"}
        # No value is too large for Python; the schema knows no bounds.
        history += [reply, ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])]
    last = model.bind_tools([add], tool_choice="none").invoke(history)
    assert last.text and not last.tool_calls


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_structured_output(chat_model: Callable[..., Any], responses: bool) -> None:
    import pydantic

    class Place(pydantic.BaseModel):
        """A place."""

        city: str = pydantic.Field(max_length=16)

    model = chat_model(use_responses_api=responses)
    for method in ("json_schema", "function_calling"):
        place = model.with_structured_output(Place, method=method).invoke("Rome is a city.")
        assert isinstance(place, Place)


def test_langchain_embeddings(live: Any) -> None:
    langchain = pytest.importorskip(
        "langchain_openai", reason="the package langchain-openai is not installed"
    )
    options = {"model": MODEL, "base_url": f"{live.url}/v1", "api_key": "any", "max_retries": 0}
    # Otherwise it sends token ids of OpenAI's own tokenizer, which it fetches.
    made = langchain.OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    first, second = made.embed_documents(["A cat.", "A dog."])
    assert len(first) == len(second) > 100


def test_langchain_errors(chat_model: Callable[..., Any]) -> None:
    import openai
    from langchain_core import exceptions

    # Older versions have no name of their own for it.
    overflow = getattr(exceptions, "ContextOverflowError", openai.BadRequestError)

    with pytest.raises(openai.NotFoundError):
        chat_model(model="nope").invoke("hi")
    for responses in (False, True):
        with pytest.raises(overflow) as caught:
            chat_model(use_responses_api=responses).invoke("word " * 3000)
        assert caught.value.code == "context_length_exceeded"
