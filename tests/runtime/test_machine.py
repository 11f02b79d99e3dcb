"""Threads and memory of a machine, read from fake trees of /proc and /sys (PAINS P70)."""

import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llamba.errors import InvalidParameterError, ResourceError
from llamba.runtime import threads
from llamba.runtime.config import EngineConfig, choose_context_length, choose_kv_tokens
from llamba.runtime.memory import MemoryNeed, available_memory, check_memory
from llamba.runtime.priority import lower_priority
from llamba.runtime.threads import default_num_threads

MB = 1 << 20
CPU = "sys/devices/system/cpu"


@pytest.fixture
def tree(tmp_path: Path) -> "Tree":
    """An empty machine."""
    return Tree(tmp_path)


class Tree:
    """Writes the files of a fake machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def cpus(self, siblings: dict[int, str]) -> None:
        for cpu, names in siblings.items():
            self.put(f"{CPU}/cpu{cpu}/topology/thread_siblings_list", names + "\n")


def affinity(monkeypatch: pytest.MonkeyPatch, cpus: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus, raising=False)


def test_smt_siblings_count_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, set(range(16)))
    tree.cpus({c: f"{c % 8},{c % 8 + 8}" for c in range(16)})
    assert default_num_threads(tree.root) == 8


def test_affinity_counts(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.cpus({c: f"{c % 8},{c % 8 + 8}" for c in range(16)})
    affinity(monkeypatch, {0, 1, 8, 9})  # two cores with both of their threads
    assert default_num_threads(tree.root) == 2
    affinity(monkeypatch, {0, 9})
    assert default_num_threads(tree.root) == 2


def test_efficiency_cores_are_left_out_x86(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, set(range(12)))
    tree.cpus({**{c: f"{c // 2 * 2}-{c // 2 * 2 + 1}" for c in range(8)}})
    tree.cpus({c: str(c) for c in range(8, 12)})
    tree.put("sys/devices/cpu_core/cpus", "0-7\n")
    tree.put("sys/devices/cpu_atom/cpus", "8-11\n")
    assert default_num_threads(tree.root) == 4
    affinity(monkeypatch, {8, 9, 10})  # nothing else is allowed
    assert default_num_threads(tree.root) == 3


def test_efficiency_cores_are_left_out_arm(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, set(range(8)))
    tree.cpus({c: str(c) for c in range(8)})
    for cpu, capacity in enumerate([400] * 4 + [870] * 3 + [1024]):
        tree.put(f"{CPU}/cpu{cpu}/cpu_capacity", f"{capacity}\n")
    assert default_num_threads(tree.root) == 4


def test_cores_of_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no affinity, and the kinds of cores have names."""
    monkeypatch.setattr(threads, "_affinity", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    levels = {"hw.physicalcpu": 10, "hw.perflevel0.physicalcpu": 6}
    monkeypatch.setattr(threads, "_sysctl", levels.get)
    assert default_num_threads() == 6 and default_num_threads(background=True) == 3
    levels.clear()
    assert default_num_threads() == 10


def test_half_of_the_threads_in_the_background(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, expected in ((1, 1), (2, 1), (5, 2), (8, 4)):
        affinity(monkeypatch, set(range(cpus)))
        assert default_num_threads(tree.root, background=True) == expected


def test_no_topology(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, {0, 1, 2})
    assert default_num_threads(tree.root) == 3
    monkeypatch.setattr(threads, "_affinity", lambda: None)  # macOS, Windows
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert default_num_threads(tree.root) == 1


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("400000 100000", 4), ("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)],
)
def test_quota_v2(tree: Tree, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int) -> None:
    affinity(monkeypatch, set(range(8)))
    tree.put("proc/self/cgroup", "0::/\n")
    tree.put("sys/fs/cgroup/cpu.max", quota + "\n")
    assert default_num_threads(tree.root) == expected


def test_quota_of_any_group_around_counts(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, set(range(8)))
    tree.put("proc/self/cgroup", "0::/a.slice/b.scope\n")
    tree.put("sys/fs/cgroup/a.slice/b.scope/cpu.max", "max 100000\n")
    tree.put("sys/fs/cgroup/a.slice/cpu.max", "300000 100000\n")
    assert default_num_threads(tree.root) == 3


def test_quota_v1(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, set(range(8)))
    tree.put("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n2:memory:/docker/abc\n0::/\n")
    # Inside of the container its group is the mount itself; /docker/abc is not there.
    tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n")
    tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert default_num_threads(tree.root) == 2
    tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    assert default_num_threads(tree.root) == 8


def test_this_machine() -> None:
    assert 1 <= default_num_threads() <= (os.cpu_count() or 1)
    assert (available_memory() or MB) > 0


def test_memory_of_the_machine(tree: Tree) -> None:
    tree.put("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    2048 kB\n")
    assert available_memory(tree.root) == 2 * MB


def test_memory_of_the_groups(tree: Tree) -> None:
    """Pages of files can be dropped: they do not count as used."""
    tree.put("proc/meminfo", f"MemAvailable: {1 << 30} kB\n")
    tree.put("proc/self/cgroup", "0::/app\n")
    tree.put("sys/fs/cgroup/app/memory.max", str(500 * MB))
    tree.put("sys/fs/cgroup/app/memory.current", str(300 * MB))
    stat = f"anon 5\ninactive_file {150 * MB}\nactive_file {50 * MB}\n"
    tree.put("sys/fs/cgroup/app/memory.stat", stat)
    assert available_memory(tree.root) == 400 * MB
    tree.put("sys/fs/cgroup/app/memory.max", "max\n")
    assert available_memory(tree.root) == 1 << 40


def test_memory_of_the_groups_v1(tree: Tree) -> None:
    tree.put("proc/meminfo", f"MemAvailable: {1 << 30} kB\n")
    tree.put("proc/self/cgroup", "4:memory:/x\n")
    tree.put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", str(500 * MB))
    tree.put("sys/fs/cgroup/memory/x/memory.usage_in_bytes", str(300 * MB))
    tree.put("sys/fs/cgroup/memory/x/memory.stat", f"total_inactive_file {100 * MB}\n")
    tree.put("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))
    tree.put("sys/fs/cgroup/memory/memory.usage_in_bytes", str(300 * MB))
    assert available_memory(tree.root) == 300 * MB


def test_what_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    need = MemoryNeed(weights=900 * MB, kv=800 * MB, arena=50 * MB)

    def check(available: int | None, setting: str = "context_length", advice: str = "") -> None:
        check_memory(need, available, setting=setting, num_tokens=4096, advice=advice)

    check(None)
    check(4096 * MB)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        check(1000 * MB)  # mapped weights may be dropped
    assert "900 MB" in caplog.text and "150 MB" in caplog.text
    with pytest.raises(ResourceError) as error:
        check(500 * MB)
    for part in ("context_length=4096", "800 MB", "50 MB", "500 MB", "about 1632 fits"):
        assert part in str(error.value)
    with pytest.raises(ResourceError, match="kv_tokens=4096 .*smaller kv_tokens .* fits. or less"):
        check(500 * MB, "kv_tokens", " or less")
    with pytest.raises(ResourceError, match="smaller model"):
        check(100 * MB)
    kept = replace(need, kept=True)  # read in, or locked: they are not mapped any more
    with pytest.raises(ResourceError, match="900 MB for weights that are kept.*mlock out"):
        check_memory(kept, 1000 * MB, setting="context_length", num_tokens=4096)
    # Tables of which a row is looked up may be dropped.
    check_memory(replace(need, streamed=MB), 1000 * MB, setting="kv_tokens", num_tokens=64)


def test_what_is_over_the_limit() -> None:
    need = MemoryNeed(weights=900 * MB, kv=800 * MB, arena=50 * MB)

    def check(limit: int) -> None:
        check_memory(need, None, setting="kv_tokens", num_tokens=4096, advice=" or X", limit=limit)

    check(1878 * MB)
    with pytest.raises(ResourceError) as error:
        check(1600 * MB)
    for part in ("900 MB", "kv_tokens=4096", "800 MB", "50 MB", "128 MB", "memory_limit=", "or X"):
        assert part in str(error.value)
    assert "(about 2656 fits)" in str(error.value) and "1878M or more" in str(error.value)
    higher = r"pass a higher memory_limit \(1878M or more; with kv_tokens=64, 1091M\)"
    with pytest.raises(ResourceError, match=higher):
        check(1000 * MB)


def test_context_length() -> None:
    def choose(wanted: int | None, model: int, budget: int | None = None) -> int:
        return choose_context_length(wanted, model, kv_bytes_per_page=MB, budget=budget)

    assert choose(None, 2048) == 2048
    assert choose(None, 131072) == 8192
    assert choose(16384, 131072) == 16384
    assert choose(None, 131072, budget=130 * MB) == 4096
    assert choose(None, 131072, budget=0) == 512
    assert choose(8192, 131072, budget=0) == 8192  # a wish is not changed silently
    for bad in (0, -1, 131073, 1.5, "1", True):
        with pytest.raises(InvalidParameterError, match="context_length"):
            choose(bad, 131072)  # type: ignore[arg-type]


def test_kv_tokens() -> None:
    def choose(wanted: int | None, context: int, budget: int | None = None) -> int:
        return choose_kv_tokens(wanted, context, kv_bytes_per_page=MB, budget=budget)

    assert choose(None, 2048) == 4096  # as much again for others
    assert choose(None, 2048, budget=1000 * MB) == 4096
    assert choose(None, 2048, budget=100 * MB) == 3200
    assert choose(None, 2048, budget=0) == 2048  # never less than a context
    assert choose(None, 10, budget=0) == 64
    assert choose(64, 2048) == 64  # smaller than a context: the longest sequence is the pool
    assert choose(10**6, 2048, budget=0) == 10**6  # a wish is not changed silently
    for bad in (0, 63, -1, 1 << 29, 64.0, True, "64"):
        with pytest.raises(InvalidParameterError, match="kv_tokens=.*from 64 to"):
            choose(bad, 2048)  # type: ignore[arg-type]


def test_engine_config() -> None:
    def config(**options: Any) -> EngineConfig:
        return EngineConfig(**{"context_length": 32, "num_threads": 1, **options})

    assert config(context_length=33).num_pages == 2
    assert config().num_pages == 2 and config().max_sequence_length == 32
    assert config(kv_tokens=100).num_pages == 4 and config(kv_tokens=100).max_sequence_length == 32
    assert config(context_length=1000, kv_tokens=100).max_sequence_length == 128
    assert config().max_sequences == 16 and config(max_sequences=256).max_sequences == 256
    for name, bad in [
        ("num_threads", 0),
        ("num_threads", 1.0),
        ("context_length", True),
        ("max_sequences", 0),
        ("max_sequences", 257),
        ("kv_tokens", 63),
        ("kv_tokens", False),
        ("deterministic", 1),
        ("deterministic", None),
        ("prefix_cache", "yes"),
        ("cache_type", None),
        ("mmap", 1),
        ("mlock", "no"),
        ("nice", 20),
        ("nice", False),
        ("background", None),
    ]:
        with pytest.raises(InvalidParameterError, match=f"{name}={bad!r}"):
            config(**{name: bad})
    with pytest.raises(InvalidParameterError, match="activations='f8'.*int8, float32"):
        config(activations="f8")
    with pytest.raises(InvalidParameterError, match="cache_type='q4_0'.*f16, f32, q8_0"):
        config(cache_type="q4_0")


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_only_the_given_threads_become_polite(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(30,))
    thread.start()
    try:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        lower_priority([thread], 19)
        assert thread.native_id is not None
        assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == 19
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    finally:
        done.set()
        thread.join()


def test_priority_that_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse, raising=False)
    lower_priority([threading.current_thread()], -5)
    assert "nice=-5 is left out" in caplog.text
    caplog.clear()
    lower_priority([threading.current_thread()], 0)
    assert not caplog.records
