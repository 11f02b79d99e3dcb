"""What a model runs in: decode and prefill in a control group with little more than its file.

    python benchmarks/memory.py MODEL --extra 300 --context 4096 --json out.json

For every size, a process of its own is put into a new memory group (v2 where the system has it,
else v1) whose limit is the file's size and so many MB more, and which holds its page cache, too:
the model is a copy that nobody has read. It then answers a prompt that fills most of the context.
Needs root, or a delegated group; where no group can be made it is RLIMIT_DATA (private memory
alone). Kernels are to be compiled before: that takes more memory than running.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import Bar, heading, show_bars, show_heading, write_bars

EXTRA = 300  # MB beside the file that must do
ROOT = Path("/sys/fs/cgroup")
_FREE = 1 << 20  # MB: no limit

# Runs in the group. The first argument is JSON.
WORK = """
import json, resource, sys, time
given = json.loads(sys.argv[1])
if given["rlimit"]:
    resource.setrlimit(resource.RLIMIT_DATA, (given["rlimit"], given["rlimit"]))
from llamba import LLM, SamplingParams

started = time.perf_counter()
with LLM(given["model"], context_length=given["context"], num_threads=given["threads"],
         max_sequences=1, **given["options"]) as llm:
    loaded = time.perf_counter() - started
    count = given["context"] - given["gen"] - 8
    ids = [100 + 7 * i % 1000 for i in range(count)]
    times = []
    params = SamplingParams(max_tokens=given["gen"], temperature=0, ignore_eos=True)
    for output in llm.submit({"prompt_token_ids": ids}, params):
        times += [time.perf_counter()] * (len(output.outputs[0].token_ids) - len(times))
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    private = {}
    for line in open("/proc/self/smaps_rollup"):
        words = line.split()
        if words[0] in ("Rss:", "Anonymous:"):
            private[words[0][:-1].lower()] = int(words[1]) * 1024
    print(json.dumps({
        "load_s": loaded, "ttft_s": times[0] - started - loaded,
        "prompt_tokens": count, "token_s": gaps[len(gaps) // 2],
        "kv_tokens": llm.config.kv_tokens, "step_tokens": llm.config.max_tokens,
        "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt, **private,
    }))
"""


class Group:
    """A memory group inside this process's own, for one child; a context manager."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.folder, self.kind = _make(limit)

    def enter(self) -> None:
        """Called in the child, before it becomes another program."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int | None:
        """Bytes at most, page cache included."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if self.folder is not None and (self.folder / name).exists():
                return int((self.folder / name).read_text())
        return None

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(50):
            try:
                if self.folder is not None:
                    self.folder.rmdir()
                return
            except OSError:  # its last process is about to go
                time.sleep(0.1)


def _make(limit: int) -> tuple[Path | None, str]:
    """The group's folder, and what it is."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names not in ("", "memory"):
            continue
        for top in (ROOT / names, ROOT / "unified"):
            folder = Path(f"{top}{path}") / f"llamba-memory-{os.getpid()}"
            file = "memory.limit_in_bytes" if names else "memory.max"
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                (folder / file).write_text(str(limit))
                return folder, f"cgroup v{1 if names else 2}"
            except OSError:
                folder.rmdir()
    return None, "RLIMIT_DATA"


def run(model: Path, limit: int, given: argparse.Namespace, options: dict[str, Any]) -> dict:
    """One process in a group of `limit` bytes; {} with "error" if it was refused or killed."""
    with Group(limit) as group:
        words = {
            "model": str(model), "context": given.context, "threads": given.threads,
            "gen": given.gen, "options": options,
            "rlimit": 0 if group.folder else limit - model.stat().st_size,
        }  # fmt: skip
        process = subprocess.run(
            [sys.executable, "-c", WORK, json.dumps(words)],
            preexec_fn=group.enter, capture_output=True, text=True, check=False,
        )  # fmt: skip
        peak = group.peak()
    found = {"limit": limit, "kind": group.kind, "options": options, "peak": peak}
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1:] or ["killed"]
        return {**found, "error": last[0], "code": process.returncode}
    return {**found, **json.loads(process.stdout.splitlines()[-1]), "said": process.stderr.strip()}


def unread_copy(model: Path, folder: Path) -> Path:
    """A copy of which nothing is in the page cache."""
    copy = folder / model.name
    shutil.copyfile(model, copy)
    forget(copy)
    return copy


def forget(file: Path) -> None:
    """Drop a file from the page cache."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="GGUF file")
    parser.add_argument("-c", "--context", type=int, default=4096)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--gen", type=int, default=32, help="decoded tokens [32]")
    parser.add_argument("-r", "--rounds", type=int, default=1)
    parser.add_argument(
        "--extra", type=int, nargs="+", default=[EXTRA],
        help="MB beside the file; negative: the file does not fit [300]",
    )  # fmt: skip
    parser.add_argument("--only", action="store_true", help="without a run that has no limit")
    parser.add_argument("--folder", type=Path, help="for the copy [the temporary one]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    given = parse()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        model = unread_copy(given.model, Path(folder))
        size = model.stat().st_size
        for _ in range(given.rounds):
            for extra in ([] if given.only else [_FREE]) + given.extra:
                forget(model)
                runs.append({"extra": extra, **run(model, size + extra * 1_000_000, given, {})})
    first = heading(given.threads, given.rounds)
    show_heading(first)
    bars = []
    if free := [1 / r["token_s"] for r in runs if r["extra"] == _FREE]:
        bars.append(Bar("decode, no limit", statistics.median(free), " tok/s"))
    for extra in given.extra:
        mine = [r for r in runs if r["extra"] == extra]
        name = f"file {'+' if extra >= 0 else '-'} {abs(extra)} MB, {mine[0]['kind']}"
        if errors := [r["error"] for r in mine if "error" in r]:
            bars.append(Bar(f"{name}: {errors[0]}", 0.0, "", 1.0 if extra >= EXTRA else None, True))
            continue
        speed = statistics.median(1 / r["token_s"] for r in mine)
        bars += [
            Bar(f"{name}: runs", 1.0, "", 1.0 if extra >= EXTRA else None, True),
            Bar(f"{name}: decode", speed, " tok/s"),
            Bar(f"{name}: first token", max(r["ttft_s"] for r in mine), " s"),
            Bar(f"{name}: private memory", max(r["anonymous"] for r in mine) / 1e6, " MB"),
            Bar(f"{name}: read from disk again", max(r["major_faults"] for r in mine), " times"),
        ]
    show_bars(f"{given.model.name}, context {given.context}", bars)
    write_bars(given.json, first, bars, model=given.model.name, runs=runs)


if __name__ == "__main__":
    main()
