"""What HTTP, server-sent events and detokenizing cost: one stream beside the engine alone.

    python benchmarks/http_overhead.py [MODEL] -t 2 -n 256 -r 5 --json out.json

Decode speed from the first token to the last: in this process through LLM.generate, and as a client
of `llamba serve` sees it, in turns. The one that is not measured is stopped or parked.
"""

import socket
import statistics
import time

from http_servers import HttpServer, request
from report import Bar, heading, show_bars, show_heading, write_bars
from streams import parser

from llamba import LLM, SamplingParams
from llamba.models.store import resolve

BAR = 8.0  # percent of decode speed
MESSAGES = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]


def alone(llm: LLM, count: int, seed: int) -> float:
    """Tokens a second of the engine."""
    params = SamplingParams(max_tokens=count, ignore_eos=True, seed=seed, temperature=0.8)
    [output] = llm.chat(MESSAGES, params)
    return output.metrics.decode_tokens_per_s


def over_http(server: HttpServer, count: int, seed: int) -> float:
    """Tokens a second as a client sees them arrive."""
    body = {
        "messages": MESSAGES, "max_tokens": count, "ignore_eos": True, "seed": seed,
        "temperature": 0.8, "stream": True,
    }  # fmt: skip
    first = last = 0.0
    tail = b""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request(body))
        while data := connection.recv(1 << 16):
            tail = (tail + data)[-64:]
            if b'"content":"' in data:
                last = time.perf_counter()
                first = first or last
    if b"[DONE]" not in tail or not first:
        raise SystemExit(f"the stream was not complete: {tail!r}")
    return (count - 1) / (last - first)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, model="smollm2")
    options.add_argument("-n", "--gen", type=int, default=256)
    options.add_argument("-r", "--rounds", type=int, default=5)
    given = options.parse_args()
    path = resolve(given.model)
    engine: list[float] = []
    http: list[float] = []
    server = HttpServer.llamba(path, given.threads, streams=4, context=1024)
    try:
        # The server's own settings, so that the same kernels run.
        with LLM(
            path, num_threads=given.threads, max_sequences=4, context_length=1024, kv_tokens=4096
        ) as llm:
            for seed in range(-1, given.rounds):
                server.pause()
                engine_ts = alone(llm, given.gen, seed + 2)
                time.sleep(0.1)
                server.resume()
                http_ts = over_http(server, given.gen, seed + 2)
                if seed >= 0:  # the first round only warms up
                    engine.append(engine_ts)
                    http.append(http_ts)
    finally:
        server.close()
    ours, seen = statistics.median(engine), statistics.median(http)
    bars = [
        Bar("engine alone", ours, " tok/s"),
        Bar("over HTTP", seen, " tok/s"),
        Bar("cost", 100 * (1 - seen / ours), " %", BAR),
    ]
    first = heading(given.threads, given.rounds)
    show_heading(first)
    show_bars(f"{path.name}, one stream, {given.gen} tokens", bars)
    write_bars(given.json, first, bars, model=path.name, engine_ts=engine, http_ts=http)


if __name__ == "__main__":
    main()
