"""HTTP as it may arrive on a connection: trailers, pipelines, HTTP/1.0, absolute targets."""

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import until

pytestmark = pytest.mark.kernels
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def exchange(url: str, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes."""
    with connect(url) as client:
        client.sendall(data)
        return rest(client)


def rest(client: socket.socket) -> bytes:
    """All until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):  # it closed while more was on its way
        while piece := client.recv(65536):
            found += piece
    return found


def reply_of(client: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of one reply that tells its length."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = client.recv(65536)
        assert piece, found
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(65536)
    assert len(body) == length
    return head, body


def post(path: str, value: Any, version: str = "1.1") -> bytes:
    body = json.dumps(value).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunked(value: Any, trailers: bytes) -> bytes:
    """A request up to its trailers' end, or without it."""
    body = json.dumps(value).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n%b" % (len(body), body, trailers)


# -- trailers -------------------------------------------------------------------------------------
def test_trailers_are_no_headers(serve: Callable[..., Any], tiny_gguf: Callable[..., Path]) -> None:
    locked = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))}, api_keys=("secret",))
    with connect(locked.url) as client:
        client.sendall(chunked({"prompt": "x", "max_tokens": 1}, b"X-Api-Key: secret\r\n\r\n"))
        assert reply_of(client)[0].startswith(b"HTTP/1.1 401")
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\nX-Api-Key: secret\r\n\r\n"))
        assert reply_of(client)[0].startswith(b"HTTP/1.1 200")


def test_trailers_are_overread(tiny_live: Any) -> None:
    with connect(tiny_live.url) as client:
        body = {"prompt": "x", "max_tokens": 1}
        for _ in range(2):
            client.sendall(chunked(body, b"Host: evil.example\r\nX-Sum: 1\r\n\r\n"))
            assert reply_of(client)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("piece", [b"X-A: " + b"a" * 4000 + b"\r\n", b"a" * 4000])
def test_endless_trailers_are_cut(tiny_live: Any, piece: bytes) -> None:
    with connect(tiny_live.url) as client:
        client.sendall(chunked({"prompt": "x", "max_tokens": 1}, b"X-B: b"))
        try:
            for _ in range(200):
                if select.select([client], [], [], 0.02)[0]:
                    break
                client.sendall(piece)
            found = client.recv(65536)
        except (ConnectionResetError, BrokenPipeError):  # it closed while more was on its way
            return
        assert not found or found.startswith(b"HTTP/1.1 400")


def test_a_body_of_many_large_chunks_has_no_trailers(tiny_live: Any) -> None:
    with connect(tiny_live.url) as client:
        client.sendall(chunked({}, b"").removesuffix(b"2\r\n{}\r\n0\r\n"))
        for _ in range(3):  # each in pieces, larger than trailers may be
            client.sendall(b"%x\r\n" % (100 << 10))
            for _ in range(10):
                client.sendall(b" " * (10 << 10))
            client.sendall(b"\r\n")
        value = b'{"prompt": "x", "max_tokens": 1}'
        client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(value), value))
        assert reply_of(client)[0].startswith(b"HTTP/1.1 200")


# -- pipelines ------------------------------------------------------------------------------------
@pytest.mark.model("smollm2")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behind", [GET, GET * 2000, GET[:9], b"\x00nonsense"])
def test_who_hangs_up_behind_a_second_request_is_noticed(
    live: Any, stream: bool, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, engine, go = live.idle(), live.llm.engine, threading.Event()
    # The answer does not come to its end meanwhile: the engine waits after its first step.
    monkeypatch.setattr(engine, "_listeners", [lambda _: go.wait(100)])
    body = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    try:
        with connect(live.url) as client:
            client.sendall(post("/v1/completions", body))
            until(lambda: live.llm.stats.running)
            client.sendall(behind)
            if stream:
                assert client.recv(65536).startswith(b"HTTP/1.1 200")
            else:  # it is read, and nothing comes back
                assert not select.select([client], [], [], 0.3)[0]
            assert live.llm.stats.running
        until(lambda: engine.core._cancelled)
    finally:
        go.set()
    assert live.idle().cancellations == before.cancellations + 1


def test_what_follows_too_early_is_not_answered(tiny_live: Any) -> None:
    body = {"prompt": "x", "max_tokens": 3}
    for first in (GET, post("/v1/completions", body)):
        for behind in (GET, GET * 2000, GET[:9], b"\x00nonsense"):
            with connect(tiny_live.url) as client:
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    client.sendall(first + behind)  # it may answer and close before it has all
                head, body_ = reply_of(client)
                assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head.lower()
                assert json.loads(body_) and rest(client) == b""
    stream = exchange(tiny_live.url, post("/v1/completions", {**body, "stream": True}) + GET)
    assert stream.count(b"HTTP/1.1 ") == 1 and stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_one_after_the_other_on_a_connection(tiny_live: Any) -> None:
    with connect(tiny_live.url) as client:
        for data in (GET, post("/v1/completions", {"prompt": "x", "max_tokens": 1}), GET):
            client.sendall(data + b"\r\n")  # the blank line of old clients is no request
            head, _ = reply_of(client)
            assert head.startswith(b"HTTP/1.1 200") and b"connection: close" not in head.lower()


# -- HTTP/1.0 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_gets_no_chunks(tiny_live: Any, keep: bytes) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4, "stream": True, "ignore_eos": True}
    body["options"] = {"num_predict": 4, "ignore_eos": True}  # of /api/generate
    for path in ("/v1/completions", "/api/generate"):
        request = post(path, body, "1.0").replace(b"\r\n", b"\r\n" + keep, 1)
        head, _, found = exchange(tiny_live.url, request).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head.lower()
        assert b"transfer-encoding" not in head.lower() and b"content-length" not in head.lower()
        if path == "/api/generate":
            lines = [json.loads(line) for line in found.splitlines()]
            assert len(lines) > 1 and lines[-1]["done"]
        else:
            events = found.split(b"\n\n")
            assert events[-2:] == [b"data: [DONE]", b""]
            assert all(json.loads(each.removeprefix(b"data: ")) for each in events[:-2])


def test_http_1_0_gets_whole_replies(tiny_live: Any) -> None:
    old = GET.replace(b"1.1", b"1.0")
    head, _, body = exchange(tiny_live.url, old).partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head.lower() + b"\r\n" and json.loads(body)
    nothing = exchange(tiny_live.url, old.replace(b"GET /v1/models", b"HEAD /"))
    assert nothing.startswith(b"HTTP/1.1 200") and nothing.endswith(b"\r\n\r\n")


# -- targets --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/v1/models", "localhost", 403),
        ("http://evil.example:80/v1/models?x=http://localhost/", "localhost", 403),
        ("HTTP://localhost.evil.example/v1/models", "localhost", 403),
        ("http://localhost@evil.example/v1/models", "localhost", 400),
        ("http://localhost/v1/models", "localhost", 200),
        ("http://127.0.0.1:8080/v1/models", "127.0.0.1:8080", 200),
        ("http://localhost/v1/models", "a\r\nHost: b", 400),
        ("//evil.example/v1/models", "localhost", 404),
        ("/v1/models?x=http://evil.example/", "localhost", 200),
    ],
)
def test_s3_the_host_of_an_absolute_target_counts(
    tiny_live: Any, target: str, host: str, status: int
) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert exchange(tiny_live.url, request.encode()).startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize("host", ["127.0.0.1:", "[::ffff:127.0.0.1]"])
def test_s3_loopback_has_many_spellings(tiny_live: Any, host: str) -> None:
    assert tiny_live.get("/v1/models", headers={"Host": host}).status_code == 200


def test_bodies_do_not_wait_for_acknowledgements(tiny_live: Any) -> None:
    """Without TCP_NODELAY each reply on a kept connection takes 40 ms more."""
    with connect(tiny_live.url) as client:
        client.sendall(GET)
        assert reply_of(client)[0].startswith(b"HTTP/1.1 200")
        connections = list(tiny_live.runner.server_state.connections)
        [ours] = [each for each in connections if each.client == client.getsockname()]
        found = ours.transport.get_extra_info("socket")
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
