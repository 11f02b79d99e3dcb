"""Who is heard: Host, Origin, content types, API keys; and how much: bodies and heads."""

import asyncio
import base64
import contextlib
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llamba.cli.server import body_limit
from llamba.cli.server.api_keys import ApiKeys, read_keys
from llamba.cli.server.body_limit import BodyLimit
from llamba.cli.server.guard import Guard, is_loopback
from llamba.errors import InvalidParameterError

Headers = Sequence[tuple[str, str]]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


async def inner(scope: Any, receive: Any, send: Any) -> None:
    """The application behind: tells what it was given."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    kind = next((v.decode() for n, v in scope["headers"] if n == b"content-type"), None)
    reply = json.dumps({"length": len(body), "kind": kind}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": reply})


def ask(
    app: Any,
    method: str = "GET",
    path: str = "/v1/models",
    headers: Headers = (("host", "localhost:8080"),),
    messages: Sequence[dict[str, Any]] = ({"type": "http.request", "body": b""},),
) -> Reply:
    """One request, as the server's protocol would make it of these bytes."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(n.encode(), v.encode("latin-1")) for n, v in headers],
    }
    sent: list[Any] = []
    waiting = [{"more_body": False, **message} for message in messages]

    async def receive() -> Any:
        if waiting:
            return waiting.pop(0)
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = sent[0] if sent else {"status": 0, "headers": []}
    found = {n.decode().lower(): v.decode() for n, v in start["headers"]}
    body = b"".join(m.get("body", b"") for m in sent[1:])
    return Reply(start["status"], found, body)


def guard(host: str = "127.0.0.1", **options: Any) -> Guard:
    return Guard(inner, host=host, **options)


# -- Host -----------------------------------------------------------------------------------------
LOOPBACK = ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:1", "127.8.9.1", "[::1]:8080"]
LOOPBACK += ["[::1]", "[0:0:0:0:0:0:0:1]:80", "app.localhost:8080", "127.0.0.1:", "[::1]:"]
LOOPBACK += ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]:8080"]
FOREIGN = ["evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5"]
FOREIGN += ["[::2]:80", "notlocalhost", "evil.example:", "[::ffff:192.168.1.5]"]
BROKEN = ["", "localhost:x", "localhost:99999", "[::1", "::1", "a@localhost", "localhost/x", "a b"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_s3_loopback_names_are_ours(host: str) -> None:
    assert ask(guard(), headers=[("host", host)]).status == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_s3_dns_rebinding_is_refused(host: str) -> None:
    reply = ask(guard(), headers=[("host", host)])
    assert reply.status == 403
    error = json.loads(reply.body)["error"]
    assert error["code"] == "host_not_allowed" and "--allow-host" in error["message"]


@pytest.mark.parametrize("host", BROKEN)
def test_s3_what_is_no_host_is_refused(host: str) -> None:
    assert ask(guard(), headers=[("host", host)]).status == 400


def test_s3_none_or_several_hosts_are_refused() -> None:
    assert ask(guard(), headers=[]).status == 400
    assert ask(guard(), headers=[("host", "localhost"), ("host", "localhost")]).status == 400


def test_s3_the_bound_address_and_allowed_names_are_ours() -> None:
    bound = guard("192.168.1.5")
    for host, status in {
        "192.168.1.5:8080": 200,
        "10.0.0.1": 200,  # an address is no name that DNS could give to somebody else
        "[fe80::1]:8080": 200,
        socket.gethostname(): 200,
        "localhost": 200,
        "evil.example": 403,
    }.items():
        assert ask(bound, headers=[("host", host)]).status == status, host
    named = guard(allowed_hosts=("llamba", "*.Example.com"))
    for host, status in {
        "llamba:8080": 200,
        "LLAMBA.": 200,
        "a.example.com": 200,
        "example.com": 403,
        "badexample.com": 403,
    }.items():
        assert ask(named, headers=[("host", host)]).status == status, host
    assert ask(guard(allowed_hosts=("*",)), headers=[("host", "any.thing")]).status == 200


def test_is_loopback() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("example.com")


# -- Origin ---------------------------------------------------------------------------------------
HOST = ("host", "localhost:8080")
EVIL = "https://evil.example"


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
@pytest.mark.parametrize("origin", [EVIL, "null", "http://localhost:3000", "file://", ""])
def test_s4_posts_of_foreign_pages_are_refused(origin: str, kind: str) -> None:
    headers = [HOST, ("origin", origin), ("content-type", kind), ("content-length", "2")]
    reply = ask(guard(), "POST", "/v1/chat/completions", headers)
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers


def test_s4_requests_of_foreign_pages_without_origin_are_refused() -> None:
    for site in ("cross-site", "same-site"):
        no_cors = [HOST, ("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")]
        assert ask(guard(), headers=no_cors).status == 403
        frame = [("sec-fetch-site", site), ("sec-fetch-mode", "navigate")]
        assert ask(guard(), "GET", "/", [HOST, *frame, ("sec-fetch-dest", "iframe")]).status == 403
        # A link to the page is nothing but that.
        link = [HOST, *frame, ("sec-fetch-dest", "document")]
        assert ask(guard(), "GET", "/", link).status == 200
        assert ask(guard(), "POST", "/", link).status == 403


def test_s4_our_own_page_is_heard() -> None:
    own = [HOST, ("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")]
    reply = ask(guard(), "POST", headers=[*own, ("content-type", "application/json")])
    assert reply.status == 200
    assert "access-control-allow-origin" not in reply.headers
    unnamed_port = [("host", "localhost:"), ("origin", "http://localhost")]
    assert ask(guard(), headers=unnamed_port).status == 200
    # Behind a proxy that ends TLS at the usual port.
    proxied = [("host", "chat.example"), ("origin", "https://chat.example:443")]
    assert ask(guard(allowed_hosts=("chat.example",)), headers=proxied).status == 200
    assert ask(guard(), headers=[HOST, ("sec-fetch-site", "none")]).status == 200


def test_s4_two_origins_are_refused() -> None:
    own = ("origin", "http://localhost:8080")
    assert ask(guard(), headers=[HOST, own, own]).status == 403


def test_s4_allowed_origins_get_cors_without_credentials() -> None:
    allowing = guard(allowed_origins=("https://chat.example/",))
    reply = ask(allowing, headers=[HOST, ("origin", "https://chat.example")])
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"
    assert reply.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in reply.headers
    assert ask(allowing, headers=[HOST, ("origin", EVIL)]).status == 403
    assert ask(allowing, headers=[HOST, ("origin", "null")]).status == 403


def test_s4_preflight() -> None:
    wanted = [
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, content-type"),
    ]
    locked = ApiKeys(inner, keys=("secret",))  # a preflight carries no key
    allowing = Guard(locked, host="127.0.0.1", allowed_origins=("https://chat.example",))
    origin = ("origin", "https://chat.example")
    reply = ask(allowing, "OPTIONS", headers=[HOST, origin, *wanted])
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert ask(allowing, headers=[HOST, origin]).status == 401
    refused = ask(allowing, "OPTIONS", headers=[HOST, ("origin", EVIL), *wanted])
    assert refused.status == 403 and "access-control-allow-headers" not in refused.headers
    odd = ("access-control-request-headers", "a\x01b")
    reply = ask(allowing, "OPTIONS", headers=[HOST, origin, wanted[0], odd])
    assert reply.headers["access-control-allow-headers"] == ""


def test_s4_any_origin_when_told_so() -> None:
    reply = ask(guard(allowed_origins=("*",)), headers=[HOST, ("origin", "null")])
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "*")


def test_replies_carry_safe_headers() -> None:
    for headers in ([HOST], [("host", "evil.example")]):
        reply = ask(guard(), headers=headers)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]


# -- content types --------------------------------------------------------------------------------
def test_curl_without_a_header_is_heard() -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", None):
        headers = [HOST, ("content-length", "2")] + ([("content-type", kind)] if kind else [])
        assert json.loads(ask(guard(), "POST", headers=headers).body)["kind"] == "application/json"
    for kind in ("application/json; charset=utf-8", "application/vnd.api+json"):
        headers = [HOST, ("content-length", "2"), ("content-type", kind)]
        assert json.loads(ask(guard(), "POST", headers=headers).body)["kind"] == kind
    form = [HOST, ("content-length", "2"), ("content-type", "multipart/form-data; boundary=x")]
    assert ask(guard(), "POST", headers=form).status == 400


def test_s4_a_browsers_body_must_say_that_it_is_json() -> None:
    own = [HOST, ("origin", "http://localhost:8080"), ("content-length", "2")]
    assert ask(guard(), "POST", headers=[*own, ("content-type", "text/plain")]).status == 400
    assert ask(guard(), "POST", headers=own).status == 400
    assert ask(guard(), "POST", headers=own[:2]).status == 200  # there is no body


# -- keys -----------------------------------------------------------------------------------------
def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"user:{password}".encode()).decode()


@pytest.mark.parametrize(
    "header",
    [
        ("authorization", "Bearer one"),
        ("authorization", "bearer  zwölf"),
        ("x-api-key", "one"),
        ("authorization", basic("one")),
    ],
)
def test_any_key_in_any_form(header: tuple[str, str]) -> None:
    name, value = header
    raw = [(name, value.encode().decode("latin-1"))]
    assert ask(ApiKeys(inner, keys=("one", "zwölf")), headers=raw).status == 200


@pytest.mark.parametrize(
    "header",
    [
        None,
        ("authorization", "Bearer on"),
        ("authorization", "Bearer one2"),
        ("authorization", "Bearer "),
        ("authorization", "one"),
        ("authorization", "Basic !!!"),
        ("authorization", basic("two")),
        ("x-api-key", ""),
    ],
)
def test_no_key_no_answer(header: tuple[str, str] | None) -> None:
    locked = ApiKeys(inner, keys=("one",))
    headers = [header] if header else []
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("POST", "/v1/messages"),
        ("POST", "/api/chat"),
        ("POST", "/health"),
        ("GET", "/health/"),
        ("GET", "/openapi.json"),
        ("GET", "/nonsense"),
    ):
        reply = ask(locked, method, path, headers)
        assert reply.status == 401, path
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert b"one2" not in reply.body
    for path in ("/", "/web/app.js"):  # a browser asks its user
        assert ask(locked, "GET", path, headers).headers["www-authenticate"].startswith("Basic")
    for path in ("/health", "/v1/health", "/healthz"):
        assert ask(locked, "GET", path, headers).status == 200


def test_key_errors_have_the_dialects_form() -> None:
    locked = ApiKeys(inner, keys=("one",))
    assert json.loads(ask(locked, path="/v1/messages").body)["type"] == "error"
    assert isinstance(json.loads(ask(locked, path="/api/tags").body)["error"], str)
    assert json.loads(ask(locked).body)["error"]["code"] == "invalid_api_key"


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\n  two  \n#three\n")
    assert read_keys(file) == ("one", "two")
    file.write_text("# none\n")
    with pytest.raises(InvalidParameterError, match="no key"):
        read_keys(file)
    with pytest.raises(InvalidParameterError, match="can't be read"):
        read_keys(tmp_path / "absent")


# -- bodies ---------------------------------------------------------------------------------------
def limit(max_bytes: int = 10, timeout_s: float = 0.2) -> BodyLimit:
    return BodyLimit(inner, max_bytes=max_bytes, timeout_s=timeout_s)


def pieces(*bodies: bytes) -> list[dict[str, Any]]:
    last = len(bodies) - 1
    return [
        {"type": "http.request", "body": body, "more_body": i < last}
        for i, body in enumerate(bodies)
    ]


def test_bodies_up_to_the_limit_arrive_whole() -> None:
    reply = ask(limit(), "POST", messages=pieces(b"12345", b"", b"67890"))
    assert json.loads(reply.body)["length"] == 10


def test_p57_bodies_over_the_limit_are_413() -> None:
    chunked = ask(limit(), "POST", messages=pieces(b"12345", b"67890", b"1", b"2"))
    told = ask(limit(), "POST", headers=[("content-length", "11")], messages=pieces(b"x" * 11))
    huge = ask(limit(), "POST", headers=[("content-length", "9" * 5000)], messages=pieces(b""))
    odd = ask(limit(), "POST", headers=[("content-length", "-1")], messages=pieces(b""))
    for reply in (chunked, told, huge, odd):
        assert reply.status == 413 and reply.headers["connection"] == "close"
        assert json.loads(reply.body)["error"]["code"] == "body_too_large"


def test_slow_bodies_are_408() -> None:
    started = time.monotonic()
    reply = ask(limit(), "POST", messages=[{**pieces(b"1")[0], "more_body": True}])
    assert reply.status == 408 and time.monotonic() - started < 30  # of the 60 that `ask` waits
    assert json.loads(reply.body)["error"]["code"] == "request_timeout"


def test_a_client_that_leaves_in_its_body_gets_nothing() -> None:
    assert ask(limit(), "POST", messages=[{"type": "http.disconnect"}]).status == 0


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def exchange(url: str, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes, perhaps before it has them all."""
    found = b""
    with connect(url) as client:
        with contextlib.suppress(ConnectionError):  # reset: what it said before can still be read
            client.sendall(data)
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(65536):
                found += piece
    return found


@pytest.mark.kernels
def test_p57_a_huge_body_is_refused_over_the_wire(
    tiny_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reply is lost if all of it isn't read, which takes as long as we take to send it.
    monkeypatch.setattr(body_limit, "_DISCARD_S", 60)
    reply = tiny_live.post("/v1/chat/completions", json="x" * (17 << 20))
    assert reply.status_code == 413


@pytest.mark.kernels
def test_slow_heads_are_cut(serve: Callable[..., Any], tiny_gguf: Callable[..., Path]) -> None:
    server = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))}, read_timeout_s=0.5)
    started = time.monotonic()
    assert exchange(server.url, b"GET / HTTP/1.1\r\nHost: loc") == b""
    assert exchange(server.url, b"") == b""  # says nothing at all
    assert time.monotonic() - started < 25  # the default is 30 s for each


@pytest.mark.kernels
def test_slow_bodies_and_large_heads_are_refused(
    serve: Callable[..., Any], tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from llamba.cli.server import protocol

    # Only bodies are slow: no head is cut before we have sent it.
    limited = protocol.limited
    monkeypatch.setattr(protocol, "limited", lambda _: limited(60))
    server = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))}, read_timeout_s=0.5)
    slow = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    assert exchange(server.url, slow).startswith(b"HTTP/1.1 408")
    large = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (70 << 10)
    assert exchange(server.url, large).startswith(b"HTTP/1.1 400")
    assert exchange(server.url, b"\x16\x03\x01nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert server.get("/health").status_code == 200


class _Transport:
    """A connection that nobody reads."""

    def __init__(self) -> None:
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write(self, data: bytes) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None

    def resume_reading(self) -> None:
        pass

    pause_reading = resume_reading


@pytest.mark.parametrize("after", [b"\r\n", b""])
def test_what_follows_a_reply_must_be_a_request(after: bytes) -> None:
    from uvicorn import Config
    from uvicorn.server import ServerState

    from llamba.cli.server.protocol import limited

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def work() -> None:
        config = Config(app, timeout_keep_alive=0, log_config=None)
        config.load()
        connection = limited(1.2)(config=config, server_state=ServerState(), app_state={})
        transport = _Transport()
        connection.connection_made(transport)
        started = time.monotonic()
        for _ in range(2):
            connection.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(0)
            connection._unset_keepalive_if_required()  # as any byte does
        while not transport.closed and time.monotonic() - started < 60:
            if after:
                connection.data_received(after)
            await asyncio.sleep(0.05)
        assert transport.closed and time.monotonic() - started > 0.5

    asyncio.run(work())


@pytest.mark.kernels
def test_s3_s4_hold_for_the_whole_server(tiny_live: Any) -> None:
    assert tiny_live.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
    assert tiny_live.get("/health", headers={"Host": "evil.example"}).status_code == 403
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/nonsense"):
        reply = tiny_live.post(path, json={}, headers={"Origin": EVIL})
        assert reply.status_code == 403, path
        assert "access-control-allow-origin" not in reply.headers
    reply = tiny_live.get("/", headers={"Sec-Fetch-Site": "cross-site"})
    assert reply.status_code == 403
