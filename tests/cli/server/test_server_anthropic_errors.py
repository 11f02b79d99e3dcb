"""POST /v1/messages: what is wrong with a request is a typed error that says where."""

from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")

HELLO = [{"role": "user", "content": "Hi"}]
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


@pytest.fixture(scope="module")
def client(tiny_live: Any) -> Any:
    with anthropic.Anthropic(base_url=tiny_live.url, api_key="none", max_retries=0) as made:
        yield made


def refused(live: Any, **more: Any) -> dict[str, Any]:
    body = {"model": live.model, "max_tokens": 2, "messages": HELLO, **more}
    body = {name: value for name, value in body.items() if value is not ...}
    reply = live.post("/v1/messages", body)
    assert reply.status_code == 400, reply.text
    document = reply.json()
    assert document["type"] == "error"
    assert document["error"]["type"] == "invalid_request_error"
    return document["error"]


def test_typed_errors(client: Any, tiny_live: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(model="nothing", max_tokens=2, messages=HELLO)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="nothing", messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(
            model=tiny_live.model, max_tokens=2, messages=HELLO, extra_body={"temperature": -1}
        )


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"model": ...}, "model"),
        ({"model": ""}, "model"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 1e308}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"top_k": 2**63}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools[0]"),
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers"),
        ({"container": "c_1"}, "container"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"instructions": "short"}}, "compaction"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
    ],
)
def test_wrong_fields(tiny_live: Any, change: dict[str, Any], where: str) -> None:
    assert where in refused(tiny_live, **change)["message"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ([{"type": "text", "text": "see"}, IMAGE], "messages[0].content[1]"),
        ([{"type": "document", "source": {"type": "text", "data": "x"}}], "messages[0].content[0]"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        ([{}], "messages[0].content[0].type"),
        ([{"type": "tool_result"}], "messages[0].content[0].tool_use_id"),
        (
            [{"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}],
            "messages[0].content[0].content[0]",
        ),
        ([{"type": "tool_use", "id": "x", "name": "f", "input": {}}], "messages[0].content[0]"),
        (["hi"], "messages[0].content"),
        (5, "messages[0].content"),
    ],
)
def test_p26_parts_that_are_not_text(tiny_live: Any, content: Any, where: str) -> None:
    message = refused(tiny_live, messages=[{"role": "user", "content": content}])["message"]
    assert where in message


@pytest.mark.parametrize("messages", [[], {}, None, "hi", ..., [None], [{"content": "x"}], [5]])
def test_p57_messages_of_the_wrong_kind(tiny_live: Any, messages: Any) -> None:
    assert "messages" in refused(tiny_live, messages=messages)["message"]


def test_p57_bodies_that_are_no_json(tiny_live: Any) -> None:
    with tiny_live.client() as http:
        for content in (b"", b"{", b"hello", b"[]", b"\xff\xfe", b'{"model": NaN}'):
            headers = {"content-type": "application/json"}
            reply = http.post("/v1/messages", content=content, headers=headers)
            assert reply.status_code == 400, content
            assert reply.json()["error"]["type"] == "invalid_request_error"
        assert http.get("/v1/messages").status_code == 405


@pytest.mark.parametrize("content", [None, "", ..., []])
def test_p56_an_empty_assistant_turn(tiny_live: Any, content: Any) -> None:
    turn = {"role": "assistant"} if content is ... else {"role": "assistant", "content": content}
    only_thinking = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "hm", "signature": ""}],
    }
    for empty in (turn, only_thinking):
        messages = [*HELLO, empty, {"role": "user", "content": "Go on"}]
        body = {"model": tiny_live.model, "max_tokens": 1, "messages": messages}
        assert tiny_live.post("/v1/messages", body).status_code == 200


def test_p25_neighbours_of_one_role_are_joined(tiny_live: Any) -> None:
    for roles in (["user", "user"], ["assistant", "user"], ["user", "assistant", "assistant"]):
        messages = [{"role": role, "content": "x"} for role in roles]
        body = {"model": tiny_live.model, "max_tokens": 1, "messages": messages}
        reply = tiny_live.post("/v1/messages", body)
        assert reply.status_code == 200, (roles, reply.text)


def test_p42_a_prompt_longer_than_the_context(client: Any, tiny_live: Any) -> None:
    longer = [{"role": "user", "content": "word " * 1000}]
    with pytest.raises(anthropic.BadRequestError, match=r"\d+.*256"):
        client.messages.create(model=tiny_live.model, max_tokens=2, messages=longer)
    # Counting is what tells clients by how much it is too long.
    assert client.messages.count_tokens(model=tiny_live.model, messages=longer).input_tokens > 256


def test_strict_servers_refuse_unknown_fields(serve: Any, tiny_gguf: Any) -> None:
    live = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))}, strict=True)
    message = refused(live, temprature=1)["message"]
    assert "temprature" in message and "temperature" in message
