"""What a loaded engine costs that has nothing to do.

    python benchmarks/idle.py [MODEL] -t 2 --json out.json

CPU time of the whole process, all threads, over 10 seconds after some requests were answered.
"""

import time

from report import Bar, heading, show_bars, show_heading, write_bars
from streams import Stream, draw, parser

from llamba import LLM

BAR = 1.0  # percent of one core


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=10.0)
    given = options.parse_args()
    with LLM(given.model, num_threads=given.threads) as llm:
        for stream in [Stream(llm, draw(llm, 40, seed=i), 8) for i in range(4)]:
            stream.wait()
        time.sleep(0.5)
        cpu, begin = time.process_time(), time.perf_counter()
        time.sleep(given.seconds)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - begin
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
