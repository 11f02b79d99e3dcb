"""`llamba doctor`: facts from fake trees of /proc and /sys, what it measures, what it advises."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llamba.cli import doctor_machine as machine
from llamba.cli.doctor import cpu_model
from llamba.cli.doctor_advice import advice
from llamba.cli.doctor_speed import bytes_per_token, large_pieces, limits
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights

CPU = "sys/devices/system/cpu"


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str], None]:
    def write(path: str, text: str) -> None:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    return write


def test_clocks_that_are_held_down(put: Callable[[str, str], None], tmp_path: Path) -> None:
    assert machine.clocks(tmp_path) == {}
    for name, value in (
        ("scaling_governor", "powersave\n"),
        ("scaling_driver", "cpufreq-dt\n"),
        ("cpuinfo_max_freq", "2400000\n"),
        ("scaling_max_freq", "2400000\n"),
    ):
        put(f"{CPU}/cpu0/cpufreq/{name}", value)
    found = machine.clocks(tmp_path)
    assert found["governor"] == "powersave (cpufreq-dt)" and found["held down"]
    assert found["clock"] == "up to 2.40 of 2.40 GHz"
    assert "scaling_governor" in "".join(advice({"clocks": found}))
    put(f"{CPU}/cpu0/cpufreq/scaling_driver", "intel_pstate\n")
    assert "held down" not in machine.clocks(tmp_path)
    put(f"{CPU}/cpu0/cpufreq/scaling_max_freq", "1500000\n")
    assert machine.clocks(tmp_path)["held down"]


def test_heat(
    put: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert machine.heat(tmp_path) == {}
    put("sys/class/thermal/thermal_zone0/temp", "81500\n")
    put(f"{CPU}/cpu3/thermal_throttle/core_throttle_count", "7\n")
    found = machine.heat(tmp_path)
    assert found == {"temperature": "82 C", "throttled": "7 times since the start"}
    assert "slows itself down" in "".join(advice({"heat": found}))
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/vcgencmd")
    monkeypatch.setattr(machine, "_vcgencmd", lambda: "throttled=0x1\n")
    assert machine.heat(tmp_path)["throttled"] == "the voltage is too low"
    assert machine.pi_throttling("") == machine.pi_throttling("throttled=0x0\n") == []
    assert machine.pi_throttling("VCHI initialization failed") == []


def test_the_cpu_has_a_name(put: Callable[[str, str], None], tmp_path: Path) -> None:
    put("proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    put("proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd0b\n")
    assert cpu_model(tmp_path) == "Raspberry Pi 5 Model B Rev 1.0"
    put("proc/cpuinfo", "model\t\t: 17\nmodel name\t: AMD EPYC\n")
    assert cpu_model(tmp_path) == "AMD EPYC"


def test_where_things_lie(put: Callable[[str, str], None], tmp_path: Path) -> None:
    put(
        "proc/self/mountinfo",
        "22 1 179:2 / / rw shared:1 - ext4 /dev/mmcblk0p2 rw\n"
        f"30 22 0:40 / {tmp_path}/nas rw - nfs4 server:/x rw\n"
        f"31 22 8:1 / {tmp_path}/disk rw - xfs /dev/sda1 rw\n",
    )
    put("sys/block/mmcblk0/device/type", "SD\n")
    put("sys/block/sda/queue/rotational", "1\n")
    for folder, kind, slow in (
        ("nas/models", "nfs4", "network"),
        ("disk", "xfs", "spinning"),
        ("home/pi", "ext4", "SD card"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        found = machine.file_system(tmp_path / folder / "not there yet", tmp_path)
        assert found["kind"] == kind and slow in found["slow"]
        assert "first load is slow" in "".join(advice({"disk": found}))
    put("sys/block/mmcblk0/device/type", "MMC\n")
    assert machine.file_system(tmp_path / "home", tmp_path) == {"kind": "ext4"}


def test_power_pages_and_groups(put: Callable[[str, str], None], tmp_path: Path) -> None:
    assert machine.power(tmp_path) is None and machine.huge_pages(tmp_path) is None
    put("sys/class/power_supply/AC/type", "Mains\n")
    put("sys/class/power_supply/AC/online", "0\n")
    put("sys/firmware/acpi/platform_profile", "low-power\n")
    assert machine.power(tmp_path) == "battery, profile low-power"
    put("sys/class/power_supply/AC/online", "1\n")
    assert machine.power(tmp_path) == "mains, profile low-power"
    put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    assert machine.huge_pages(tmp_path) == "never"
    put("proc/self/cgroup", "0::/\n")
    put("sys/fs/cgroup/memory.max", "1000000000\n")
    put("sys/fs/cgroup/memory.current", "400000000\n")
    groups = machine.memory_groups(tmp_path)
    assert list(groups.values()) == ["600.0 MB left"]
    assert "limits memory: 600.0 MB" in "".join(advice({"groups": groups}))


def test_what_limits() -> None:
    run: dict[str, Any] = {"of_ceiling": 0.8, "waiting": 0.1, "disk_reads_per_token": 0.0}
    assert limits(run)[0] == "memory"
    assert limits(run | {"of_ceiling": 0.3})[0] == "arithmetic"
    assert limits(run | {"waiting": 0.5})[0] == "threads waiting"
    assert limits(run | {"waiting": 0.5, "disk_reads_per_token": 2.0})[0] == "disk"


def test_advice_about_the_target() -> None:
    assert advice({"target": "znver4, kernels for avx512vnni"}) == []
    for isa, lacks in (
        ("avx512bw", "no AVX-512 VNNI"),
        ("avx2", "no AVX-512 VNNI or AVX-VNNI"),
        ("sse4", "no AVX2"),
        ("sse2", "neither AVX2 nor SSE4.1"),
        ("neon", "no dotprod"),
    ):
        (said,) = advice({"target": f"x, kernels for {isa} (LLAMBA_TARGET=y)"})
        assert said.startswith(f"{lacks}: ") and said.endswith("(an estimate)")
    assert "no kernels" in advice({"target": "none: this CPU lacks everything"})[0]
    assert "busy" in advice({"load": 9.0, "threads": 2})[0]
    assert "can't run" in advice({"bandwidth": {"why_not": "kernels for x can't run"}})[0]
    assert "2.5 CPUs" in advice({"why": {"quota": "2.5 CPUs"}})[0]


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_what_a_token_reads(tiny_models: ModuleType, tmp_path: Path, name: str) -> None:
    """All weights once: of experts those that it uses, of the embeddings a row."""
    with GGUFFile.open(tiny_models.write(tmp_path, name, "F32")) as gguf:
        weights = Weights.open(gguf)
        experts, expected = weights.hyperparameters.experts, 0
        for tensor, info in gguf.tensors.items():
            if "_exps." in tensor:
                assert experts is not None and experts.used < experts.count
                expected += info.num_bytes // experts.count * experts.used
            elif tensor != "token_embd.weight" or "output.weight" not in gguf.tensors:
                expected += info.num_bytes
        assert bytes_per_token(weights) == expected


def test_bad_numbers_of_threads(invoke: Callable[..., Any]) -> None:
    result = invoke("doctor", "--no-measure", "-t", "0")
    assert result.exit_code == 2 and "--threads 0" in result.stderr


def test_pieces_of_a_mapped_model(tmp_path: Path) -> None:
    """What share of it is mapped by 2 MB, by the kernel's own account."""
    model = tmp_path / "m.gguf"
    smaps = tmp_path / "smaps"
    smaps.write_text(f"""7f0000000000-7f0040000000 r--s 00000000 fe:00 12 {model}
Size:            1048576 kB
Rss:             1000000 kB
FilePmdMapped:    250000 kB
VmFlags: rd mr me ms hg
7f0050000000-7f0050001000 r--p 00000000 fe:00 13 /usr/lib/other.so
Rss:                   4 kB
FilePmdMapped:         0 kB
""")
    assert large_pieces([model], smaps) == {"in_large_pieces": 0.25}
    assert large_pieces([tmp_path / "other.gguf"], smaps) == {}
    assert large_pieces([model], tmp_path / "none") == {}
    some = {"in_large_pieces": 0.25, "path": str(model)}
    assert f"dd if={model} iflag=nocache" in advice({"model": some})[0]
    assert "--no-mmap" in advice({"model": {"in_large_pieces": 0.0, "path": "x"}})[0]
    assert advice({"model": {"in_large_pieces": 0.99, "path": "x"}}) == []
