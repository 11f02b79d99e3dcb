"""What is counted and logged; and that nothing goes on for clients that have gone (PAINS P61)."""

import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llamba.cli.server import metrics, models
from llamba.cli.server.access_log import JsonLines
from llamba.cli.server.running import Running
from llamba.errors import ResourceError

from .conftest import until

pytestmark = pytest.mark.kernels
LONG = "word " * 1500  # takes a while to be read
ENDLESS = {"max_tokens": 1500, "ignore_eos": True}
ENDLESS_OLLAMA = {"num_predict": 1500, "ignore_eos": True}
STORY = "Tell me a very long story"


def value(server: Any, name: str, **labels: str) -> float:
    """A metric's value; 0 if it has none yet."""
    for line in server.get("/metrics").text.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match and match[1] == name:
            found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            if all(found.get(label) == wanted for label, wanted in labels.items()):
                return float(match[3])
    return 0.0


class Client:
    """A client that says what it wants and may leave at any moment."""

    _numbers = itertools.count()

    def __init__(self, server: Any, path: str, body: dict[str, Any]) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.id = f"client-{next(self._numbers)}"
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"X-Request-Id: {self.id}\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def read(self, num_bytes: int) -> bytes:
        found = b""
        while len(found) < num_bytes:
            piece = self.socket.recv(4096)
            assert piece, "the server closed"
            found += piece
        return found

    def leave(self) -> None:
        self.socket.close()

    def line(self, server: Any) -> dict[str, Any]:
        """Of the log."""
        return until(lambda: [each for each in server.log if each["request_id"] == self.id])[0]


class Steps:
    """The steps of a server's engine, which can be held: what is to happen meanwhile does."""

    def __init__(self, server: Any, patch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._may_run = threading.Event()
        self._may_run.set()
        self._ended: set[Running] = set()  # by the server, perhaps not yet by the engine
        program = server.llm.program
        run, close = program.run, Running.close

        def held(batch: Any) -> Any:
            self._may_run.wait()
            return run(batch)

        def noted(running: Running) -> None:
            close(running)
            self._ended.add(running)

        patch.setattr(program, "run", held)
        patch.setattr(Running, "close", noted)

    def hold(self) -> None:
        """The next step, and one under way perhaps, does not end before `go_on`."""
        self._may_run.clear()

    def go_on(self) -> None:
        self._may_run.set()

    def without(self, *clients: Client, of: int = 1) -> int:
        """These (of so many) leave, and the server sees it during a step; the tokens until then."""
        self.hold()
        lifecycle = self._server.server.lifecycle
        until(lambda: lifecycle.num_running == of)  # the engine may know it before the server does
        count = self._server.llm.stats.decode_tokens
        before = len(self._ended)
        for client in clients:
            client.leave()
        until(lambda: len(self._ended) >= before + len(clients))
        self.go_on()
        return count


@pytest.fixture
def steps_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Steps]]:
    """steps_of(server) -> its Steps."""
    made: list[Steps] = []

    def make(server: Any) -> Steps:
        made.append(Steps(server, monkeypatch))
        return made[-1]

    yield make
    for steps in made:
        steps.go_on()


def prompt(text: str = LONG) -> dict[str, Any]:
    """A text that no other request has sent: nothing of it is cached."""
    return {"prompt": f"{time.monotonic_ns()} {text}", **ENDLESS}


@pytest.mark.model("smollm2")
def test_p61_gone_while_the_prompt_is_read(live: Any, steps_of: Callable[[Any], Steps]) -> None:
    before = live.idle()
    steps = steps_of(live)
    steps.hold()
    client = Client(live, "/v1/completions", {**prompt(), "stream": True})
    until(lambda: live.llm.stats.running)
    steps.without(client)
    after = live.idle()
    assert after.cancellations == before.cancellations + 1
    assert after.decode_tokens == before.decode_tokens


@pytest.mark.model("smollm2")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once upon a time", **ENDLESS}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Tell me all of it"}], **ENDLESS},
        ),
    ],
)
def test_p61_gone_in_the_middle_of_a_stream(
    live: Any, steps_of: Callable[[Any], Steps], path: str, body: dict[str, Any]
) -> None:
    before = live.idle()
    steps = steps_of(live)
    aborted = value(live, "llamba_requests_total", dialect="openai", reason="abort")
    client = Client(live, path, {**body, "stream": True})
    client.read(1000)
    tokens = steps.without(client)
    after = live.idle()
    assert after.cancellations == before.cancellations + 1
    assert after.decode_tokens <= tokens + 2  # the step that was held, and one before it
    assert value(live, "llamba_requests_total", dialect="openai", reason="abort") > aborted
    assert value(live, "llamba_cancellations_total") == after.cancellations
    assert value(live, "llamba_requests_in_progress") == 0
    line = client.line(live)
    assert (line["path"], line["status"], line["reason"]) == (path, 499, "abort")
    assert line["client_gone"]
    assert line["completion_tokens"] > 0


@pytest.mark.model("smollm2")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once upon a time", **ENDLESS}),
        ("/v1/messages", {"model": "smollm2", "messages": "HI", **ENDLESS}),
        ("/api/generate", {"model": "smollm2", "prompt": STORY, "options": ENDLESS_OLLAMA}),
        ("/v1/responses", {"input": STORY, "ignore_eos": True}),
    ],
)
def test_p61_gone_before_a_whole_answer(
    live: Any, steps_of: Callable[[Any], Steps], path: str, body: dict[str, Any]
) -> None:
    if body.get("messages") == "HI":
        body = {**body, "messages": [{"role": "user", "content": "Count to one thousand."}]}
    if path == "/api/generate":
        body = {**body, "stream": False}
    before = live.idle()
    steps = steps_of(live)
    refused = value(live, "llamba_http_requests_total", path=path, status="503")
    client = Client(live, path, body)
    until(lambda: live.llm.stats.decode_tokens > before.decode_tokens)
    tokens = steps.without(client)
    after = live.idle()
    assert after.cancellations == before.cancellations + 1
    assert after.decode_tokens <= tokens + 2  # the step that was held, and one before it
    line = client.line(live)
    assert (line["status"], line["reason"], line["client_gone"]) == (499, "abort", True)
    assert value(live, "llamba_http_requests_total", path=path, status="499") >= 1
    assert value(live, "llamba_http_requests_total", path=path, status="503") == refused


@pytest.fixture
def narrow(serve: Callable[..., Any], models: Callable[[str], Path]) -> Any:
    """One sequence at a time; two may wait."""
    engine = {"max_sequences": 1, "context_length": 2048}
    return serve(models={"smollm2": str(models("smollm2"))}, engine=engine, max_queue=2)


@pytest.mark.model("smollm2")
def test_p61_gone_in_the_queue(narrow: Any, steps_of: Callable[[Any], Steps]) -> None:
    steps = steps_of(narrow)
    first = Client(narrow, "/v1/completions", {**prompt("Once"), "stream": True})
    first.read(500)
    second = Client(narrow, "/v1/completions", {**prompt("Twice"), "stream": True})
    until(lambda: narrow.llm.stats.waiting == 1)
    steps.hold()
    assert value(narrow, "llamba_sequences_waiting", model="smollm2") == 1
    assert value(narrow, "llamba_sequences_running", model="smollm2") == 1
    assert value(narrow, "llamba_kv_pages_used", model="smollm2") >= 1
    steps.without(second, of=2)
    until(lambda: narrow.llm.stats.waiting == 0)
    assert first.read(500)
    steps.without(first)
    assert narrow.idle().cancellations == 2


@pytest.mark.model("smollm2")
def test_a_full_queue_is_503_with_retry_after(
    narrow: Any, steps_of: Callable[[Any], Steps]
) -> None:
    steps = steps_of(narrow)
    clients = [Client(narrow, "/v1/completions", {**prompt("Once"), "stream": True})]
    clients[0].read(500)
    for num_waiting in (1, 2):
        clients.append(Client(narrow, "/v1/completions", {**prompt("Once"), "stream": True}))
        until(lambda n=num_waiting: narrow.llm.stats.waiting == n)
    steps.hold()
    for path, body in {
        "/v1/completions": {"prompt": "x"},
        "/v1/messages": {
            "model": "smollm2",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": "x"}],
        },
        "/api/generate": {"model": "smollm2", "prompt": "x"},
    }.items():
        reply = narrow.post(path, json=body)
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0, path
        assert "error" in reply.json()
    steps.without(*clients, of=3)
    narrow.idle()
    assert narrow.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).is_success


@pytest.mark.model("smollm2")
def test_a_burst_does_not_pass_a_full_queue(narrow: Any, steps_of: Callable[[Any], Steps]) -> None:
    statuses: list[int] = []
    steps = steps_of(narrow)
    steps.hold()  # nobody's place is free before all have come

    def ask() -> None:
        body = {"prompt": f"{LONG[:1000]}", "max_tokens": 15, "ignore_eos": True}
        statuses.append(narrow.post("/v1/completions", json=body).status_code)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    until(lambda: len(statuses) >= 13)
    steps.go_on()
    for thread in threads:
        thread.join()
    assert statuses == [503] * 13 + [200] * 3  # one runs, and two wait
    many = {"prompt": ["Once"] * 20, "max_tokens": 1}  # is one request
    assert narrow.post("/v1/completions", json=many).status_code == 200


def test_counts_and_times_of_a_request(tiny_live: Any) -> None:
    ended = {"model": "tiny", "dialect": "openai", "reason": "length"}

    def counts() -> list[float]:
        return [
            value(tiny_live, "llamba_requests_total", **ended),
            value(tiny_live, "llamba_prompt_tokens_total", model="tiny"),
            value(tiny_live, "llamba_completion_tokens_total", model="tiny"),
            value(tiny_live, "llamba_time_to_first_token_seconds_count", model="tiny"),
            value(tiny_live, "llamba_time_per_output_token_seconds_count", model="tiny"),
            value(tiny_live, "llamba_queue_seconds_count", model="tiny"),
            value(tiny_live, "llamba_e2e_seconds_count", model="tiny"),
        ]

    body = {"prompt": "hello", "max_tokens": 7, "ignore_eos": True}
    assert tiny_live.post("/v1/completions", json=body).is_success
    tiny_live.idle()  # the books are closed after the reply has left
    before = counts()
    reply = tiny_live.post("/v1/completions", json=body).json()
    tiny_live.idle()
    changes = [b - a for a, b in zip(before, counts(), strict=True)]
    assert changes == [1, reply["usage"]["prompt_tokens"], 7, 1, 1, 1, 1]
    assert value(tiny_live, "llamba_model_loaded", model="tiny") == 1
    text = tiny_live.get("/metrics").text
    assert "llamba_build_info{version=" in text
    for name in ("kv_pages_free", "prefix_cache_queries_total", "preemptions_total", "failures"):
        assert f"llamba_{name}" in text


def test_what_clients_invent_is_no_label(tiny_live: Any) -> None:
    for i in range(5):
        tiny_live.get(f"/invented-{i}")
        tiny_live.post("/v1/completions", json={"model": f"invented-{i}", "prompt": "x"})
        with tiny_live.client() as client:
            client.request(f"VERB{i}", "/health")
    tiny_live.idle()
    text = tiny_live.get("/metrics").text
    assert "invented" not in text and "VERB" not in text
    assert value(tiny_live, "llamba_http_requests_total", path="unmatched", status="404") >= 5
    assert value(tiny_live, "llamba_http_requests_total", path="/v1/completions", status="404") >= 5


def test_openapi_has_a_label(tiny_live: Any) -> None:
    assert tiny_live.get("/openapi.json").is_success
    tiny_live.idle()
    name = "llamba_http_requests_total"
    assert value(tiny_live, name, path="/openapi.json", status="200") >= 1
    assert value(tiny_live, name, path="unmatched", status="200") == 0


# -- the log --------------------------------------------------------------------------------------
def last(server: Any, path: str) -> dict[str, Any]:
    return until(lambda: [each for each in server.log if each["path"] == path])[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_tells_what_happened_and_no_secrets(tiny_live: Any, stream: bool) -> None:
    body = {"prompt": "SECRET hello", "max_tokens": 5, "ignore_eos": True, "stream": stream}
    headers = {"Authorization": "Bearer KEY", "x-request-id": "my-id.1"}
    tiny_live.idle()
    tiny_live.log.clear()
    reply = tiny_live.post("/v1/completions?token=SECRET", json=body, headers=headers)
    assert reply.headers["x-request-id"] == "my-id.1"
    line = last(tiny_live, "/v1/completions")
    assert line["method"] == "POST" and line["status"] == 200 and line["client"] == "127.0.0.1"
    assert line["request_id"] == "my-id.1" and line["model"] == "tiny"
    assert line["dialect"] == "openai" and line["reason"] == "length"
    assert line["completion_tokens"] == 5 and line["prompt_tokens"] > 0
    assert line["ms"] > 0 and line["ttft_ms"] > 0 and line["tokens_per_s"] > 0
    text = json.dumps(tiny_live.log)
    assert "SECRET" not in text and "KEY" not in text


def test_ids_and_paths_can_not_forge_lines(tiny_live: Any) -> None:
    tiny_live.log.clear()
    for wrong in ("a b", "x" * 65, 'a"b'):
        reply = tiny_live.get("/version", headers={"x-request-id": wrong})
        assert reply.headers["x-request-id"].startswith("req_")
    tiny_live.get("/a%0A%1B%5B31m" + "x" * 1000)
    tiny_live.idle()
    assert all(len(each["path"]) <= 200 for each in tiny_live.log)


def test_lines_stay_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = JsonLines(tmp_path / "log")
    lines.write({"path": "/a\n\x1b[31m\u2028\ud800"})
    lines.close()
    lines.write({"after": "close"})  # no reason to fail
    text = (tmp_path / "log").read_text()
    assert text.count("\n") == 1 and text.isascii() and "\x1b" not in text
    assert json.loads(text)["path"] == "/a\n\x1b[31m\u2028\ud800"
    JsonLines().write({"a": 1})
    assert capsys.readouterr().err == '{"a": 1}\n'
    with pytest.raises(ResourceError, match="can't write the log"):
        JsonLines(tmp_path / "absent" / "log")


def test_anthropics_clients_find_the_id(tiny_live: Any) -> None:
    reply = tiny_live.post("/v1/messages", json={})
    assert reply.headers["request-id"] == reply.headers["x-request-id"]


def test_probes_are_not_logged(serve: Callable[..., Any], tiny_gguf: Callable[..., Path]) -> None:
    server = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))}, api_keys=("key",))
    for path in ("/health", "/v1/health", "/healthz"):
        assert server.get(path).is_success
    assert server.get("/metrics", headers={"x-api-key": "key"}).is_success
    assert server.get("/metrics", headers={"x-api-key": "guess"}).status_code == 401
    until(lambda: server.log)
    assert [(each["path"], each["status"]) for each in server.log] == [("/metrics", 401)]


def test_a_probe_that_fails_is_logged(
    serve: Callable[..., Any], tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> bytes:
        raise ValueError("a fault")

    monkeypatch.setattr(metrics, "generate_latest", broken)
    server = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))})
    assert server.get("/metrics").status_code == 500
    assert last(server, "/metrics")["status"] == 500


def test_the_wait_for_a_model_is_told(
    serve: Callable[..., Any], tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_llm, delay_s, let = models._open, 0.0, threading.Event()
    let.set()

    def slowly(source: str, **engine: Any) -> Any:
        time.sleep(delay_s)
        let.wait(100)
        return open_llm(source, **engine)

    monkeypatch.setattr(models, "_open", slowly)
    path = str(tiny_gguf(weights="Q4_K"))
    server = serve(models={"first": path, "second": path})
    delay_s = 0.3
    body = {"model": "second", "prompt": "hello", "max_tokens": 2}
    for _ in range(2):
        assert server.post("/v1/completions", json=body).is_success
    until(lambda: len(server.log) == 2)
    waited, ready = server.log
    assert 300 <= waited["load_ms"] <= waited["ms"] and ready["load_ms"] == 0
    name = "llamba_model_load_seconds"
    assert value(server, f"{name}_count", model="first") == 1
    assert value(server, f"{name}_count", model="second") == 1
    assert value(server, f"{name}_sum", model="second") >= 0.3
    # Gone while it loads: 499 as well, and the log says what it waited for.
    server.log.clear()
    body = {**body, "keep_alive": 0, "stream": False}
    assert server.post("/api/generate", json=body).is_success
    until(lambda: server.server.models.entries()[1].loaded is None)
    let.clear()
    try:
        client = Client(server, "/v1/completions", {**body, "stream": True})
        until(lambda: server.server.models.entries()[1].loading)
        client.leave()
        line = client.line(server)
    finally:
        let.set()
    assert (line["status"], line["reason"], line["model"]) == (499, "abort", "second")
    assert line["load_ms"] > 0


@pytest.mark.parametrize("web", [False, True])
def test_the_root_answers_without_the_page(
    web: bool, serve: Callable[..., Any], tiny_gguf: Callable[..., Path]
) -> None:
    server = serve(models={"tiny": str(tiny_gguf(weights="Q4_K"))}, web=web)
    reply = server.get("/")
    with server.client() as client:
        head = client.head("/")
        assert client.post("/", json={}).status_code == 405
    assert (reply.status_code, head.status_code, head.content) == (200, 200, b"")
    kind = "text/html" if web else "text/plain"
    assert all(each.headers["content-type"].startswith(kind) for each in (reply, head))
    assert web or reply.text == "llamba is running"
