"""Bodies that are made to take long, to grow, or to be nested without end."""

import difflib
import json
import warnings
from typing import Any

import pytest

from llamba.cli.server import app as app_module
from llamba.cli.server import fields, invalid
from llamba.cli.server.app import create_app
from llamba.cli.server.settings import ServerSettings

pytestmark = pytest.mark.kernels
HI = [{"role": "user", "content": "hello"}]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def deep(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


def post(server: Any, path: str, body: bytes) -> Any:
    with server.client() as client:
        return client.post(path, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("depth", [100, 220, 330, 440])
@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/api/chat"])
def test_p47_schemas_nested_without_end(tiny_live: Any, path: str, choice: str, depth: int) -> None:
    schema = deep(depth)
    function = {"name": "f", "parameters": schema}
    tools: dict[str, Any] = {
        CHAT: {"type": "function", "function": function},
        MESSAGES: {"name": "f", "input_schema": schema},
        RESPONSES: {"type": "function", **function},
        "/api/chat": {"type": "function", "function": function},
    }
    body: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 1}
    body["tools"] = [tools[path]]
    if path == RESPONSES:
        body = {"input": "hello", "max_output_tokens": 16, "tools": body["tools"]}
    if path == "/api/chat":
        body = {**body, "options": {"num_predict": 1}, "stream": False}
        del body["max_tokens"]
    elif path == MESSAGES:
        body["tool_choice"] = {"type": choice}
    else:
        body["tool_choice"] = choice
    reply = tiny_live.post(path, body)
    assert reply.status_code in (200, 400), reply.text[:300]


@pytest.mark.parametrize("field", ["chat_template_kwargs", "json_schema", "tool_choice"])
@pytest.mark.parametrize("depth", [220, 440])
def test_values_nested_without_end(tiny_live: Any, field: str, depth: int) -> None:
    value = {"x": deep(depth)}
    reply = tiny_live.post(CHAT, {"messages": HI, "max_tokens": 1, field: value})
    assert reply.status_code in (200, 400), reply.text[:300]


@pytest.mark.parametrize(
    ("path", "head", "item"),
    [
        ("/api/chat", '"model": "tiny", "messages"', "1"),
        ("/api/chat", '"model": "tiny", "messages"', "{}"),
        (MESSAGES, '"model": "tiny", "max_tokens": 1, "messages"', "{}"),
        ("/v1/completions", '"prompt": "x", "stop_token_ids"', '"a"'),
        ("/detokenize", '"tokens"', '"a"'),
        (RESPONSES, '"input": "x", "include"', "1"),
    ],
)
def test_of_a_million_wrong_items_one_is_told(
    tiny_live: Any, path: str, head: str, item: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(error: Any) -> Any:
        counts.append(len(error.errors()))
        return invalid.from_validation(error)

    monkeypatch.setattr(app_module, "from_validation", counted)
    body = f"{{{head}: [{','.join([item] * 1_000_000)}]}}"
    reply = post(tiny_live, path, body.encode())
    assert reply.status_code == 400 and counts == [1]  # each error takes its time
    assert "[0]" in reply.text and len(reply.content) < 1000


def test_metadata_of_numbers_is_refused_once(tiny_live: Any) -> None:
    body = {"input": "x", "metadata": {str(i): i for i in range(100_000)}}
    error = tiny_live.post(RESPONSES, body).json()["error"]
    assert error["param"] == "metadata" and "'0' must be a text" in error["message"]


def test_many_and_long_unknown_fields(tiny_live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[tuple[str, str]] = []

    def counted(name: str) -> str:
        worked.append(("shown", name))
        return show(name)

    def compared(name: str, *_: Any, **__: Any) -> list[str]:
        worked.append(("compared", name))  # which takes long
        return []

    show = fields._shown
    monkeypatch.setattr(fields, "_shown", counted)
    monkeypatch.setattr(difflib, "get_close_matches", compared)
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 1}
    reply = tiny_live.post("/v1/completions", body | {f"temperatur{i}": 1 for i in range(50_000)})
    assert reply.status_code == 200
    assert worked == [("shown", f"temperatur{i}") for i in range(20)]
    assert reply.headers["x-llamba-ignored"].count(",") == 20
    message = {**HI[0], "q" * 100_000: 1, "a\r\nx-evil: 1": 1, "plain": 1}
    reply = tiny_live.post(CHAT, {"messages": [message], "max_tokens": 1})
    assert reply.status_code == 200
    assert reply.headers["x-llamba-ignored"] == "?, ?, messages[].plain"


@pytest.mark.parametrize("path", [MESSAGES, "/api/chat"])
def test_unknown_fields_of_messages_are_named(tiny_live: Any, path: str) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": [{**HI[0], "colour": 1}] * 2}
    body |= {"max_tokens": 1} if path == MESSAGES else {"options": {"num_predict": 1}}
    reply = tiny_live.post(path, {**body, "stream": False})
    assert reply.status_code == 200
    assert reply.headers["x-llamba-ignored"] == "messages[].colour"


def test_the_document_has_each_operation_once() -> None:
    app = create_app(ServerSettings(models={"x": "/x.gguf"}, access_log=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = app.openapi()
    ids = [
        operation["operationId"]
        for each in document["paths"].values()
        for operation in each.values()
    ]
    assert len(ids) == len(set(ids))
    assert json.dumps(document)


def test_one_request_id_for_anthropics_clients(tiny_live: Any) -> None:
    body = {"model": "tiny", "messages": HI, "max_tokens": 1}
    for stream in (False, True):
        reply = tiny_live.post(MESSAGES, {**body, "stream": stream})
        assert reply.status_code == 200
        assert reply.headers.get_list("request-id") == [reply.headers["x-request-id"]]
