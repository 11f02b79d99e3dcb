"""A second request begins like the first: how much is run again, and how soon does it answer?

    python benchmarks/prefix.py [MODEL] -t 2 --json out.json

Both share 1,500 tokens and have 20 of their own. Tokens run are counted by the engine. Rounds use
other tokens; medians.
"""

import statistics

from report import Bar, heading, show_bars, show_heading, write_bars
from streams import Stream, draw, parser

from llamba import LLM

BAR_TTFT = 1 / 8


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--shared", type=int, default=1500, help="tokens in common [1500]")
    options.add_argument("--own", type=int, default=20, help="tokens of each one's own [20]")
    options.add_argument("-r", "--rounds", type=int, default=3)
    given = options.parse_args()
    first_s, second_s, runs, cached = [], [], [], []
    with LLM(given.model, num_threads=given.threads) as llm:
        Stream(llm, draw(llm, 600, seed=0), 2).wait()  # threads started, memory touched
        for number in range(given.rounds):
            shared = draw(llm, given.shared, seed=100 * number + 1)
            first = Stream(llm, shared + draw(llm, given.own, seed=100 * number + 2), 2)
            first.wait()
            before = llm.stats.prefill_tokens
            second = Stream(llm, shared + draw(llm, given.own, seed=100 * number + 3), 2)
            second.wait()
            runs.append(llm.stats.prefill_tokens - before)
            cached.append(second.cached_tokens)
            first_s.append(first.ttft_s)
            second_s.append(second.ttft_s)
    # Two random continuations may begin with the same token: then one less is new.
    bars = [
        Bar("prompt tokens of the second that were run", max(runs), "", given.own),
        Bar("prompt tokens of the second from the cache", min(cached), "", given.shared, True),
        Bar("TTFT of the first", statistics.median(first_s) * 1000, " ms"),
        Bar("TTFT of the second", statistics.median(second_s) * 1000, " ms"),
        Bar(
            "TTFT, second / first",
            statistics.median(second_s) / statistics.median(first_s),
            "",
            BAR_TTFT,
        ),
    ]
    about = heading(given.threads, given.rounds)
    show_heading(about)
    show_bars(f"{given.shared} tokens shared, {given.own} new", bars)
    write_bars(given.json, about, bars, model=given.model, first_s=first_s, second_s=second_s)


if __name__ == "__main__":
    main()
