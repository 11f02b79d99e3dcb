"""The whole engine on a GPU, through LLM.generate, beside llama.cpp's figures of the same shapes.

python benchmarks/cuda/engine.py FOLDER [8b-q4_k_m ...] [--only decode,depth,batch,prefill]

FOLDER has the files of models.py. llama.cpp's figures (CUDA, one H200, -fa on, flash attention and
all layers on the GPU; commit 0c1e570) were measured with its own benchmarks: there no sampling and
no server take part.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from llamba import LLM, SamplingParams

# tokens/s: llama-bench tg128, at depth, llama-batched-bench, pp512 and pp2048.
PEER: dict[tuple[str, str], float] = {
    ("8b-q4_k_m", "decode"): 271.1,
    ("1b-q4_k_m", "decode"): 894.6,
    ("1b-q8_0", "decode"): 800.4,
    ("8b-q4_k_m", "depth 4096"): 257.1,
    ("8b-q4_k_m", "depth 12000"): 228.3,
    ("8b-q4_k_m", "batch 8"): 956,
    ("8b-q4_k_m", "batch 32"): 3268,
    ("8b-q4_k_m", "batch 128"): 5339,
    ("8b-q4_k_m", "prefill 512"): 9827,
    ("8b-q4_k_m", "prefill 2048"): 9802,
    ("1b-q4_k_m", "prefill 512"): 36045,
    ("1b-q4_k_m", "prefill 2048"): 42404,
    ("1b-q8_0", "prefill 512"): 47286,
    ("1b-q8_0", "prefill 2048"): 51088,
}


class Rounds:
    """Runs cases on one model."""

    def __init__(self, path: Path, repetitions: int, **options: Any) -> None:
        self.name, self.repetitions = path.stem, repetitions
        started = time.perf_counter()
        self.llm = LLM(path, device="cuda", prefix_cache=False, **options)
        self.load_s = time.perf_counter() - started
        self.rng = np.random.default_rng(0)
        self.vocab = self.llm.weights.hyperparameters.vocab_size

    def prompt(self, length: int) -> Any:
        """Random tokens."""
        return {"prompt_token_ids": self.rng.integers(0, self.vocab - 1, length).tolist()}

    def params(self, tokens: int) -> SamplingParams:
        """Greedy, as many tokens as that."""
        return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)

    def decode(self, depth: int, tokens: int) -> list[float]:
        """Tokens a second after the first one."""
        found = []
        for _ in range(self.repetitions + 1):
            [output] = self.llm.generate([self.prompt(depth)], self.params(tokens))
            found.append(output.metrics.decode_tokens_per_s)
        return found[1:]

    def batch(self, size: int, tokens: int) -> list[float]:
        """Tokens a second of all, over the steps in which each sequence decodes one."""
        found = []
        for _ in range(self.repetitions + 1):
            times: list[float] = []
            run = self.llm.program.run

            def timed(batch: Any, run: Any = run, times: list[float] = times) -> Any:
                rows = run(batch)
                if len(batch.segments) == size == batch.num_tokens:
                    times.append(time.perf_counter())
                return rows

            prompts = [self.prompt(128) for _ in range(size)]
            self.llm.program.run = timed
            try:
                self.llm.generate(prompts, self.params(tokens))
            finally:
                del self.llm.program.run
            found.append(size * (len(times) - 1) / (times[-1] - times[0]))
        return found[1:]

    def prefill(self, length: int) -> list[float]:
        """Prompt tokens a second, from the first step to the first token."""
        found = []
        for _ in range(self.repetitions + 2):
            [output] = self.llm.generate([self.prompt(length)], self.params(1))
            found.append(output.metrics.prefill_tokens_per_s)
        return found[2:]


def run(path: Path, only: set[str], repetitions: int) -> dict[str, list[float]]:
    """All cases of a model."""
    rounds = Rounds(path, repetitions, context_length=16384, kv_tokens=128 * 640, max_sequences=128)
    print(f"\n{rounds.name}: loaded in {rounds.load_s:.1f} s", flush=True)
    cases: dict[str, Any] = {}
    if "decode" in only:
        cases["decode"] = lambda: rounds.decode(128, 256)
    if "depth" in only:
        cases |= {f"depth {n}": lambda n=n: rounds.decode(n, 128) for n in (1024, 4096, 12000)}
    if "prefill" in only:
        cases |= {f"prefill {n}": lambda n=n: rounds.prefill(n) for n in (512, 2048)}
    if "batch" in only:
        cases |= {
            f"batch {n}": lambda n=n: rounds.batch(n, 192) for n in (2, 4, 8, 16, 32, 64, 128)
        }
    found = {}
    for case, measure in cases.items():
        found[case] = measure()
        median, peer = statistics.median(found[case]), PEER.get((rounds.name, case))
        beside = f"  llama.cpp {peer:8.0f}  {median / peer:5.2f}x" if peer else ""
        low, high = min(found[case]), max(found[case])
        print(f"  {case:14} {median:9.1f} tok/s ({low:.0f} to {high:.0f}){beside}", flush=True)
    rounds.llm.close()
    return found


def main() -> None:
    """Print a table; with OUT set, a JSON file as well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=["8b-q4_k_m", "1b-q4_k_m", "1b-q8_0"])
    parser.add_argument("--only", default="decode,depth,prefill,batch")
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    args = parser.parse_args()
    only = set(args.only.split(","))
    found = {
        name: run(args.folder / f"{name}.gguf", only, args.repetitions) for name in args.models
    }
    if folder := os.environ.get("OUT"):
        Path(folder, "engine.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
