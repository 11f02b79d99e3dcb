"""What the scripts on a running engine have in common: their options, and streams with times."""

import argparse
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from llamba import LLM, SamplingParams


def parser(doc: str | None, model: str = "qwen2.5-coder-0.5b") -> argparse.ArgumentParser:
    """The options that all of them have."""
    result = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    result.add_argument("model", nargs="?", default=model, help=f"name or GGUF file [{model}]")
    result.add_argument("-t", "--threads", type=int, default=2)
    result.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    return result


def draw(llm: LLM, count: int, seed: int) -> list[int]:
    """Random tokens."""
    rng = random.Random(seed)
    return [rng.randrange(llm.tokenizer.vocab_size) for _ in range(count)]


class Stream:
    """A request that is followed by a thread of its own, which notes when its tokens come."""

    def __init__(self, llm: LLM, prompt_ids: Sequence[int], output_tokens: int) -> None:
        """Submit it; the answer has `output_tokens` tokens whatever they are."""
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True, seed=1)
        self.submitted_s = time.perf_counter()
        self.token_s: list[float] = []
        self.cached_tokens = 0
        self.error: Exception | None = None
        self.started = threading.Event()
        self._stream = llm.submit({"prompt_token_ids": list(prompt_ids)}, params)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for output in self._stream:
                now = time.perf_counter()
                self.token_s += [now] * (len(output.outputs[0].token_ids) - len(self.token_s))
                self.cached_tokens = output.metrics.cached_tokens
                self.started.set()
        except Exception as error:
            self.error = error
        self.started.set()

    @property
    def ttft_s(self) -> float:
        """Waits for the first token: seconds from submission to it."""
        self.started.wait()
        self.check()
        return self.token_s[0] - self.submitted_s

    def gaps(self, begin: float, end: float) -> list[float]:
        """Times from token to token that lie, in part or whole, between two moments."""
        pairs = zip(self.token_s, self.token_s[1:], strict=False)
        return [b - a for a, b in pairs if b > begin and a < end]

    def wait(self) -> None:
        """Until it has ended."""
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what ended it, if it was an error."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Cancel what is left."""
        self._stream.close()
        self._thread.join()
