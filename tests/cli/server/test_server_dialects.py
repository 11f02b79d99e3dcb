"""What holds in all dialects: half a call, the names of fields, of models, and their lists."""

import json
from collections.abc import Callable
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")
pytest.importorskip("openai")

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "What is the weather in Rome?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "parameters": CITY}
# What is asked of each path, but for tools.
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    "/v1/completions": {"prompt": "Rome"},
    RESPONSES: {"input": "What is the weather in Rome?"},
    MESSAGES: {"model": "smollm2", "max_tokens": 4, "messages": HELLO},
    "/api/chat": {"model": "smollm2", "messages": HELLO, "stream": False},
    "/api/generate": {"model": "smollm2", "prompt": "Rome", "stream": False},
}
TOOLS: dict[str, dict[str, Any]] = {
    CHAT: {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    RESPONSES: {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
    MESSAGES: {
        "tools": [{"name": "get_weather", "input_schema": CITY}],
        "tool_choice": {"type": "any"},
    },
}


def ask(live: Any, path: str, **fields: Any) -> Any:
    body = json.dumps({**BODIES[path], "temperature": 0, **fields})  # which escapes surrogates
    with live.client() as client:
        return client.post(path, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("path", list(TOOLS))
def test_half_a_call_is_no_content(live: Any, path: str) -> None:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    # One token is half a tag, twelve are half a name.
    for fields in ({limit: 1}, {limit: 4}, {limit: 12}, {limit: 200, "timeout": 1e-3}):
        whole = ask(live, path, **TOOLS[path], **fields)
        assert whole.status_code == 200, whole.text
        streamed = ask(live, path, **TOOLS[path], **fields, stream=True)
        for reply in (whole, streamed):
            answer = reply.text.partition('"tools"')[0] if path == RESPONSES else reply.text
            assert "tool_c" not in answer.replace("tool_calls", "").replace("tool_choice", "")
            assert "<tool" not in reply.text and "get_" not in answer
    if path == CHAT:
        choice = ask(live, path, **TOOLS[path], max_tokens=12).json()["choices"][0]
        assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
        assert "tool_calls" not in choice["message"]


def test_a_call_whose_arguments_began_stays_one(live: Any) -> None:
    for count in range(13, 40):
        choice = ask(live, CHAT, **TOOLS[CHAT], max_tokens=count).json()["choices"][0]
        assert not choice["message"]["content"]
        if calls := choice["message"].get("tool_calls"):
            assert choice["finish_reason"] == "length"
            assert calls[0]["function"]["arguments"].startswith("{")
            return
    pytest.fail("no call began")


NOT = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
FALSE: dict[str, Any] = {"$ref": "https://example.org/schema"}


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


@pytest.mark.parametrize("schema", [NOT, FALSE], ids=["not", "ref"])
@pytest.mark.parametrize(
    ("path", "field", "make"),
    [
        (CHAT, "response_format", lambda s: {"type": "json_schema", "json_schema": {"schema": s}}),
        (CHAT, "json_schema", lambda s: s),
        (CHAT, "guided_json", lambda s: s),
        (CHAT, "guided_json", json.dumps),
        (CHAT, "structured_outputs", lambda s: {"json": s}),
        ("/v1/completions", "response_format", lambda s: {"type": "json_object", "schema": s}),
        (RESPONSES, "text.format", lambda s: {**_format(s), "name": "x"}),
        (RESPONSES, "json_schema", lambda s: s),
        (MESSAGES, "output_config.format", _format),
        (MESSAGES, "output_format", _format),
        ("/api/chat", "format", lambda s: s),
        ("/api/generate", "format", lambda s: s),
        ("/api/chat", "options.json_schema", lambda s: s),
    ],
)
def test_a_schema_s_error_names_the_request_s_field(
    live: Any, path: str, field: str, make: Callable[[Any], Any], schema: Any
) -> None:
    check_error(live, path, field, make(schema))


def check_error(live: Any, path: str, field: str, value: Any, **more: Any) -> None:
    """A 400 that begins with the field, in the message and the param."""
    outer, _, inner = field.partition(".")
    reply = ask(live, path, **{outer: {inner: value} if inner else value}, **more)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith((f"{field}: ", f"{field}.", f"{field}=")), message
    if isinstance(error, dict) and "param" in error:
        assert error["param"].startswith(field)


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "guided_regex", "("),
        (CHAT, "guided_regex", "\ud800"),
        (CHAT, "guided_choice", []),
        (CHAT, "grammar", "root ::= x"),
        (CHAT, "guided_grammar", "start: ("),
        (CHAT, "structured_outputs", {"regex": "("}),
        (CHAT, "structured_outputs", {}),
        (CHAT, "structured_outputs", {"nothing": 1}),
        (CHAT, "guided_json", "{"),
        ("/v1/completions", "guided_regex", "("),
        (RESPONSES, "guided_regex", "("),
        (RESPONSES, "text.format", {"type": "json_schema", "name": "x", "schema": {"a": "\ud800"}}),
        (MESSAGES, "grammar", "root ::= x"),
        ("/api/chat", "options.grammar", "root ::= x"),
        ("/api/generate", "options.guided_regex", "("),
    ],
)
def test_a_form_s_error_names_the_request_s_field(
    live: Any, path: str, field: str, value: Any
) -> None:
    check_error(live, path, field, value)


def test_a_form_s_error_beside_tools(live: Any) -> None:
    tools = TOOLS[CHAT] | {"tool_choice": "auto"}
    form = {"type": "json_schema", "json_schema": {"schema": NOT}}
    check_error(live, CHAT, "response_format", form, **tools)


@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        (CHAT, {"reasoning": {"enabled": True}}, "reasoning.enabled"),
        (
            CHAT,
            {"enable_thinking": True, "chat_template_kwargs": {"thinking": True}},
            "enable_thinking, chat_template_kwargs.thinking",
        ),
        (CHAT, {"reasoning_effort": "none"}, None),
        (CHAT, {"enable_thinking": False}, None),
        (RESPONSES, {"reasoning": {"effort": "medium"}}, "reasoning.effort"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        (MESSAGES, {"thinking": {"type": "disabled"}}, None),
    ],
)
def test_thinking_that_a_model_can_t_is_told(
    live: Any, path: str, fields: dict[str, Any], names: str | None
) -> None:
    for stream in (False, True):
        reply = ask(live, path, max_tokens=1, stream=stream, **fields)
        assert reply.status_code == 200, reply.text
        assert reply.headers.get("x-llamba-ignored") == names


@pytest.mark.parametrize("path", [*BODIES, "/v1/embeddings", "/api/embed"])
def test_answers_echo_the_name_that_was_asked_for(live: Any, path: str) -> None:
    body = BODIES.get(path, {"input": "x"})
    short = {"options": {"num_predict": 2}} if path.startswith("/api") else {"max_tokens": 2}
    for asked in ("gpt-4o", "smollm2", None):
        if asked is None and (path == MESSAGES or path.startswith("/api")):
            continue
        given = {**body, **(short if path in BODIES else {}), "model": asked}
        reply = live.post(path, given)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == (asked or "smollm2")
        if path in BODIES and asked:
            text = live.post(path, {**given, "stream": True}).text
            found = set(part.split('"')[1] for part in text.split('"model":')[1:])
            assert found == {asked}


@pytest.mark.parametrize("path", [*BODIES, "/v1/embeddings", "/tokenize"])
def test_an_empty_name_is_no_model(live: Any, path: str) -> None:
    body = BODIES.get(path, {"input": "x", "content": "x"})
    reply = live.post(path, {**body, "model": ""})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error if isinstance(error, str) else error["message"]).startswith("model: ")


def test_models_in_anthropic_s_form(live: Any) -> None:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        page = client.models.list()
        assert [model.id for model in page.data] == ["smollm2", "gpt-4o"]
        assert [model.id for model in client.models.list()] == ["smollm2", "gpt-4o"]
        assert (page.has_more, page.first_id, page.last_id) == (False, "smollm2", "gpt-4o")
        model = client.models.retrieve("gpt-4o")
        assert (model.type, model.id, model.display_name) == ("model", "gpt-4o", "gpt-4o")
        assert model.created_at.tzinfo is not None and model.created_at.year > 2000
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.retrieve("nothing")
        assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert live.get("/v1/models").json()["object"] == "list"


def test_a_wrong_role_is_a_wrong_value(live: Any) -> None:
    for role, code in (("robot", "invalid_value"), (1, "invalid_type"), (None, "invalid_type")):
        error = ask(live, CHAT, messages=[{"role": role, "content": "x"}]).json()["error"]
        assert (error["param"], error["code"]) == ("messages[0].role", code)
