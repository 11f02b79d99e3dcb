"""Servers as the scripts meet them: a process that is stopped while it is not measured.

POSIX only; what is read from /proc needs Linux.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

READY_S = 300.0  # the first start ever compiles kernels


class HttpServer:
    """A server process on a port of its own; stopped (SIGSTOP) until `resume`."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        """Start it and wait until it is healthy."""
        self.name, self.port = name, port
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + READY_S
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                tail = self._log.read().decode(errors="replace").splitlines()[-8:]
                self.close()
                raise SystemExit(f"{name} did not start:\n  " + "\n  ".join(tail))
            time.sleep(0.1)

    @classmethod
    def llamba(cls, model: Path, threads: int, streams: int, context: int) -> "HttpServer":
        """Our server, from the environment that runs this script."""
        port = free_port()
        command = [sys.executable, "-m", "llamba", "serve", str(model), "--port", str(port)]
        command += ["-t", str(threads), "-np", str(streams), "-c", str(context)]
        command += ["--kv-tokens", str(context * streams), "--no-access-log"]
        return cls("llamba", command, port)

    @classmethod
    def llama_server(
        cls, binary: Path, model: Path, threads: int, streams: int, context: int
    ) -> "HttpServer":
        """llama.cpp's server, at its defaults but for the same sizes."""
        port = free_port()
        command = [str(binary), "-m", str(model), "--port", str(port), "-t", str(threads)]
        command += ["-np", str(streams), "-c", str(context * streams)]
        return cls("llama-server", command, port)

    def get(self, path: str) -> str:
        """The body of a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as reply:
            return reply.read().decode()

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        pattern = rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)$"
        return sum(float(v) for v in re.findall(pattern, self.get("/metrics"), re.MULTILINE))

    @property
    def rss_mb(self) -> float:
        """Memory in RAM that is the process's own: without the mapped model file."""
        fields = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        )
        return int(fields["RssAnon"].split()[0]) / 1024

    @property
    def num_fds(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def pause(self) -> None:
        """Take no CPU time from others."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, stopped or not."""
        self.process.kill()
        self.process.wait()
        self._log.close()

    def _healthy(self) -> bool:
        try:
            return "error" not in self.get("/health")
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def request(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """A request's bytes, for a connection that serves only this one."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data
