"""Clients of all dialects that come and leave as they like: nothing may be left of them."""

import asyncio
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.kernels]
SECONDS = 20
TALK = [{"role": "user", "content": "hello"}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": TALK, "max_tokens": 150, "ignore_eos": True}),
    ("/v1/completions", {"prompt": "hello " * 30, "max_tokens": 60, "n": 2}),
    ("/v1/completions", {"prompt": ["a", "b", "c", "d"], "max_tokens": 30}),
    ("/v1/messages", {"model": "tiny", "messages": TALK, "max_tokens": 150}),
    ("/api/chat", {"model": "tiny", "messages": TALK}),
    ("/api/generate", {"model": "tiny", "prompt": "hello"}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 150}),
    ("/v1/embeddings", {"input": ["hello"] * 5}),
    ("/v1/chat/completions", {"messages": []}),
]


def visit(url: str, rng: random.Random) -> None:
    """One client: leaves at once, in the middle, or stays."""
    host, _, port = url.removeprefix("http://").partition(":")
    path, body = rng.choice(BODIES)
    data = json.dumps({**body, "stream": rng.random() < 0.7}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as client:
        whole = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        if rng.random() < 0.1:  # leaves in the middle of its request
            client.sendall(whole[: rng.randrange(len(whole))])
            return
        client.sendall(whole)
        patience = rng.choice([0.0, 0.005, 0.05, 60.0])
        if patience < 60:
            time.sleep(patience)
            return
        while client.recv(65536):
            pass


def test_p61_clients_that_come_and_go_leave_nothing(
    serve: Callable[..., Any], tiny_gguf: Callable[..., Path]
) -> None:
    path = str(tiny_gguf(weights="Q4_K"))
    server = serve(models={"tiny": path}, engine={"kv_tokens": 2048})
    visit(server.url, random.Random(0))
    server.idle()

    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before, deadline = counts(), time.monotonic() + SECONDS
    failures: list[Exception] = []

    def goes_on() -> bool:
        """For so long, and until enough of them have left or stayed."""
        stats, late = server.llm.stats, time.monotonic() - deadline
        return late < 0 or (late < 100 and min(stats.cancellations, stats.finished) <= 10)

    def client(seed: int) -> None:
        rng = random.Random(seed)
        while goes_on():
            try:
                visit(server.url, rng)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    stats = server.idle()
    assert stats.cancellations > 10 and stats.finished > 10 and stats.failures == 0
    lifecycle = server.runner.lifecycle
    until = time.monotonic() + 60
    while lifecycle.num_requests or lifecycle.num_running or counts()[0] > before[0] + 2:
        assert time.monotonic() < until, (lifecycle.num_requests, lifecycle.num_running, counts())
        time.sleep(0.05)
    loop = server.runner._loop
    tasks = asyncio.run_coroutine_threadsafe(_count_tasks(), loop).result(60)
    assert tasks < 10, tasks
    assert counts()[1] <= before[1] + 40  # of asyncio's pool, which is bounded
    text = server.get("/metrics").text
    in_progress = [x for x in text.splitlines() if x.startswith("llamba_requests_in_progress{")]
    assert in_progress and all(line.endswith(" 0.0") for line in in_progress), in_progress
    assert not [x for x in server.log if x["status"] == 500], server.log[-5:]
    assert not [
        entry for entry in server.server.models.entries() if entry.expires_at is None
    ]  # nobody uses it: its idle time runs


async def _count_tasks() -> int:
    return len(asyncio.all_tasks())
