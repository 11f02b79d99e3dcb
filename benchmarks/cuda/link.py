"""What lies between Python and the GPU costs: launches, graphs, copies, events, cuBLAS.

python benchmarks/cuda/link.py [DEVICE] [--only launches,copies,products,loading] [--json out.json]

Needs no kernels from a cache: the empty one is written here. Products are those of Llama 3.1 8B's
matrices in float16, in a graph, over copies that together don't fit into the GPU's cache.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from package import use_checkout

use_checkout()

from llamba.errors import DeviceError  # noqa: E402
from llamba.runtime.cuda import driver, kernel_modules  # noqa: E402
from llamba.runtime.cuda.nvidia import NvidiaDevice  # noqa: E402
from llamba.runtime.kernels.cuda.launch import Gemm, Launch  # noqa: E402

NODES, REPEATS = 300, 20
EMPTY = """.version 7.0
.target sm_80
.address_size 64
.visible .entry llamba_empty(
	.param .u64 llamba_empty_param_0,
	.param .u64 llamba_empty_param_1,
	.param .u64 llamba_empty_param_2,
	.param .u64 llamba_empty_param_3,
	.param .u64 llamba_empty_param_4
)
.maxntid 256
{
	ret;
}
"""
EARLY = (
    EMPTY.replace(".version 7.0", ".version 7.8")
    .replace("sm_80", "sm_90")
    .replace("ret;", "griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;\n\tret;")
)
MATRICES = {  # of Llama 3.1 8B: rows, columns
    "q, k, v": (6144, 4096),
    "attention's output": (4096, 4096),
    "gate and up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
TOKENS = (16, 64, 128, 512, 2048)
CACHE_BYTES = 128 << 20  # more than any GPU's
Row = tuple[str, float, str]


def timed(call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Seconds of a call, the median."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return median(found)


def launches(device: NvidiaDevice) -> list[Row]:
    """An empty kernel of five arguments, 300 times."""
    rows: list[Row] = []
    kinds = {"empty": EMPTY} | ({"early": EARLY} if device.architecture >= 90 else {})
    for name, ptx in kinds.items():
        loaded = kernel_modules.load_function(device._context, name, ptx)
        device._functions[name] = loaded
        work = [Launch(name, (132, 1, 1), (1, 2, 3, 4, 5))] * NODES
        told = "early starts" if name == "early" else "plain"

        def pack(work: list[Launch] = work) -> None:
            device.prepare(list(work))

        rows.append((f"pack, {told}", timed(pack) / NODES * 1e6, "us a launch"))

        def issue(work: list[Launch] = work) -> None:
            device.run(work)

        device.synchronize()
        found, whole = [], []
        for _ in range(REPEATS):
            start = time.perf_counter()
            issue()
            found.append(time.perf_counter() - start)
            device.synchronize()
            whole.append(time.perf_counter() - start)
        rows.append((f"launch, {told}", median(found) / NODES * 1e6, "us a launch"))
        rows.append((f"launch and run, {told}", median(whole) / NODES * 1e6, "us a launch"))
        rows.append((f"capture, {told}", timed(lambda w=work: device.capture(w), 5) * 1e3, "ms"))
        graph = device.capture(work)
        graph.launch()
        device.synchronize()
        found, whole = [], []
        for _ in range(REPEATS):
            start = time.perf_counter()
            graph.launch()
            found.append(time.perf_counter() - start)
            device.synchronize()
            whole.append(time.perf_counter() - start)
        rows.append((f"launch a graph of {NODES}, {told}", median(found) * 1e6, "us"))
        rows.append((f"run it, {told}", median(whole) / NODES * 1e6, "us a node"))
    return rows


def copies(device: NvidiaDevice) -> list[Row]:
    """Of one and of many bytes, and what waiting costs."""
    rows: list[Row] = []
    big = 256 << 20
    at, other = device.allocate(big), device.allocate(big)
    host, plain = device.host_buffer(big), np.ones(big, np.uint8)
    event = device.event()

    def after(call: Callable[[], Any]) -> Callable[[], None]:
        def both() -> None:
            call()
            event.record()
            event.wait()

        return both

    def idle() -> None:
        pass

    rows.append(("event: record and wait", timed(after(idle), 200) * 1e6, "us"))
    small: dict[str, Callable[[], Any]] = {
        "upload": lambda: device.upload(at, host, 0, 4096),
        "write": lambda: device.write(at, plain[:4096]),
        "download": lambda: device.download(host, 0, at, 4096),
        "read": lambda: device.read(at, 4096),
    }
    for name, call in small.items():
        rows.append((f"{name} 4 kB, and wait", timed(after(call), 200) * 1e6, "us"))
    large: dict[str, Callable[[], Any]] = {
        "upload (page-locked)": lambda: device.upload(at, host, 0, big),
        "write": lambda: device.write(at, plain),
        "download (page-locked)": lambda: device.download(host, 0, at, big),
        "read": lambda: device.read(at, big),
        "copy within the GPU": lambda: device.copy(other, at, big),
    }
    for name, call in large.items():
        after(call)()
        rows.append((f"{name} 256 MiB", big / timed(after(call), 5) / 1e9, "GB/s"))
    for address in (at, other):
        device.release(address)
    return rows


def products(device: NvidiaDevice) -> list[Row]:
    """cuBLAS in a graph."""
    rows: list[Row] = []
    version = device.blas().version()
    print(f"cuBLAS {version} of {device.blas().path}")
    for name, (height, width) in MATRICES.items():
        number = max(2, CACHE_BYTES // (2 * height * width) + 1)
        weights = [device.allocate(2 * height * width) for _ in range(number)]
        x, out = device.allocate(2 * 2048 * width), device.allocate(4 * 2048 * height)
        for tokens in TOKENS if name != "head" else (1, 16, 128):
            work = [Gemm(w, x, out, height, width, tokens, width, height) for w in weights]
            graph = device.capture(work)
            graph.launch()
            device.synchronize()
            start, end = device.event(timed=True), device.event(timed=True)
            found = []
            for _ in range(7):
                start.record()
                graph.launch()
                end.record()
                end.wait()
                found.append(end.seconds_since(start) / number)
            graph.close()
            seconds = median(found)
            rows.append((f"{name} {height}x{width}, {tokens} tokens", seconds * 1e6, "us"))
            flops = 2 * height * width * tokens
            rows.append((" the same", flops / seconds / 1e12, "TFLOP/s"))
        for address in (*weights, x, out):
            device.release(address)
    return rows


LOADING = """
import sys, time
sys.path.insert(0, sys.argv[1])
import package
package.use_checkout()
from llamba.runtime.cuda import kernel_modules, ptx_cache
from llamba.runtime.cuda.nvidia import NvidiaDevice
device = NvidiaDevice(int(sys.argv[2]))
kernel_modules._THREADS = int(sys.argv[3])
names = sys.argv[4:]
start = time.perf_counter()
ptx_cache.load(names, device.ptx_architecture)
read = time.perf_counter()
device.load(names)
print(read - start, time.perf_counter() - read)
"""


def loading(device: NvidiaDevice) -> list[Row]:
    """Machine code of kernels, each time in a fresh process: made by the driver, or kept by it."""
    names = sorted(ready(device))[:24]
    if not names:
        print("no kernels in a cache: LLAMBA_KERNEL_PATH names none")
        return []
    rows: list[Row] = []
    # The last two: the driver's own cache, filled and then used.
    for threads, disabled in ((1, "1"), (4, "1"), (8, "1"), (4, "0"), (4, "0")):
        arguments = [str(Path(__file__).parent), str(device.index), str(threads), *names]
        done = subprocess.run(
            [sys.executable, "-c", LOADING, *arguments],
            env=dict(os.environ, CUDA_CACHE_DISABLE=disabled),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(done.stderr)
            continue
        read, made = map(float, done.stdout.split())
        how = "without its cache" if disabled == "1" else "with its cache"
        rows.append((f"{len(names)} kernels, {threads} threads, {how}", made * 1e3, "ms"))
    rows.append((f"read {len(names)} kernels' PTX", read * 1e3, "ms"))
    return rows


def ready(device: NvidiaDevice) -> list[str]:
    """Names of kernels whose PTX lies in a folder for all users."""
    from llamba.quant import kernel_cache

    key = kernel_cache.gpu_key(device.ptx_architecture)
    prefix = kernel_cache.symbol("runtime.kernels.cuda.")
    found = []
    for folder in kernel_cache.trusted_directories(key):
        for file in folder.glob(f"{prefix}*.ptx"):
            module, _, name = file.stem.removeprefix(prefix).partition("__")
            found.append(f"{module}:{name}")
    return found


def main() -> None:
    """What the options say."""
    parts = {f.__name__: f for f in (launches, copies, products, loading)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", type=int, default=0)
    parser.add_argument("--only", default=",".join(parts))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        device = NvidiaDevice(options.device)
    except DeviceError as error:
        sys.exit(f"FAILED: {error}")
    version = driver.version_text(device.info.driver_version)
    print(f"{device.name}, CUDA {version} in the driver, PTX for sm_{device.ptx_architecture}")
    found: dict[str, list[Row]] = {}
    for name in options.only.split(","):
        try:
            found[name] = parts[name](device)
        except Exception as error:
            print(f"{name}: FAILED: {type(error).__name__}: {error}")
            continue
        print(f"\n| {name} | figure | |\n|---|--:|---|")
        for what, figure, unit in found[name]:
            print(f"| {what} | {figure:.4g} | {unit} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"device": device.name, **found}, indent=1) + "\n")
    device.close()


if __name__ == "__main__":
    main()
