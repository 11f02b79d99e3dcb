"""The program that stalls threads: it does, it stops, and it hands on the exit code."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

STALLS = [sys.executable, str(Path(__file__).parent / "stalls.py")]
WAITS = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); sys.exit(7)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is Linux's")


def test_it_stalls_and_ends() -> None:
    command = [*STALLS, "--gap", "0.05", "--", sys.executable, "-c", WAITS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        process, deadline = int(run.stdout.readline()), time.monotonic() + 120
        for policy in (os.SCHED_IDLE, os.SCHED_OTHER) * 3:
            while os.sched_getscheduler(process) != policy:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        _, errors = run.communicate(timeout=60)
    count, word = errors.split()
    assert (run.returncode, word) == (7, "stalls") and int(count) >= 3


@pytest.mark.parametrize(
    ("args", "message"),
    [(("--gap", "0", "--", "x"), "must be above 0"), (("--", "/no/such"), "No such file")],
)
def test_refused(args: tuple[str, ...], message: str) -> None:
    done = subprocess.run([*STALLS, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
