"""The program that stalls threads: it does, it stops, and it hands on signals and the exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

STALLS = [sys.executable, str(Path(__file__).parent / "stalls.py")]
WAITS = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); sys.exit(7)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is Linux's")


def begin(*args: str) -> "subprocess.Popen[str]":
    pipe: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*STALLS, *args, "--", sys.executable, "-c", WAITS], text=True, **pipe)


def process_of(run: "subprocess.Popen[str]") -> int:
    assert run.stdout is not None
    line = run.stdout.readline()
    if not line and "CAP_SYS_NICE" in run.communicate()[1]:
        pytest.skip("needs root, or CAP_SYS_NICE")
    return int(line)


def children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(number) for number in path.read_text().split()]


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_there, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_stalls_and_ends() -> None:
    with begin("--gap", "0.05") as run:
        process, deadline = process_of(run), time.monotonic() + 120
        for policy in (os.SCHED_IDLE, os.SCHED_OTHER) * 3:
            while os.sched_getscheduler(process) != policy:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        _, errors = run.communicate(timeout=60)
    count, word = errors.split()
    assert (run.returncode, word) == (7, "stalls") and int(count) >= 3


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_stays_when_it_is_ended(sig: signal.Signals) -> None:
    with begin("--gap", "1000") as run:
        started = process_of(run)
        everyone = children(run.pid)
        assert started in everyone and len(everyone) == 1 + len(os.sched_getaffinity(0))
        run.send_signal(sig)
        if sig == signal.SIGKILL:
            everyone.remove(started)  # nothing told it
        until_gone(everyone)
        run.communicate(timeout=60)
    assert run.returncode == (128 + sig if sig != signal.SIGKILL else -sig)


@pytest.mark.parametrize(
    ("args", "message"),
    [(("--gap", "0", "--", "x"), "must be above 0"), (("--", "/no/such"), "No such file")],
)
def test_refused(args: tuple[str, ...], message: str) -> None:
    done = subprocess.run([*STALLS, *args], capture_output=True, text=True, timeout=60)
    if "CAP_SYS_NICE" in done.stderr:
        pytest.skip("needs root, or CAP_SYS_NICE")
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
