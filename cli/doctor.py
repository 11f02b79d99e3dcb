"""`llamba doctor`: what llamba found on this machine, for a look and for bug reports."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from ..errors import LlambaError
from .console import print_json, size

PACKAGES = ("numpy", "numba", "llvmlite", "jinja2", "huggingface_hub")
SHOWN_FEATURES = (
    "avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16",
    "avx512fp16", "amx-int8", "neon", "dotprod", "i8mm", "sve",
)  # fmt: skip


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """Show what llamba found on this machine."""
    found = examine()
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list):
            value = " ".join(map(str, value))
        click.echo(f"{name.replace('_', ' '):12} {value}")


def examine() -> dict[str, Any]:
    """Everything, as values for JSON; what can't be found out says why."""
    from .. import __version__

    return {
        "llamba": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        **_target(),
        **_threads(),
        **_memory(),
        **_caches(),
    }


def cpu_model() -> str:
    """The CPU's name as it gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _target() -> dict[str, Any]:
    """What the kernels are compiled for, and whether they are compiled."""
    from ..quant import kernel_cache
    from ..quant.target import target

    try:
        found = target()
    except LlambaError as error:
        return {"target": f"none: {error}"}
    features = {f.lstrip("+") for f in found.features.split(",")}
    folder = kernel_cache.cache_root() / kernel_cache.cache_key(found)
    compiled = len(list(folder.glob("*.o"))) if folder.is_dir() else 0
    chosen = os.environ.get("LLAMBA_TARGET")
    return {
        "target": f"{found.cpu}, kernels for {found.isa}"
        + (f" (LLAMBA_TARGET={chosen})" if chosen else ""),
        "features": [name for name in SHOWN_FEATURES if name in features],
        "kernels": f"{compiled} compiled in {folder}"
        if compiled
        else f"none compiled yet in {folder}: the first model does that, once",
    }


def _threads() -> dict[str, Any]:
    from ..runtime import threads

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "threads": threads.default_num_threads(),
        "why": {
            "logical CPUs": os.cpu_count(),
            "CPUs we may use": affinity or "unknown",
            "rule": "fast physical cores among them, not more than the control group's quota",
        },
    }


def _memory() -> dict[str, Any]:
    from ..runtime.memory import available_memory

    free = available_memory()
    left = {} if free is None else {"free": f"{size(free)} (for KV cache and activations)"}
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return left
    return {"memory": size(total), **left}


def _caches() -> dict[str, Any]:
    from ..models import store

    folder = store.cache_dir()
    models = store.list_models()
    held = size(sum(model.num_bytes for model in models))
    return {"cache": str(folder), "models": f"{len(models)} ({held})"}
