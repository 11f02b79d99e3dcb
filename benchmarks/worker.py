"""One runtime at one setting in a process of its own: what contenders.py starts.

    python worker.py KIND '{"model": ..., "threads": ..., "context": ..., "sequences": ..., ...}'

KIND is one of RUNTIMES, `context` the tokens of one sequence; the settings follow. The worker loads
the model, then answers one JSON line on its standard output for each one on its standard input:

    {"op": "measure", "prompt": 512, "gen": 128, "depth": 0, "warmup": 32, "seed": 1}
    {"op": "batched", "prompt": 128, "gen": 32, "sequences": 8, "seed": 1}
        -> {"prompt_s": 1.2, "gen_s": 3.4, "cpu_s": 9.1}
"""

import json
import os
import random
import sys
import time
from typing import Any

from runtimes import RUNTIMES, Run, Runtime


def measure(runtime: Runtime, command: dict[str, Any]) -> dict[str, float]:
    """Seconds for a prompt behind `depth` cached tokens, then for decoding behind as many.

    Like llama-bench's pp and tg tests, each is preceded by a short run of its own kind, which
    wakes the threads and touches the memory but counts for nothing. A command with `fill` puts the
    `depth` tokens there: those after it keep them.
    """
    rng, depth = random.Random(command["seed"]), command.get("depth", 0)
    result = {"prompt_s": 0.0, "gen_s": 0.0}
    if command.get("fill"):
        runtime.clear()
        runtime.run([Run(0, draw(rng, runtime, depth), logits=False)])
    if command["prompt"]:
        ids = draw(rng, runtime, command["prompt"])
        forget(runtime, depth)
        runtime.run([Run(0, ids[: command["warmup"]], depth)])
        forget(runtime, depth)
        begin = time.perf_counter()
        runtime.run([Run(0, ids, depth)])
        result["prompt_s"] = time.perf_counter() - begin
    if command["gen"]:
        ids = draw(rng, runtime, command["gen"])
        forget(runtime, depth)
        runtime.run([Run(0, ids[:1], depth)])
        forget(runtime, depth)
        begin = time.perf_counter()
        for i in range(len(ids)):
            runtime.run([Run(0, ids[i : i + 1], depth + i)])
        result["gen_s"] = time.perf_counter() - begin
    return result


def forget(runtime: Runtime, depth: int) -> None:
    """All but the first `depth` tokens of sequence 0."""
    if depth:
        runtime.keep(depth)
    else:
        runtime.clear()


def batched(runtime: Runtime, command: dict[str, Any]) -> dict[str, float]:
    """Seconds for a prompt in every sequence, then for decoding all of them together.

    llama-batched-bench's test: prompts are not shared, and a step decodes a token of each sequence.
    """
    rng = random.Random(command["seed"])
    sequences = range(command["sequences"])
    prompts = [draw(rng, runtime, command["prompt"]) for _ in sequences]
    answers = [draw(rng, runtime, command["gen"]) for _ in sequences]
    runtime.clear()
    runtime.run([Run(0, prompts[0][:16], logits=False)])
    runtime.clear()
    begin = time.perf_counter()
    runtime.run([Run(i, prompts[i]) for i in sequences])
    between = time.perf_counter()
    for at in range(command["gen"]):
        position = command["prompt"] + at
        runtime.run([Run(i, answers[i][at : at + 1], position) for i in sequences])
    end = time.perf_counter()
    return {"prompt_s": between - begin, "gen_s": end - between}


def draw(rng: random.Random, runtime: Runtime, count: int) -> list[int]:
    """Random tokens."""
    return [rng.randrange(runtime.vocab_size) for _ in range(count)]


def main() -> None:
    """Load, say so, then obey one line at a time until the input ends."""
    kind, job = sys.argv[1], json.loads(sys.argv[2])
    # The runtimes print to standard output as they like: keep it for the answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begin = time.perf_counter()
    runtime: Runtime = RUNTIMES[kind](job)
    ready = {"load_s": time.perf_counter() - begin, "pid": os.getpid(), **runtime.info()}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        cpu = time.process_time()
        sample = {"measure": measure, "batched": batched}[command["op"]](runtime, command)
        sample["cpu_s"] = time.process_time() - cpu
        print(json.dumps(sample), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # the peers' destructors are not worth waiting for


if __name__ == "__main__":
    main()
