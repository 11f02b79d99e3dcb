"""Ollama's API: what is wrong with a request is a 400 that says where."""

from typing import Any

import pytest

ollama = pytest.importorskip("ollama")

from llamba.cli.server.errors import ApiError  # noqa: E402
from llamba.cli.server.ollama.conversation import keep_alive_s  # noqa: E402

HELLO = [{"role": "user", "content": "Hi"}]


def refused(live: Any, path: str, **body: Any) -> str:
    body = {"model": live.model, "messages": HELLO, "prompt": "Hi", **body}
    if path == "/api/generate":
        del body["messages"]
    else:
        del body["prompt"]
    reply = live.post(path, {k: v for k, v in body.items() if v is not ...})
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def test_typed_errors(tiny_live: Any) -> None:
    with ollama.Client(host=tiny_live.url) as client:
        for stream in (False, True):
            with pytest.raises(ollama.ResponseError) as caught:
                list(client.chat(model="nothing", messages=HELLO, stream=stream))
            assert caught.value.status_code == 404 and "not found" in caught.value.error
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(model=tiny_live.model, messages=HELLO, options={"temperature": -1})
        assert caught.value.status_code == 400 and "temperature" in caught.value.error


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"model": ...}, "model"),
        ({"model": ""}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"format": 5}, "format"),
        ({"format": "xml"}, "format"),
        ({"think": "hard"}, "think"),
        ({"think": True}, "think"),
        ({"think": "low"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"keep_alive": "5 parsecs"}, "keep_alive"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"options": []}, "options"),
        ({"options": {"temperature": "0"}}, "options.temperature"),
        ({"options": {"top_k": 1.5}}, "options.top_k"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"num_predict": "5"}}, "options.num_predict"),
        ({"options": {"num_ctx": 100_000}}, "100000"),
        ({"options": {"num_ctx": 0}}, "options.num_ctx"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"stop": [""]}}, "options.stop"),
        ({"options": {"seed": 2**70}}, "options.seed"),
    ],
)
def test_wrong_fields(tiny_live: Any, path: str, change: dict[str, Any], where: str) -> None:
    assert where in refused(tiny_live, path, **change)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"suffix": "}"}, "suffix"),
        ({"context": [1, 2]}, "context"),
        ({"images": ["aGk="]}, "images"),
        ({"raw": True, "system": "x"}, "system"),
        ({"width": 512}, "width"),
    ],
)
def test_what_generate_does_not_do(tiny_live: Any, change: dict[str, Any], where: str) -> None:
    assert where in refused(tiny_live, "/api/generate", **change)
    # Empty values, which clients send, ask for nothing.
    empty = {"suffix": "", "template": "", "context": [], "images": [], "system": "", "raw": False}
    body = {"model": tiny_live.model, "prompt": "Hi", "options": {"num_predict": 1}, **empty}
    assert tiny_live.post("/api/generate", body).status_code == 200


def test_p26_pictures_are_refused_by_their_place(tiny_live: Any) -> None:
    messages = [*HELLO, {"role": "user", "content": "see", "images": ["aGk="]}]
    assert "messages[1].images" in refused(tiny_live, "/api/chat", messages=messages)


@pytest.mark.parametrize("messages", [{}, "hi", [None], [{"content": "x"}], [{"role": "king"}]])
def test_p57_messages_of_the_wrong_kind(tiny_live: Any, messages: Any) -> None:
    assert "messages" in refused(tiny_live, "/api/chat", messages=messages)


def test_p57_bodies_that_are_no_json(tiny_live: Any) -> None:
    with tiny_live.client() as http:
        for content in (b"", b"{", b"hello", b"[]", b"\xff\xfe"):
            reply = http.post("/api/chat", content=content)
            assert reply.status_code == 400 and isinstance(reply.json()["error"], str)
        assert http.get("/api/chat").status_code == 405
        assert isinstance(http.get("/api/nothing").json()["error"], str)


def test_p56_empty_turns_and_arguments_of_both_kinds(tiny_live: Any) -> None:
    for arguments in ({"a": 1}, '{"a": 1}'):
        call = {"function": {"name": "f", "arguments": arguments}}
        messages = [
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "1"},
            {"role": "assistant"},
            {"role": "assistant", "content": "", "thinking": "hm"},
            *HELLO,
        ]
        body = {"model": tiny_live.model, "messages": messages, "options": {"num_predict": 1}}
        reply = tiny_live.post("/api/chat", {**body, "stream": False})
        assert reply.status_code == 200, reply.text


def test_p42_a_prompt_longer_than_the_context(tiny_live: Any) -> None:
    longer = "word " * 1000
    assert "256" in refused(tiny_live, "/api/generate", prompt=longer)
    error = refused(tiny_live, "/api/chat", messages=[{"role": "user", "content": longer}])
    assert "256" in error


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        ("", None),
        (0, 0),
        (300, 300),
        (1.5, 1.5),
        (-1, -1),
        ("5m", 300),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("-1m", -1),
        ("-1", -1),
        ("0", 0),
        ("24h", 86400),
        (1e300, -1),
    ],
)
def test_keep_alive(given: Any, seconds: float | None) -> None:
    assert keep_alive_s(given) == seconds


@pytest.mark.parametrize("given", ["m", "5", "5x", "1h 30m", "five", "9" * 1000, "1m" * 1000])
def test_keep_alive_of_the_wrong_form(given: str) -> None:
    if given == "5":
        assert keep_alive_s(given) == 5
        return
    with pytest.raises(ApiError, match="keep_alive"):
        keep_alive_s(given)
