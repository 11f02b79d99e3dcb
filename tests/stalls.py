"""Run a command while random threads of it get no processor: what depends on timing shows.

    python tests/stalls.py --seed 3 --gap 0.1 -- python -m pytest tests/cli

A stall is that of a busy machine, which may come between any two instructions: some threads (one,
some, or all of a process; of the command or of what it started) get the policy SCHED_IDLE for 5 to
800 ms, in which a busy loop takes each processor. A failure under stalls that does not come without
them is a race, in the test or in what it tests. Linux only, and with the right to take the policy
back (root, CAP_SYS_NICE). The exit code is the command's.
"""

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

STALLS_S = (0.005, 0.03, 0.03, 0.1, 0.1, 0.3, 0.8)
PROC = Path("/proc")
PR_SET_PDEATHSIG = 1
Loops = list[subprocess.Popen[bytes]]


def family(root: int) -> list[int]:
    """The process and all that it started, as far as they are alive and not orphans."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def threads_of(process: int) -> list[int]:
    """Their numbers; none of a process that has ended."""
    try:
        return [int(name) for name in os.listdir(PROC / str(process) / "task")]
    except OSError:
        return []


def choose(root: int, random: random.Random) -> list[int]:
    """Threads of one process of the family."""
    processes = family(root)
    if len(processes) > 1 and random.random() < 0.5:  # not the one that all others come from
        processes = processes[1:]
    threads = threads_of(random.choice(processes))
    how_many = random.choice((1, 1, len(threads), random.randint(1, max(1, len(threads)))))
    return random.sample(threads, min(how_many, len(threads)))


def set_policy(threads: list[int], policy: int) -> None:
    """Of those that are still there."""
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, os.sched_param(0))


def set_free(root: int) -> None:
    """All of them: whoever was begun by a stalled thread has inherited the policy."""
    for process in family(root):
        for thread in threads_of(process):
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                    set_policy([thread], os.SCHED_OTHER)


@contextlib.contextmanager
def busy_loops(priority: int) -> Iterator[Loops]:
    """One for each processor, stopped; they end with us, however we end."""
    libc = ctypes.CDLL(None)

    def begin() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setpriority(os.PRIO_PROCESS, 0, priority)

    command = [sys.executable, "-c", "while True: sum(range(100_000))"]
    loops: Loops = []
    try:
        for _ in os.sched_getaffinity(0):
            loops.append(subprocess.Popen(command, preexec_fn=begin, start_new_session=True))
            loops[-1].send_signal(signal.SIGSTOP)
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def may_stall(loops: Loops) -> bool:
    """Whether the system lets us take the policy back."""
    try:
        for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
            set_policy([loops[0].pid], policy)
    except PermissionError:
        return False
    return True


def stall(root: int, loops: Loops, ended: threading.Event, gap_s: float, seed: int) -> int:
    """Until it has ended; how often. gap_s: between two stalls, in the mean."""
    count, generator = 0, random.Random(seed)
    while not ended.wait(generator.expovariate(1 / gap_s)):
        try:
            threads = choose(root, generator)
            for loop in loops:
                loop.send_signal(signal.SIGCONT)
            set_policy(threads, os.SCHED_IDLE)
            time.sleep(generator.choice(STALLS_S))
        finally:
            set_free(root)
            for loop in loops:
                loop.send_signal(signal.SIGSTOP)
        count += 1
    return count


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gap", type=float, default=0.2, help="mean seconds between two stalls")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of threads and times")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args()
    if not 0 < options.gap < 1e6:
        parser.error(f"--gap {options.gap}: must be above 0, and below a million")
    if sys.platform != "linux":
        parser.error("needs Linux, whose SCHED_IDLE it uses")
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):  # the stalls end in time, however busy the rest is
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    with busy_loops(priority) as loops:
        if not may_stall(loops):
            parser.error("may not take SCHED_IDLE back: needs root, or CAP_SYS_NICE")
        started: list[subprocess.Popen[bytes]] = []
        missed: list[int] = []

        def hand_on(number: int, frame: Any) -> None:
            if number != signal.SIGINT:  # which the terminal has sent to the command, too
                missed.append(number)
                while started and missed:
                    started[0].send_signal(missed.pop())

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, hand_on)
        try:
            command = subprocess.Popen(
                options.command, preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, priority)
            )
        except OSError as error:
            parser.error(f"{options.command[0]}: {error.strerror}")
        started.append(command)
        while missed:
            command.send_signal(missed.pop())
        ended = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            stalls = pool.submit(stall, command.pid, loops, ended, options.gap, options.seed)
            code = command.wait()
            ended.set()
    print(f"{stalls.result()} stalls", file=sys.stderr)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
