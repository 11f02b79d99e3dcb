"""Which target a CPU gets, what it may be told to be, and what it is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import llamba
from llamba.errors import KernelError
from llamba.quant import jit, kernel_cache
from llamba.quant import target as target_module
from llamba.quant.cpuinfo import cpuinfo_features
from llamba.quant.target import (
    NAMED_TARGETS,
    Target,
    check_runs_here,
    classify,
    compatible,
    named,
    target,
)

_host = target_module._host.__wrapped__  # each time anew

V1 = frozenset({"sse2"})
V2 = V1 | {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"}
V3 = V2 | {"avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Real CPUs, by what LLVM reports of them.
CPUS = [
    ("k8-sse3", V1 | {"sse3"}, "sse2"),
    ("core2", V1 | {"sse3", "ssse3"}, "sse2"),
    ("amdfam10", V1 | {"sse3", "sse4a", "popcnt", "lzcnt"}, "sse2"),
    ("penryn", V1 | {"sse3", "ssse3", "sse4.1"}, "sse4"),
    ("nehalem", V2, "sse4"),
    ("goldmont", V2 | {"movbe"}, "sse4"),
    ("sandybridge", V2 | {"avx"}, "sse4"),
    ("ivybridge", V2 | {"avx", "f16c"}, "sse4"),
    ("bdver2", V2 | {"avx", "fma", "f16c", "xop"}, "sse4"),
    ("haswell", V3, "avx2"),
    ("znver3", V3, "avx2"),
    ("knl", V3 | {"avx512f", "avx512cd"}, "avx2"),
    ("skylake-avx512", V4, "avx512bw"),
    ("alderlake", V3 | {"gfni", "avxvnni"}, "avxvnni"),
    ("cascadelake", V4 | {"avx512vnni"}, "avx512vnni"),
    ("znver5", V4 | {"avx512vnni", "avxvnni", "gfni"}, "avx512vnni"),
]


def host(monkeypatch: pytest.MonkeyPatch, cpu: str, features: dict[str, bool]) -> Target:
    """This machine becomes an x86-64 one of which LLVM reports this."""
    monkeypatch.setattr(target_module, "machine", lambda: "x86_64")
    monkeypatch.setattr(target_module, "_reported", lambda: (cpu, features))
    monkeypatch.setattr(target_module, "_host", _host)
    monkeypatch.delenv("LLAMBA_TARGET", raising=False)
    return target.__wrapped__()


@pytest.mark.parametrize(("cpu", "features", "isa"), CPUS)
def test_real_cpus(cpu: str, features: frozenset[str], isa: str) -> None:
    found = classify(cpu, features, "x86_64")
    assert (found.cpu, found.isa, found.enabled) == (cpu, isa, features)
    assert (found.lanes, found.rows) == ((16, 8) if "512" in isa else (8, 4))


@pytest.mark.parametrize("hidden", ["ssse3", "sse4.1"])
def test_a_level_needs_those_below_it(hidden: str) -> None:
    assert classify("haswell", V3 - {hidden}, "x86_64").isa == "sse2"


def test_another_architecture() -> None:
    with pytest.raises(KernelError, match="riscv64"):
        classify("generic", frozenset(), "riscv64")


@pytest.mark.parametrize(
    ("name", "isa", "lanes"),
    [
        ("x86-64", "sse2", 8),
        ("x86-64-v2", "sse4", 8),
        ("avx2", "avx2", 8),
        ("avxvnni", "avxvnni", 8),
        ("avx512bw", "avx512bw", 16),
        ("avx512", "avx512vnni", 16),
    ],
)
def test_named_targets(monkeypatch: pytest.MonkeyPatch, name: str, isa: str, lanes: int) -> None:
    monkeypatch.setenv("LLAMBA_TARGET", name)
    found = target.__wrapped__()
    assert (found.isa, found.lanes, found.cpu) == (isa, lanes, NAMED_TARGETS[name][1])
    assert not any(f.startswith("-") for f in found.features.split(","))


def test_unknown_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMBA_TARGET", "z80")
    with pytest.raises(KernelError, match=r"'z80' is not a known target \(known: host, x86-64, "):
        target.__wrapped__()


# ---- the host ----------------------------------------------------------------------------------
def test_a_virtual_machine_hides_what_the_name_implies(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM takes features from a CPU's name: those that are off must be named."""
    import llvmlite.binding as llvm

    hidden = {name: False for name in V3 - V2}
    found = host(monkeypatch, "haswell", {**dict.fromkeys(V2, True), **hidden})
    assert found.isa == "sse4" and "-avx2" in found.features.split(",")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly("""
define <8 x float> @f(<8 x float> %x, <8 x i32> %y) {
  %z = sitofp <8 x i32> %y to <8 x float>
  %r = fmul <8 x float> %x, %z
  ret <8 x float> %r
}""")

    def code(features: str) -> str:
        machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
            cpu="haswell", features=features
        )
        return machine.emit_assembly(module)

    assert "ymm" not in code(found.features) and "mulps" in code(found.features)
    assert "ymm" in code("")
    whole = host(monkeypatch, "haswell", dict.fromkeys(V3, True))
    assert kernel_cache.cache_key(found) != kernel_cache.cache_key(whole)


def test_what_the_system_does_not_save_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM reports it so: an AVX-512 CPU whose system saves 256 bits only."""
    features = {**dict.fromkeys(V3, True), **dict.fromkeys(V4 - V3, False), "avx512vnni": False}
    assert host(monkeypatch, "cascadelake", features).isa == "avx2"


def test_llvm_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Linux is asked; and with no answer there, x86-64 has SSE2 in any case."""
    monkeypatch.setattr(target_module, "cpuinfo_features", lambda: dict.fromkeys(V3, True))
    found = host(monkeypatch, "", {})
    assert (found.cpu, found.isa) == ("x86-64", "avx2")
    monkeypatch.setattr(target_module, "cpuinfo_features", lambda: {"sse2": False, "avx": False})
    found = host(monkeypatch, "generic", {})
    assert (found.cpu, found.isa) == ("x86-64", "sse2")


def test_llvm_cannot_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    def fail() -> dict[str, bool]:
        raise RuntimeError("failed to get host cpu features.")

    monkeypatch.setattr(llvm, "get_host_cpu_features", fail)
    assert target_module._reported() == ("", {})


def test_cpuinfo(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    assert not any(cpuinfo_features(path).values())
    path.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\n")
    assert not any(cpuinfo_features(path).values())
    path.write_text(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 pni ssse3 sse4_1 sse4_2 "
        "popcnt avx avx2 f16c fma bmi1 bmi2 abm movbe avx_vnni\nvmx flags\t: vnmi avx512f\n"
    )
    on = {name for name, enabled in cpuinfo_features(path).items() if enabled}
    assert on == V3 | {"avxvnni"}


# ---- which code a host may run -----------------------------------------------------------------
def test_compatible(monkeypatch: pytest.MonkeyPatch) -> None:
    def isas(features: frozenset[str]) -> list[str]:
        return [t.isa for t in compatible(host(monkeypatch, "x", dict.fromkeys(features, True)))]

    assert isas(V1) == ["sse2"]
    assert isas(V2) == ["sse4", "sse2"]
    assert isas(V3) == ["avx2", "sse4", "sse2"]
    assert isas(V3 | {"gfni", "avxvnni"}) == ["avxvnni", "avx2", "sse4", "sse2"]
    assert isas(V4) == ["avx512bw", "avx2", "sse4", "sse2"]
    everything = V4 | {"avx512vnni", "gfni", "avxvnni"}
    assert isas(everything) == ["avx512vnni", "avxvnni", "avx512bw", "avx2", "sse4", "sse2"]


def test_compatible_on_arm() -> None:
    _, _, features = NAMED_TARGETS["cortex-a76"]
    on = {feature[1:] for feature in features.split(",")} - {"v8.2a"}
    found = classify("cortex-a76", frozenset({*on, "crc"}), "aarch64")
    assert [t.cpu for t in compatible(found)] == ["cortex-a76", "cortex-a72"]


def test_code_that_this_cpu_cannot_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything is compiled or loaded."""
    found = host(monkeypatch, "nehalem", dict.fromkeys(V2, True))
    check_runs_here(found)
    check_runs_here(named("x86-64-v2"))
    check_runs_here(named("x86-64"))
    message = (
        r"kernels for haswell can't run on this CPU \(nehalem\), which lacks avx, avx2, .*"
        r"LLAMBA_TARGET may be host, x86-64-v2, x86-64 here"
    )
    with pytest.raises(KernelError, match=message):
        check_runs_here(named("avx2"))
    monkeypatch.setattr(jit, "target", lambda: named("avx2"))
    monkeypatch.setattr(jit, "_addresses", {})
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path))
    with pytest.raises(KernelError, match=message):
        jit.load(["runtime.kernels.cpu.gather:gather_rows"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("here", "name", "message"),
    [
        ("x86_64", "cortex-a76", "kernels for cortex-a76 can't run on this x86_64 machine"),
        ("aarch64", "avx2", "kernels for haswell can't run on this aarch64 machine"),
    ],
)
def test_code_of_another_architecture_is_refused(
    monkeypatch: pytest.MonkeyPatch, here: str, name: str, message: str
) -> None:
    monkeypatch.setattr(target_module, "machine", lambda: here)
    with pytest.raises(KernelError, match=message):
        check_runs_here(named(name))


def test_p69_a_cpu_below_numpys_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before NumPy is imported, which would end in SIGILL."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse sse2 pni ssse3 lm\n")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.4.6")
    with pytest.raises(KernelError, match=r"lacks popcnt, sse4_1, sse4_2, .* 'numpy<2.4'"):
        llamba.check_cpu(str(cpuinfo))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.3.5")
    llamba.check_cpu(str(cpuinfo))
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # ARM
    llamba.check_cpu(str(cpuinfo))
    llamba.check_cpu(str(tmp_path / "none"))


# ---- what code calls ---------------------------------------------------------------------------
@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_calls_that_code_generation_adds(triple: str) -> None:
    """Half floats are library calls where the CPU has none: found in the object file only."""
    import llvmlite.binding as llvm

    from llamba.quant.elf import read_object

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly("""
declare i32 @sched_yield()
declare float @llvm.sin.f32(float)
define float @f(half %x) {
  %y = fpext half %x to float
  %z = call float @llvm.sin.f32(float %y)
  %n = call i32 @sched_yield()
  ret float %z
}""")
    machine: Any = llvm.Target.from_triple(triple).create_target_machine()
    added = {"__extendhfsf2"} if triple.startswith("x86") else set()
    found = read_object(machine.emit_object(module))
    assert found.undefined == {"sched_yield", "sinf"} | added
    assert found.arch == triple.split("-")[0]


@pytest.mark.kernels
def test_a_kernel_that_calls_such_a_function_is_not_compiled() -> None:
    """The message names the function: here those that are otherwise allowed."""
    code = (
        "from llamba.quant import compiler as c; c.ALLOWED = set(); c.leave_code_to_us(); "
        "c.compile_kernel('runtime.kernels.cpu.interpreter:run_program')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: runtime.kernels.cpu.interpreter:run_program calls ")
    assert "sched_yield" in last
