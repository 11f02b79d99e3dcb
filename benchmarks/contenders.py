"""The contenders: a runtime at one setting, in a process that keeps its model loaded.

Only the one being measured runs, all others are stopped (SIGSTOP), so that no pool of threads spins
beside it. POSIX only.
"""

import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

# Name -> (kind in runtimes.py, environment in the peers' folder, settings). A peer counts by the
# best of its settings, for every test apart.
CONTENDERS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "llama.cpp repack": ("llama.cpp", "llama", {"repack": True, "flash_attn": True}),
    "llama.cpp no-repack": ("llama.cpp", "llama", {"repack": False, "flash_attn": True}),
    "llama.cpp repack no-fa": ("llama.cpp", "llama", {"repack": True, "flash_attn": False}),
    "llama.cpp no-repack no-fa": ("llama.cpp", "llama", {"repack": False, "flash_attn": False}),
    "ik_llama.cpp": ("ik_llama.cpp", "ik", {"repack": False, "flash_attn": True}),
    "ik_llama.cpp rtr": ("ik_llama.cpp", "ik", {"repack": True, "flash_attn": True}),
    "llamba": ("llamba", None, {"activations": "int8"}),
}
# The same on a CPU without AVX-512; these take part when a pattern of --contenders says "avx2".
CONTENDERS |= {
    "llama.cpp avx2 repack": ("llama.cpp", "llama-avx2", {"repack": True, "flash_attn": True}),
    "llama.cpp avx2 no-repack": ("llama.cpp", "llama-avx2", {"repack": False, "flash_attn": True}),
    "llamba avx2": ("llamba", None, {"activations": "int8"}),
}
ENVIRONMENTS = {"llamba avx2": {"LLAMBA_TARGET": "avx2"}}


class Contender:
    """A contender's process; stopped whenever it is not being measured."""

    def __init__(self, name: str, python: str, kind: str, job: dict[str, Any]) -> None:
        """Start it, wait until its model is loaded, then stop it."""
        self.name = name
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), kind, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | ENVIRONMENTS.get(name, {}),
            text=True,
        )
        self.ready = self._answer()
        self.process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        tail = self.errors.read().decode(errors="replace").splitlines()[-8:]
        raise SystemExit(f"{self.name} failed:\n  " + "\n  ".join(tail))

    def measure(self, command: dict[str, Any]) -> dict[str, float]:
        """One sample, with the share of the machine that other processes took meanwhile."""
        assert self.process.stdin
        self.process.send_signal(signal.SIGCONT)
        busy, begin = busy_seconds(), time.perf_counter()
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        sample = self._answer()
        wall = time.perf_counter() - begin
        others = busy_seconds() - busy - sample["cpu_s"]
        self.process.send_signal(signal.SIGSTOP)
        sample["others"] = max(0.0, others / (wall * (os.cpu_count() or 1)))
        return sample

    def close(self) -> None:
        """End it, stopped or not."""
        self.process.kill()
        self.process.wait()
        self.errors.close()


def busy_seconds() -> float:
    """CPU seconds that the whole machine has spent since it started (Linux; else 0)."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def named(patterns: Sequence[str]) -> list[str]:
    """The contenders that match any of the shell patterns; `!x` leaves those matching x out."""
    wanted = [p for p in patterns if not p.startswith("!")] or ["*"]
    left_out = [p[1:] for p in patterns if p.startswith("!")]

    def matches(name: str, among: Sequence[str]) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in among)

    if not any("avx2" in pattern for pattern in wanted):
        left_out.append("*avx2*")
    names = [n for n in CONTENDERS if matches(n, wanted) and not matches(n, left_out)]
    if not names:
        raise SystemExit(f"no contender matches {list(patterns)}; there are {list(CONTENDERS)}")
    return names


def python_of(peers: Path | None, environment: str | None) -> str:
    """The interpreter that runs a contender."""
    if environment is None:
        return sys.executable
    if peers is None:
        raise SystemExit("--peers FOLDER is needed for the peers (or --contenders 'llamba')")
    python = peers / environment / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is not there: run {HERE.name}/setup_peers.sh {peers} first")
    return str(python)


@contextlib.contextmanager
def started(
    model: Path,
    names: Sequence[str],
    *,
    peers: Path | None,
    threads: int,
    context: int,
    sequences: int = 1,
) -> Iterator[list[Contender]]:
    """The contenders for one model, one loaded after the other.

    `context`: tokens of one sequence, rounded up to what all of them can have (256).
    """
    contenders: list[Contender] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that none is left behind, stopped
    try:
        for name in names:
            kind, environment, settings = CONTENDERS[name]
            job = {
                "model": str(model),
                "threads": threads,
                "context": -(-context // 256) * 256,
                "sequences": sequences,
                **settings,
            }
            python = python_of(peers, environment)
            print(f"{model.stem}: loading {name}", file=sys.stderr)
            contenders.append(Contender(name, python, kind, job))
        yield contenders
    finally:
        for contender in contenders:
            contender.close()


def rotated(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """The order of one round: another one begins each time."""
    turn = number % len(contenders)
    return [*contenders[turn:], *contenders[:turn]]
