"""What all dialects share: errors in their form, the OpenAPI document, wrong bodies."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from llamba.cli.server.app import create_app
from llamba.cli.server.errors import ApiError, translate
from llamba.cli.server.settings import ServerSettings
from llamba.errors import (
    ContextLengthError,
    DeviceError,
    DeviceLostError,
    InvalidParameterError,
    LlambaError,
    ModelNotFoundError,
    OverloadedError,
    ResourceError,
)

pytestmark = pytest.mark.kernels
CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


# -- P57: messages and bodies that are something else ---------------------------------------------
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ({}, "messages"),
        (None, "messages"),
        ("hi", "messages"),
        (5, "messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ([None], "messages[0]"),
        (["hi"], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x"}, {"role": 7, "content": "x"}], "messages[1].role"),
    ],
)
def test_p57_wrong_messages_are_400_with_param(tiny_live: Any, messages: Any, param: str) -> None:
    reply = tiny_live.post(CHAT, json={"messages": messages})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param, error
    assert param in error["message"]


def test_p57_missing_messages(tiny_live: Any) -> None:
    error = tiny_live.post(CHAT, json={}).json()["error"]
    assert (error["param"], error["message"]) == ("messages", "messages: is needed")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat", "/v1/responses"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b'{"messages":',
        b"[]",
        b"null",
        b'"hi"',
        b"5",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"max_tokens":' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_p57_bodies_that_are_no_request_are_400(tiny_live: Any, path: str, body: bytes) -> None:
    with tiny_live.client() as client:
        reply = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert "error" in reply.json()


# -- P44: numbers out of all bounds ---------------------------------------------------------------
NUMBERS = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "seed", "presence_penalty")
NUMBERS += ("frequency_penalty", "repeat_penalty", "repeat_last_n", "typical_p", "dry_multiplier")
NUMBERS += ("dry_base", "dry_allowed_length", "xtc_probability", "xtc_threshold", "top_logprobs")
VALUES = ("-1", "-2147483648", "9223372036854775808", "1e308", "NaN", "Infinity", "-Infinity")
VALUES += ('"1"', "true", "[]", "{}", "0.5", "1" + "0" * 400)


@pytest.mark.parametrize("name", NUMBERS)
def test_p44_extreme_numbers_are_400_or_harmless(tiny_live: Any, name: str) -> None:
    with tiny_live.client() as client:
        for value in VALUES:
            body = json.dumps(HI)[:-1] + f', "{name}": {value}}}'
            reply = client.post(
                CHAT, content=body.encode(), headers={"Content-Type": "application/json"}
            )
            assert reply.status_code in (200, 400), (name, value, reply.text)
            if value in ("NaN", "Infinity", "-Infinity", '"1"', "[]", "{}", "true"):
                assert reply.status_code == 400, (name, value)
            if reply.status_code == 400:
                error = reply.json()["error"]
                assert name in error["message"] or error["param"] == name, error
    assert tiny_live.post(CHAT, json=HI).status_code == 200


# -- S1: nothing of a request is a template, a file or a URL --------------------------------------
@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/v1/messages", "/v1/responses"])
def test_s1_templates_of_requests_are_refused(tiny_live: Any, path: str) -> None:
    body = {"input": "x"} if path == "/v1/responses" else HI
    body = {**body, "model": "tiny", "chat_template": "{{ 7*7 }}"}
    reply = tiny_live.post(path, json=body)
    if reply.status_code == 200:  # it may be reported as ignored, where the field is unknown
        assert "chat_template" in reply.headers["x-llamba-ignored"]
    else:
        assert reply.status_code == 400 and "chat_template" in reply.text
    assert "49" not in reply.text


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://127.0.0.1:1/x", "/etc/passwd"])
def test_s1_no_file_or_url_is_reached(tiny_live: Any, url: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [{"type": "text", "text": "x"}, image]
    reply = tiny_live.post(CHAT, json={"messages": [{"role": "user", "content": content}]})
    assert reply.status_code == 400 and "messages[0].content[1]" in reply.text
    for path in (CHAT, "/v1/completions", "/api/generate"):
        body = {**HI, "prompt": "x", "model": url}
        assert tiny_live.post(path, json=body).status_code == 404


# -- errors ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ContextLengthError("x"), 400),
        (InvalidParameterError("x=1: no"), 400),
        (ModelNotFoundError("x"), 404),
        (OverloadedError("x"), 503),
        (ResourceError("x"), 503),
        (DeviceError("x"), 503),
        (DeviceLostError("x"), 500),
        (LlambaError("x"), 500),
        (ApiError(418, "x"), 418),
        (ValueError("secret"), 500),
    ],
)
def test_every_error_has_its_status(error: Exception, status: int) -> None:
    assert translate(error).status == status
    assert "secret" not in translate(error).message


def test_paths_and_methods_that_are_not_there(tiny_live: Any) -> None:
    reply = tiny_live.get("/v1/nonsense")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert tiny_live.get("/v1/messages/nonsense").json()["type"] == "error"
    assert isinstance(tiny_live.get("/api/nonsense").json()["error"], str)
    reply = tiny_live.get(CHAT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["error"]["code"] == "method_not_allowed"
    assert tiny_live.get("/docs").status_code == 404  # its page would load scripts from elsewhere
    assert tiny_live.get("/v1/models/").status_code in (200, 404)  # never a redirect


def call(app: Any, method: str, path: str) -> httpx.Response:
    async def work() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path)

    return asyncio.run(work())


def test_faults_are_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(ServerSettings(models={"x": "/x.gguf"}, access_log=False))

    async def boom() -> None:
        raise ValueError("SECRET")

    for path in ("/v1/boom", "/api/boom", "/v1/messages/boom"):
        app.add_api_route(path, boom)
    with caplog.at_level(logging.ERROR, logger="llamba"):
        replies = [call(app, "GET", p) for p in ("/v1/boom", "/api/boom", "/v1/messages/boom")]
    assert [reply.status_code for reply in replies] == [500] * 3
    assert all("SECRET" not in reply.text for reply in replies)
    assert replies[0].json()["error"]["code"] == "internal"
    assert replies[2].json()["error"]["type"] == "api_error"
    assert caplog.text.count("SECRET") >= 3


def test_a_model_that_does_not_load_fails_each_request_and_not_the_server(serve: Any) -> None:
    with pytest.raises(LlambaError):
        serve(models={"x": "/nowhere/x.gguf"})


# -- OpenAPI --------------------------------------------------------------------------------------
def test_the_document(tiny_live: Any) -> None:
    document = tiny_live.get("/openapi.json").json()
    paths = document["paths"]
    for path in (CHAT, "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/responses"):
        assert path in paths
    for path in ("/v1/messages", "/api/chat", "/api/generate", "/health", "/metrics"):
        assert path in paths
    for path, operations in paths.items():
        for method, operation in operations.items():
            responses = operation["responses"]
            assert "422" not in responses, (method, path)
            assert {"400", "401", "403", "404", "405", "413", "500", "503"} <= set(responses)
    assert "HTTPValidationError" not in json.dumps(document)
    assert set(document["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    assert {"bearer": []} in document["security"]


def test_without_the_page() -> None:
    app = create_app(ServerSettings(models={"x": "/x.gguf"}, web=False, access_log=False))
    assert call(app, "GET", "/").text == "llamba is running"  # as Ollama's clients expect
