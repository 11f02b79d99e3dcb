"""Where a decode step's time goes: python decode_profile.py MODEL [TOKENS] [CONTEXT]

First each kernel between events, so that their sum is larger than a step in a graph; then the
engine's loop: what the host does in the program, between its steps, and how long it waits.
"""

import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from package import use_checkout

use_checkout()

from llamba import LLM, SamplingParams  # noqa: E402
from llamba.runtime.batch import Batch, Logits, Segment  # noqa: E402
from llamba.runtime.cuda.steps import Layout, place  # noqa: E402


def kernels(program: Any, tokens: int, context: int) -> None:
    """Of a step of so many sequences, each with pages of its own."""
    pages = -(-context // 32)
    table = np.arange(tokens * pages, dtype=np.int32).reshape(tokens, pages) % program.num_pages
    ids = np.ones(1, np.int32)
    segments = tuple(Segment(ids, context - 1, table[i], Logits.LAST) for i in range(tokens))
    batch = Batch(segments)
    program.run(batch)
    placed = place(batch, causal=True, max_singles=tokens)
    bucket = program._bucket(placed, 1)
    device = program.device
    device.run(program._arrays.fill(batch, placed, bucket, Layout.of(bucket)))
    work = program._plan(bucket)
    sums: dict[str, list[float]] = defaultdict(list)
    for name, seconds in device.profile(work):
        sums[name].append(seconds * 1e6)
    graph = device.capture(work)
    whole = 0.0
    for rounds in (3, 100):
        device.synchronize()
        started = time.perf_counter()
        for _ in range(rounds):
            graph.launch()
        device.synchronize()
        whole = (time.perf_counter() - started) / rounds * 1e6
    graph.close()
    alone = sum(map(sum, sums.values()))
    print(f"{tokens} tokens, context {context}: {whole:.0f} us in a graph of {len(work)} nodes")
    print(f"  {bucket}; one after the other {alone:.0f} us:")
    for name, times in sorted(sums.items(), key=lambda item: -sum(item[1]))[:14]:
        print(f"  {sum(times):8.0f} us  {len(times):4} x {sum(times) / len(times):7.2f}  {name}")


def time_calls(program: Any) -> dict[str, list[float]]:
    """Time each of the driver's functions from now on."""
    spent: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    functions = program.device._driver._functions

    def timed(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> int:
            begin = time.perf_counter()
            code = function(*arguments)
            took = time.perf_counter() - begin
            entry = spent[name]
            entry[0] += 1
            entry[1] += took
            entry[2] = max(entry[2], took)
            return code

        return call

    for name, function in list(functions.items()):
        functions[name] = timed(name, function)
    return spent


def loop(llm: LLM, tokens: int, context: int) -> None:
    """Of LLM.generate: microseconds a step."""
    program: Any = llm.program
    calls = time_calls(program)
    program._graphs.close()
    program._further.close()
    spent: dict[str, float] = defaultdict(float)
    run = program.run
    last = [0.0]

    def timed(batch: Batch) -> Any:
        begin = time.perf_counter()
        if last[0]:
            spent["between steps"] += begin - last[0]
        rows = run(batch)
        last[0] = time.perf_counter()
        spent["in run"] += last[0] - begin
        spent["steps"] += 1
        return rows

    event = type(program.device.event())
    wait = event.wait

    def waited(self: Any) -> None:
        begin = time.perf_counter()
        wait(self)
        spent["of it waiting"] += time.perf_counter() - begin

    rng = np.random.default_rng(0)
    prompts: list[Any] = [
        {"prompt_token_ids": rng.integers(0, 999, context).tolist()} for _ in range(tokens)
    ]
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, max_tokens=400, ignore_eos=True)
        llm.generate(prompts, params)
        calls.clear()
        program.run, event.wait = timed, waited
        spent.clear()
        last[0] = 0.0
        llm.generate(prompts, params)
        program.run, event.wait = run, wait
        steps = spent.pop("steps")
        parts = ", ".join(f"{name} {1e6 * s / steps:.0f}" for name, s in spent.items())
        print(f"  temperature {temperature}: us a step: {parts}")
        for name, (count, total, most) in sorted(calls.items(), key=lambda c: -c[1][1])[:8]:
            print(
                f"    {name}: {count / steps:.2f} x {1e6 * total / count:.1f}, "
                f"most {1e6 * most:.0f}"
            )


def main() -> None:
    """What the arguments say."""
    path, *numbers = sys.argv[1:]
    tokens, context = (
        map(int, [*numbers, "1", "128"][:2]) if len(numbers) != 1 else (int(numbers[0]), 128)
    )
    with LLM(
        Path(path),
        device="cuda",
        context_length=16384,
        kv_tokens=128 * 640,
        max_sequences=128,
        prefix_cache=False,
    ) as llm:
        kernels(llm.program, tokens, context)
        loop(llm, tokens, context)


if __name__ == "__main__":
    main()
