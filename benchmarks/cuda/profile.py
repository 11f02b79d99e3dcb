"""Where a decode step's time goes: python benchmarks/cuda/profile.py MODEL [TOKENS] [CONTEXT]

Each kernel is timed alone, between events, so that sums are larger than a step in a graph is.
"""

import sys
from collections import defaultdict
from pathlib import Path

from package import use_checkout

use_checkout()

from llamba import LLM  # noqa: E402
from llamba.runtime.cuda.plan import Bucket  # noqa: E402


def main() -> None:
    """Kernel by kernel, the most costly first."""
    path, *numbers = sys.argv[1:]
    tokens, context = (*map(int, numbers), 1, 128)[:2] if len(numbers) < 2 else map(int, numbers)
    with LLM(Path(path), device="cuda", context_length=16384, max_sequences=128) as llm:
        program = llm.program
        filled = program._modes.fill_up(tokens)
        splits = program._splits(filled, context)
        bucket = Bucket(filled, filled, splits, 0, filled, 0)
        work = program._plan(bucket)
        device = program.device
        device.profile(work)
        sums: dict[str, list[float]] = defaultdict(list)
        for name, seconds in device.profile(work):
            sums[name].append(seconds * 1e6)
        graph = device.capture(work)
        import time

        for rounds in (3, 50):
            device.synchronize()
            started = time.perf_counter()
            for _ in range(rounds):
                graph.launch()
            device.synchronize()
            whole = (time.perf_counter() - started) / rounds * 1e6
        print(
            f"{tokens} tokens, context {context}, {splits} splits: {whole:.0f} us in a graph, "
            f"{len(work)} nodes, {sum(map(sum, sums.values())):.0f} us alone"
        )
        for name, times in sorted(sums.items(), key=lambda item: -sum(item[1])):
            print(
                f"  {sum(times):8.0f} us  {len(times):4} x {sum(times) / len(times):7.2f}  {name}"
            )


if __name__ == "__main__":
    main()
