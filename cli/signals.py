"""SIGTERM and SIGHUP end a command that writes files as Ctrl-C does, and not at once.

Only then are its temporary files removed, its compilers stopped, and its threads joined.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
# For so long others are ignored, which must not interrupt what the first one began: a terminal
# that is closed sends SIGHUP, and so does the shell in it.
_ENDING_S = 5.0


class Ended(KeyboardInterrupt):
    """A signal asked for the end. name: of the signal; exit_code: 128 and its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name, self.exit_code = signal.Signals(number).name, 128 + number


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Within it, these signals raise Ended in the main thread.

    One that is ignored (nohup) stays ignored, and one that has a handler keeps it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminals = [fd for fd in (1, 2) if os.isatty(fd)]
    ends_at = 0.0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ends_at
        now = time.monotonic()
        if now < ends_at:
            return
        ends_at = now + _ENDING_S
        for fd in terminals:
            if not os.isatty(fd):  # it was closed: what we say on the way out would be an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        raise Ended(number)

    found = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    ours = [each for each in found if signal.getsignal(each) is signal.SIG_DFL]
    for each in ours:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
