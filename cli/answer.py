"""One answer as it comes: streaming, stopping with Ctrl-C, and its figures."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runtime.request import RequestMetrics, RequestOutput
    from .thoughts import Thoughts


@dataclass
class Answer:
    """What was generated; `finish_reason` is `abort` when the user stopped it."""

    text: str = ""
    thinking: str = ""
    token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    finish_reason: str | None = None
    seed: int | None = None
    timings: dict[str, float] = field(default_factory=dict)


class Interrupt:
    """Turns Ctrl-C into a flag while an answer comes, so that what there is of it is kept.

    Before the first token (a long prompt is being read), and when pressed again, Ctrl-C raises
    KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.pressed = False
        self.answering = False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed or not self.answering:
            raise KeyboardInterrupt
        self.pressed = True


@contextmanager
def silent_keys() -> Iterator[None]:
    """What is typed while an answer comes (the ^C above all) is not echoed into it.

    It waits in the terminal's queue for the next prompt. Nothing happens without a terminal.
    """
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    try:
        before = termios.tcgetattr(0)
    except termios.error:
        yield
        return
    during = list(before)
    during[3] &= ~termios.ECHO
    termios.tcsetattr(0, termios.TCSADRAIN, during)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def collect(
    stream: "Iterator[RequestOutput]",
    write: Callable[[str], object],
    interrupt: Interrupt,
    thoughts: "Thoughts | None" = None,
) -> Answer:
    """Hands the new text to `write` as it comes, until the end or Ctrl-C; returns it all.

    thoughts: takes the thinking out of it.
    """
    answer = Answer()
    last: RequestOutput | None = None
    try:
        for output in stream:
            last = output
            interrupt.answering = True
            if text := output.delta if thoughts is None else thoughts.push(output):
                answer.text += text
                write(text)
            if interrupt.pressed and not output.finished:
                break
        if thoughts is not None:
            if text := thoughts.end():
                answer.text += text
                write(text)
            answer.thinking = thoughts.text
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()  # a stream that is dropped half-way cancels its request
    if last is not None:
        completion = last.outputs[0]
        answer.token_ids = list(completion.token_ids)
        answer.num_prompt_tokens = len(last.prompt_token_ids)
        answer.finish_reason = completion.finish_reason
        answer.seed = completion.seed
        answer.timings = _timings(last.metrics)
    if interrupt.pressed and answer.finish_reason is None:
        answer.finish_reason = "abort"
    return answer


def _timings(metrics: "RequestMetrics") -> dict[str, float]:
    """llama-server's names: cache_n, prompt_n, prompt_ms, predicted_n, predicted_ms and rates."""
    return {
        "cache_n": metrics.cached_tokens,
        "prompt_n": metrics.prompt_tokens - metrics.cached_tokens,
        "prompt_ms": metrics.prefill_s * 1e3,
        "prompt_per_second": metrics.prefill_tokens_per_s,
        "predicted_n": metrics.completion_tokens,
        "predicted_ms": metrics.decode_s * 1e3,
        "predicted_per_second": metrics.decode_tokens_per_s,
        "ttft_ms": (metrics.ttft_s or 0.0) * 1e3,
    }


def stats_line(answer: Answer) -> str:
    """The figures of an answer for people."""
    t = answer.timings
    if not t:
        return "nothing was run"
    if t["cache_n"]:  # what little was run says nothing about speed
        prompt = f" ({t['cache_n']:.0f} cached)"
    else:
        prompt = f", {t['prompt_per_second']:.0f} tok/s"
    return (
        f"prompt {answer.num_prompt_tokens} tokens{prompt}; "
        f"first {t['ttft_ms'] / 1e3:.2f} s; "
        f"answer {t['predicted_n']:.0f} tokens, {t['predicted_per_second']:.1f} tok/s"
    )
