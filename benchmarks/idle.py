"""What a loaded engine costs that has nothing to do, and what `llamba serve` does.

    python benchmarks/idle.py [MODEL] -t 2 --json out.json
    python benchmarks/idle.py [MODEL] --serve --connections 8

CPU time of the whole process, all threads, over some seconds after requests were answered. With
--serve it is that of the server, while clients keep their connections open and a page was loaded.
"""

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from report import Bar, heading, show_bars, show_heading, write_bars
from streams import Stream, draw, parser

from llamba import LLM

BAR = 0.5  # percent of one core
PORT = 18437


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads (Linux)."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def engine(model: str, threads: int) -> Iterator[int]:
    """An engine in this process, after some requests; the process."""
    with LLM(model, num_threads=threads) as llm:
        for stream in [Stream(llm, draw(llm, 40, seed=i), 8) for i in range(4)]:
            stream.wait()
        yield os.getpid()


@contextlib.contextmanager
def server(model: str, threads: int, connections: int) -> Iterator[int]:
    """A server with clients that stay connected; its process."""
    command = [sys.executable, "-m", "llamba", "serve", f"m={model}", "-t", str(threads)]
    process = subprocess.Popen([*command, "--port", str(PORT)], stderr=subprocess.DEVNULL)
    clients = []
    try:
        ends = time.monotonic() + 300
        while ask(client := http.client.HTTPConnection("127.0.0.1", PORT), "/health") != 200:
            client.close()
            if time.monotonic() > ends or process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.2)
        for path in ("/", *["/v1/models"] * connections):
            clients.append(http.client.HTTPConnection("127.0.0.1", PORT))
            assert ask(clients[-1], path) == 200, path
        yield process.pid
    finally:
        for each in clients:
            each.close()
        process.terminate()
        process.wait()


def ask(client: http.client.HTTPConnection, path: str) -> int:
    """The status; 0 if nobody is there yet."""
    try:
        client.request("GET", path)
        response = client.getresponse()
        response.read()
        return response.status
    except OSError:
        return 0


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--serve", action="store_true", help="a server instead of an engine")
    options.add_argument("--connections", type=int, default=8, help="that stay open [8]")
    given = options.parse_args()
    with (
        server(given.model, given.threads, given.connections)
        if given.serve
        else engine(given.model, given.threads)
    ) as pid:
        time.sleep(0.5)
        cpu, begin = cpu_seconds(pid), time.perf_counter()
        time.sleep(given.seconds)
        cpu, wall = cpu_seconds(pid) - cpu, time.perf_counter() - begin
    bars = [
        Bar("of one core", 100 * cpu / wall, " %", BAR),
        Bar("CPU time", cpu * 1000, " ms"),
    ]
    first = heading(given.threads, 1)
    show_heading(first)
    show_bars(f"idle for {wall:.1f} s", bars)
    write_bars(given.json, first, bars, model=given.model)


if __name__ == "__main__":
    main()
