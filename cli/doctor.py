"""`llamba doctor`: what llamba found on this machine, and why it is slow; for bug reports, too.

doctor_machine.py and doctor_gpu.py read facts, doctor_speed.py measures, doctor_advice.py says what
to do.
"""

import os
import platform
import sys
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError, LlambaError
from .console import print_json, size

if TYPE_CHECKING:
    from ..runtime.gpus import Gpus

PACKAGES = ("numpy", "numba", "llvmlite", "jinja2", "huggingface_hub", "uvicorn")
MAX_THREADS = 1024
SHARES = ("waiting", "of_ceiling", "in_large_pieces")
# What a model's part says, a line each; why it is limited is the first advice.
LABELS = {
    "path": "model", "runs_on": "runs on", "file_system": "lies on", "num_bytes": "file",
    "bytes_per_token": "token reads", "ceiling_ts": "ceiling", "decode_ts": "measured",
    "of_ceiling": "of ceiling", "waiting": "waiting", "disk_reads_per_token": "disk reads",
    "in_large_pieces": "2 MB pieces", "limit": "limit",
}  # fmt: skip
SHOWN_FEATURES = (
    "avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16",
    "avx512fp16", "amx-int8", "neon", "dotprod", "i8mm", "sve",
)  # fmt: skip


@click.command("doctor")
@click.argument("model", required=False, metavar="[MODEL]")
@click.option("-t", "--threads", type=int, help="For what is measured [the physical cores].")
@click.option("--no-measure", is_flag=True, help="Measure nothing: only look.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(model: str | None, threads: int | None, no_measure: bool, as_json: bool) -> None:
    """Show what llamba found on this machine, and why it is slow.

    How fast memory can be read is measured, in about a second: decoding reads all weights for each
    token, so that nothing can be faster than that. With MODEL, a short run shows how near it comes,
    and what limits it.
    """
    from ..runtime.gpus import Gpus

    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise InvalidParameterError(f"--threads {threads}: must be from 1 to {MAX_THREADS}")
    with closing(Gpus()) as gpus:
        found = _found(model, threads, gpus, measure=not no_measure)
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        if name in ("model", "advice") or value in (None, {}, []):
            continue
        click.echo(f"{name.replace('_', ' '):12} {_shown(value)}")
    for name, value in (found.get("model") or {}).items():
        if name in LABELS:
            click.echo(f"{LABELS[name]:12} {_number(name, value)}")
    for line in found["advice"]:
        click.echo(f"\n* {line}")


def _found(
    model: str | None, threads: int | None, gpus: "Gpus", *, measure: bool
) -> dict[str, Any]:
    """Everything, with what is measured and advised."""
    from .doctor_advice import advice
    from .doctor_gpu import examine_gpus

    found = examine() | examine_gpus(gpus)
    count = threads or found["threads"]
    if measure:
        found["bandwidth"] = _bandwidth(count)
    if model is not None:
        from .doctor_speed import examine_model

        speeds = found.get("bandwidth", {})
        found["model"] = examine_model(model, count, speeds.get("all_threads"), gpus)
    return found | {"advice": advice(found)}


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict):
        if "kind" in value:  # of a file system
            return value["kind"] + (f" ({value['slow']})" if "slow" in value else "")
        return ", ".join(
            f"{key.replace('_', ' ')} {_number(key, item)}"
            for key, item in value.items()
            if item not in (None, {}, [])
        )
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _number(key: str, item: Any) -> str:
    if key in ("one_thread", "all_threads"):
        return f"{item / 1e9:.1f} GB/s"
    if key in ("num_bytes", "bytes_per_token"):
        return size(item)
    if key.endswith("_ts"):
        return f"{item:.1f} tok/s"
    if isinstance(item, float):
        return f"{item:.0%}" if key in SHARES else f"{item:.2g}"
    return _shown(item)


def _bandwidth(num_threads: int) -> dict[str, Any]:
    from .doctor_speed import bandwidth

    try:
        return bandwidth(num_threads)
    except LlambaError as error:  # no kernels for this CPU: the facts are shown all the same
        return {"why_not": str(error)}


def examine() -> dict[str, Any]:
    """Everything that can be read, as values for JSON; what can't be found out says why."""
    from .. import __version__
    from . import doctor_machine as machine

    return {
        "llamba": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        **_target(),
        **machine.threads(),
        "load": machine.load_average(),
        **_memory(),
        "groups": machine.memory_groups(),
        "huge_pages": machine.huge_pages(),
        "clocks": machine.clocks(),
        "heat": machine.heat(),
        "power": machine.power(),
        **_caches(),
    }


def cpu_model(root: Path = Path("/")) -> str:
    """The CPU's name as it gives it; where it gives none, as on a Raspberry Pi, the board's."""
    from ..runtime.cgroup import read_text

    lines = (read_text(root / "proc/cpuinfo") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    names = {key.strip().lower(): name.strip() for key, _, name in pairs}
    board = (read_text(root / "proc/device-tree/model") or "").strip("\0")
    found = names.get("model name") or board or names.get("hardware")
    return found or platform.processor() or platform.machine()


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
    folder = kernel_cache.cache_root() / kernel_cache.cache_key(found)
    folders = [*kernel_cache.system_directories(found), folder]
    compiled = [(each, len(list(each.glob("*.o")))) for each in folders]
    chosen = os.environ.get("LLAMBA_TARGET")
    return {
        "target": f"{found.cpu}, kernels for {found.isa}"
        + (f" (LLAMBA_TARGET={chosen})" if chosen else ""),
        "features": [name for name in SHOWN_FEATURES if name in found.enabled],
        "kernels": ", ".join(f"{count} compiled in {each}" for each, count in compiled if count)
        or f"none compiled yet in {folder}: the first model does that, once",
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
    from .doctor_machine import file_system

    folder = store.cache_dir()
    models = store.list_models()
    held = size(sum(model.num_bytes for model in models))
    return {
        "cache": str(folder),
        "disk": file_system(folder),
        "models": f"{len(models)} ({held})",
    }
