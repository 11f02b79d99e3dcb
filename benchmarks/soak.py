"""16 streams with random disconnects for minutes, llamba's server and llama.cpp's in turns.

    python benchmarks/soak.py [MODEL] --llama-server BINARY -t 2 --minutes 5 --json out.json

Each server is loaded by the same seeded clients; each client sends its next request when the last
one ended, and hangs up after a random number of chunks in a quarter of the cases. Tokens are
counted where they arrive, as chunks with text. Afterwards nothing may be left in ours: pages,
sequences, tasks, file descriptors; and its memory must be flat after the first minute. POSIX only.
"""

import asyncio
import contextlib
import random
import statistics
import time
from pathlib import Path
from typing import Any

from http_servers import HttpServer, request
from report import Bar, heading, show_bars, show_heading, write_bars
from streams import parser

from llamba.models.store import resolve

RATIO_BAR, DRIFT_BAR = 1.4, 2.0
CONTEXT = 1024
HANG_UP = 0.25  # of the requests
TOPICS = (
    "lighthouses", "bread", "glaciers", "typewriters", "beetles", "harbours", "violins", "tea",
    "railways", "clouds", "maps", "bridges", "owls", "paper", "salt", "windmills",
)  # fmt: skip


def body_of(rng: random.Random) -> dict[str, Any]:
    """A request: a prompt of 20 to 100 words, an answer of 32 to 128 tokens."""
    words = " ".join(rng.choice(TOPICS) for _ in range(rng.randrange(20, 100)))
    return {
        "messages": [{"role": "user", "content": f"Write about these: {words}"}],
        "max_tokens": rng.randrange(32, 129), "ignore_eos": True, "stream": True,
        "temperature": 0.8, "seed": rng.randrange(1 << 30), "cache_prompt": True,
    }  # fmt: skip


async def client(server: HttpServer, seed: int, until: float, counts: dict[str, int]) -> None:
    """One client: request after request until the time is over."""
    rng = random.Random(seed)
    while time.monotonic() < until:
        body, hang_up = body_of(rng), rng.random() < HANG_UP
        chunks_left = rng.randrange(0, body["max_tokens"]) if hang_up else None
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        tail = b""
        try:
            writer.write(request(body))
            await writer.drain()
            while data := await reader.read(1 << 16):
                counts["tokens"] += data.count(b'"content":"') - data.count(b'"content":""')
                tail = (tail + data)[-64:]
                if chunks_left is not None:
                    chunks_left -= data.count(b"data: ")
                    if chunks_left <= 0:
                        break
                if time.monotonic() > until:
                    chunks_left = 0
                    break
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        complete = b"[DONE]" in tail
        counts["complete" if complete else "hung up" if chunks_left is not None else "broken"] += 1


async def load(server: HttpServer, seconds: float, streams: int, seed: int) -> dict[str, int]:
    """All clients for so long."""
    counts = {"tokens": 0, "complete": 0, "hung up": 0, "broken": 0}
    until = time.monotonic() + seconds
    clients = [client(server, 1000 * seed + i, until, counts) for i in range(streams)]
    await asyncio.gather(*clients)
    return counts


def settle(server: HttpServer) -> None:
    """Until nothing runs any more."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if server.name != "llamba" or not server.metric("llamba_sequences"):
            return
        time.sleep(0.1)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--llama-server", type=Path, metavar="BINARY")
    options.add_argument("--streams", type=int, default=16)
    options.add_argument("--minutes", type=float, default=5.0, help="of load for our server [5]")
    options.add_argument("--turn", type=float, default=60.0, help="seconds of a turn [60]")
    given = options.parse_args()
    path = resolve(given.model)
    sizes = (given.threads, given.streams, CONTEXT)
    ours = HttpServer.llamba(path, *sizes)
    servers = [ours]
    speeds: dict[str, list[float]] = {}
    totals = {"complete": 0, "hung up": 0, "broken": 0}
    rss: list[float] = []
    try:
        if given.llama_server:
            ours.pause()
            servers.append(HttpServer.llama_server(given.llama_server, path, *sizes))
            servers[1].pause()
            ours.resume()
        fds_before = ours.num_fds
        tasks_before = ours.metric("llamba_event_loop_tasks")
        turns = max(1, round(60 * given.minutes / given.turn))
        for turn in range(turns):
            for server in servers:
                for other in servers:
                    other.resume() if other is server else other.pause()
                begin = time.monotonic()
                counts = asyncio.run(load(server, given.turn, given.streams, turn))
                rate = counts["tokens"] / (time.monotonic() - begin)
                settle(server)
                speeds.setdefault(server.name, []).append(rate)
                print(
                    f"{server.name}: {rate:.0f} tok/s, {counts}, {server.rss_mb:.0f} MB", flush=True
                )
                if server is ours:
                    rss.append(ours.rss_mb)
                    totals = {name: totals[name] + counts[name] for name in totals}
        for server in servers:
            server.resume()
        time.sleep(1)
        bars = [
            Bar("requests complete", totals["complete"]),
            Bar("hung up by the client", totals["hung up"]),
            Bar("streams that broke", totals["broken"], "", 0),
            Bar("pages held at the end", ours.metric("llamba_kv_pages_used"), "", 0),
            Bar("sequences at the end", ours.metric("llamba_sequences"), "", 0),
            Bar("file descriptors more", ours.num_fds - fds_before, "", 0),
            Bar("tasks more", ours.metric("llamba_event_loop_tasks") - tasks_before, "", 0),
            Bar("memory after the first turn", rss[0], " MB"),
            Bar("memory growth since", 100 * (rss[-1] / rss[0] - 1), " %", DRIFT_BAR),
            Bar("llamba", statistics.median(speeds[ours.name]), " tok/s"),
        ]
        if len(servers) > 1:
            theirs = statistics.median(speeds[servers[1].name])
            ratio = statistics.median(speeds[ours.name]) / theirs
            bars += [
                Bar("llama-server", theirs, " tok/s"),
                Bar("ratio", ratio, "", RATIO_BAR, least=True),
            ]
    finally:
        for server in servers:
            server.close()
    first = heading(given.threads, len(speeds[ours.name]))
    show_heading(first)
    show_bars(f"{path.name}, {given.streams} streams, {given.minutes:g} minutes", bars)
    write_bars(given.json, first, bars, model=path.name, speeds_ts=speeds, rss_mb=rss)


if __name__ == "__main__":
    main()
