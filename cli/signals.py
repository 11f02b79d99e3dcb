"""SIGTERM and SIGHUP end a command that writes files as Ctrl-C does, and not at once.

Only then are its temporary files removed, its compilers stopped, and its threads joined.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGTERM", "SIGHUP", "SIGALRM")  # Windows has only the first
_AGAIN_S = 0.2


class Ended(KeyboardInterrupt):
    """A signal asked for the end. name: of the signal; exit_code: 128 and its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name, self.exit_code = signal.Signals(number).name, 128 + number


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Within it, these signals raise Ended in the main thread.

    One that is ignored (nohup) stays ignored, and one that has a handler keeps it. What Ended or
    Ctrl-C has begun is not disturbed by the next signal (a terminal that is closed sends one, and
    so does the shell in it). But an exception may come where a library swallows it: so it is
    raised again, by an alarm, until it gets through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminals = [fd for fd in (1, 2) if os.isatty(fd)]
    first: int | None = None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if _is_ending():
            return
        if first is None:
            first = number
        if repeats:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        for fd in terminals:
            if not os.isatty(fd):  # it was closed: what we say on the way out would be an error
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, fd)
                os.close(nothing)
        raise Ended(first)

    found = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    ours = [each for each in found if signal.getsignal(each) is signal.SIG_DFL]
    repeats = getattr(signal, "SIGALRM", None) in ours
    for each in ours:
        signal.signal(each, end)
    try:
        yield
    finally:
        if repeats:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _is_ending() -> bool:
    """Whether a KeyboardInterrupt is being handled where the signal came."""
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
