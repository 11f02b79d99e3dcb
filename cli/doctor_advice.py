"""What `llamba doctor` advises: a sentence for everything that makes it slow here."""

from collections.abc import Iterator
from typing import Any

# What the code for an instruction set lacks beside the best of its family, and what that costs:
# prefill, in which arithmetic counts, more than decode, in which memory does. The costs are
# estimated from the instructions that take the place of one.
_NO_VNNI = (
    "8-bit products take two or three instructions instead of one; prompts are read at half to two "
    "thirds of the speed of a CPU that has it (an estimate)"
)
_NO_AVX2 = "vectors have 128 bits; prompts are read at a third of the speed or less (an estimate)"
_ISA = {
    "avx512bw": f"no AVX-512 VNNI: {_NO_VNNI}",
    "avx2": f"no AVX-512 VNNI or AVX-VNNI: {_NO_VNNI}",
    "sse4": f"no AVX2: {_NO_AVX2}",
    "sse2": f"neither AVX2 nor SSE4.1: {_NO_AVX2}",
    "neon": "no dotprod: 8-bit products are put together from several instructions; prompts are "
    "read at half of the speed of a CPU that has it, as of a Raspberry Pi 5 (an estimate)",
}
_LARGE = 0.8  # share of the weights
_BUSY = 1.5  # times the cores: so many want to run


def advice(found: dict[str, Any]) -> list[str]:
    """Of `examine` and what was measured; nothing to say is [].

    >>> advice({"threads": 2, "huge_pages": "never", "models": "1 (1 GB)"})
    ['huge pages are off (never): with madvise or always, decoding may be a fifth faster']
    """
    return list(_all(found))


def _all(found: dict[str, Any]) -> Iterator[str]:
    model = found.get("model") or {}
    if "because" in model:
        yield f"this model is limited by {model['limit']}: {model['because']}"
    large = model.get("in_large_pieces", 1.0)
    if large < _LARGE and found.get("huge_pages") != "never":
        why = (
            "(this file system has no others): decoding may be a fifth slower than with --no-mmap, "
            "which takes as much memory for the process itself"
        )
        if large > 0.0:
            why = (
                "because other programs read it before: decoding may be a fifth slower. "
                f"`dd if={model['path']} iflag=nocache count=0` lets the system forget it, and the "
                "next start reads it anew; --no-mmap takes memory of its own instead"
            )
        yield f"{1 - large:.0%} of the model lies in memory in pieces of 4 kB, not 2 MB, {why}"
    target = str(found.get("target", ""))
    if target.startswith("none:"):
        yield f"there are no kernels for this CPU ({target[6:]})"
    elif "why_not" in (found.get("bandwidth") or {}):
        yield f"no model runs with these kernels: {found['bandwidth']['why_not']}"
    isa = target.rpartition("kernels for ")[2].split(" ")[0]
    if "kernels for" in target and isa in _ISA:
        yield _ISA[isa]
    load, threads = found.get("load"), found.get("threads") or 1
    if load is not None and load > _BUSY * threads:
        yield (
            f"the machine is busy (load {load:.1f} on {threads} cores): what is measured is too "
            "low, and answers are slow until the others are done"
        )
    why = found.get("why") or {}
    if why.get("quota", "none") != "none":
        yield f"a control group limits the CPU to {why['quota']}: more threads would only wait"
    cublas = str((found.get("cuda") or {}).get("cuBLAS", ""))
    if cublas.startswith("none: "):
        yield f"the GPU is not used: {cublas[6:]}"
    yield from _of_the_machine(found)
    for where, disk in (("the cache", found.get("disk")), ("the model", model.get("file_system"))):
        if disk and "slow" in disk:
            yield (
                f"{where} lies on {disk['kind']}, {disk['slow']}: the first load is slow, and "
                "every one if memory does not hold the model (LLAMBA_CACHE moves the cache)"
            )


def _of_the_machine(found: dict[str, Any]) -> Iterator[str]:
    clocks, heat = found.get("clocks") or {}, found.get("heat") or {}
    if clocks.get("held down"):
        held = ", ".join(str(v) for k, v in clocks.items() if k != "held down")
        yield (
            f"the clock is held down ({held}): `echo performance | sudo tee "
            "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor` chooses another governor; "
            "scaling_max_freq beside it is the most that is allowed"
        )
    if "throttled" in heat:
        yield (
            f"the CPU slows itself down, or has done so since the start ({heat['throttled']}): "
            "it wants cooling, or a stronger power supply"
        )
    power = str(found.get("power") or "")
    if power.startswith("battery") or "low-power" in power:
        yield f"it runs on {power}: clocks may be lower than on mains"
    if found.get("huge_pages") == "never":
        yield ("huge pages are off (never): with madvise or always, decoding may be a fifth faster")
    for folder, room in (found.get("groups") or {}).items():
        yield f"the control group {folder} limits memory: {room}"
