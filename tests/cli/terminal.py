"""A terminal for tests: a pty with a program behind it, read until a text comes."""

import contextlib
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()=>].?|\x1b\].*?(\x07|\x1b\\)|\r")
KEYS = {"enter": "\r", "alt-enter": "\x1b\r", "ctrl-c": "\x03", "ctrl-d": "\x04", "up": "\x1b[A"}


class Terminal:
    """`code` runs in a new Python whose stdin, stdout and stderr are an 80 x 24 terminal."""

    def __init__(self, code: str, **env: str) -> None:
        import fcntl
        import pty
        import termios

        def begin() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it

        self.fd, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=begin,
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "PYTHONPATH": os.pathsep.join(
                    filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
                ),
                **env,
            },
        )
        os.close(child)
        self.raw = ""
        self.seen = 0  # of `text`, what `expect` has gone past

    @property
    def text(self) -> str:
        """Everything so far without the terminal's control sequences."""
        return ESCAPES.sub("", self.raw)

    def send(self, text: str, key: str = "enter") -> None:
        """Types a text and a key."""
        os.write(self.fd, (text + KEYS[key]).encode())

    def expect(self, text: str, timeout: float = 120.0) -> str:
        """Waits for a text after the last one expected; returns what came before it."""
        deadline = time.monotonic() + timeout
        while (at := self.text.find(text, self.seen)) < 0:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"no {text!r} in {self.text[self.seen :]!r}")
        before = self.text[self.seen : at]
        self.seen = at + len(text)
        return before

    def _read(self, timeout: float) -> bool:
        if timeout <= 0 or not select.select([self.fd], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the program has ended
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def wait(self, timeout: float = 120.0) -> int:
        """The exit code."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.wait(1)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.kill(self.process.pid, signal.SIGKILL)
                self.process.wait()
        os.close(self.fd)
