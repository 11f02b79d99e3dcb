"""A long prompt arrives while others decode: how much slower do their tokens come meanwhile?

    python benchmarks/long_prompt.py [MODEL] -t 2 --json out.json

Four streams decode; after some seconds a request with a prompt of 2,000 tokens is sent. Measured
are the streams' times from token to token, before it and from its submission to its first token.
"""

import statistics
import time

from report import Bar, heading, show_bars, show_heading, write_bars
from streams import Stream, draw, parser

from llamba import LLM

BAR_SLOWER = 2.5  # the streams' p95 time per token, over its value before
BAR_STALL_S = 0.6


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else 0.0


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--streams", type=int, default=4, help="that decode [4]")
    options.add_argument("--prompt", type=int, default=2000, help="tokens of the long one [2000]")
    options.add_argument("--before", type=float, default=5.0, help="seconds without it [5]")
    given = options.parse_args()
    with LLM(given.model, num_threads=given.threads, kv_tokens=16384) as llm:
        Stream(llm, draw(llm, 600, seed=0), 2).wait()  # threads started, memory touched
        streams = [Stream(llm, draw(llm, 64, seed=i + 1), 3000) for i in range(given.streams)]
        for stream in streams:
            stream.started.wait()
        begin = time.perf_counter()
        time.sleep(given.before)
        arrived = time.perf_counter()
        long = Stream(llm, draw(llm, given.prompt, seed=99), 1)
        ttft_s = long.ttft_s
        end = long.token_s[0]
        time.sleep(0.5)  # the gaps that are open now belong to it as well
        for stream in streams:
            stream.check()
        before = [gap for stream in streams for gap in stream.gaps(begin, arrived)]
        during = [gap for stream in streams for gap in stream.gaps(arrived, end)]
        for stream in streams:
            stream.close()
    bars = [
        Bar("time per token before, p95", p95(before) * 1000, " ms"),
        Bar("time per token during, p95", p95(during) * 1000, " ms"),
        Bar("during / before", p95(during) / p95(before), "", BAR_SLOWER),
        Bar("longest stall during", max(during), " s", BAR_STALL_S),
        Bar("TTFT of the long prompt", ttft_s, " s"),
        Bar("tokens of the streams meanwhile", len(during)),
    ]
    first = heading(given.threads, 1)
    show_heading(first)
    show_bars(f"{given.streams} streams, a prompt of {given.prompt} tokens arrives", bars)
    write_bars(given.json, first, bars, model=given.model, before_s=before, during_s=during)


if __name__ == "__main__":
    main()
