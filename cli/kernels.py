"""`llamba kernels`: compiled code ahead of its first use, for images and read-only installs."""

import contextlib
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..errors import KernelError
from .console import note, print_json, print_table, size


@click.group("kernels")
def command() -> None:
    """Compile ahead what models need: for an image, or for all users.

    Kernels are compiled for this CPU when a model first needs them, and kept. `build` does it
    before, and with -o into a folder for all users, which llamba reads and never writes to:
    /usr/share/llamba/kernels, /usr/local/share/llamba/kernels, share/llamba/kernels of the Python
    environment, or those in LLAMBA_KERNEL_PATH.
    """


@command.command("build")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--all", "everything", is_flag=True, help="All kernels there are: takes minutes.")
@click.option(
    "--target",
    metavar="NAME",
    help="Another kind of CPU than this one [that of LLAMBA_TARGET], or a kind of GPU.",
)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Into this folder instead of the cache.",
)
def build(
    models: tuple[str, ...], everything: bool, target: str | None, output: Path | None
) -> None:
    """Compile what models may ask for.

    Without MODEL, what is common is compiled; with one, what it needs with any settings.

    \b
      llamba kernels build smollm2
      llamba kernels build -o /usr/local/share/llamba/kernels
      llamba kernels build --target avx2 -o ./kernels      (LLAMBA_KERNEL_PATH=./kernels)
      llamba kernels build --target cuda-sm90 -o ./kernels

    What is there already is left alone. cuda-sm80 is for GPUs of compute capability 8.x, cuda-sm90
    for 9.0 and newer; it needs no GPU, and machines with one need no compiler then.
    """
    if models and everything:
        raise click.UsageError("--all and MODEL: give one of them")
    if target is not None and target.startswith("cuda-"):
        _build_for_gpu(target, models, output)
        return
    if target is not None:
        _choose(target)
    from ..quant import jit
    from ..quant.target import target as chosen
    from .progress import progress

    wanted = chosen()
    names = _kernels(models, everything)
    with progress(wanted.cpu if target is None else target) as update:
        event = "compile" if target in (None, "host") else "compile_for"
        folder, num_compiled = jit.build(
            sorted(names), wanted=wanted, root=output, progress=partial(update, event)
        )
    note(
        f"{len(names)} kernels for {wanted.cpu} ({wanted.isa}) are in {folder}, "
        f"{num_compiled} of them new"
    )


def _build_for_gpu(target: str, models: tuple[str, ...], output: Path | None) -> None:
    from ..runtime.cuda import ptx_cache
    from .progress import progress

    if target not in ptx_cache.TARGETS:
        known = ", ".join(ptx_cache.TARGETS)
        raise click.BadParameter(f"{target!r} is none of {known}", param_hint="--target")
    names = _gpu_kernels(models) if models else set(ptx_cache.every())
    with progress(target) as update:
        folder, num_compiled = ptx_cache.build(
            sorted(names),
            ptx_cache.TARGETS[target],
            root=output,
            progress=partial(update, "compile_for"),
        )
    note(f"{len(names)} kernels for {target} are in {folder}, {num_compiled} of them new")


def _gpu_kernels(models: tuple[str, ...]) -> set[str]:
    from ..models.weights import Weights
    from ..runtime.cuda.ahead import kernels_of_model
    from . import loading

    names: set[str] = set()
    for model in models:
        with loading.open_file(model) as gguf:
            names.update(kernels_of_model(Weights.open(gguf)))
    return names


def _choose(target: str) -> None:
    """From here on this process is one for that target."""
    from ..quant import target as targets
    from ..runtime.cuda.ptx_cache import TARGETS

    if target not in (known := ("host", *targets.NAMED_TARGETS, *TARGETS)):
        raise click.BadParameter(f"{target!r} is none of {', '.join(known)}", param_hint="--target")
    os.environ["LLAMBA_TARGET"] = target
    targets.target.cache_clear()


def _kernels(models: tuple[str, ...], everything: bool) -> set[str]:
    from ..runtime import kernel_names

    if not models:
        return kernel_names.every() if everything else kernel_names.usual()
    from ..models.weights import Weights
    from . import loading

    names: set[str] = set()
    for model in models:
        with loading.open_file(model) as gguf:
            names |= kernel_names.of_model(Weights.open(gguf))
    return names


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> None:
    """Show the folders with compiled kernels, and whether they are used."""
    rows = _folders()
    if as_json:
        print_json(rows)
        return
    if not rows:
        from ..quant.kernel_cache import cache_root

        note(f"no kernels in {cache_root()} yet: the first model compiles what it needs")
        return
    table = [
        (
            row.get("target") or f"{row.get('cpu', '?')} ({row.get('isa', '?')})",
            str(row["kernels"]),
            size(row["bytes"]),
            row["use"],
            row["folder"],
        )
        for row in rows
    ]
    print_table(("FOR", "KERNELS", "SIZE", "USED", "FOLDER"), table, right=" rr")


@command.command("clear")
@click.option("--all", "everything", is_flag=True, help="Those that are used now as well.")
def clear(everything: bool) -> None:
    """Delete compiled kernels of other versions or CPUs from the cache.

    Folders for all users are never touched. What is needed again is compiled again.
    """
    freed = 0
    for row in _folders():
        if row["own"] and (everything or row["use"] != "yes"):
            try:
                shutil.rmtree(row["folder"])
            except OSError as error:
                raise KernelError(f"{row['folder']} can't be deleted: {error.strerror}") from None
            freed += row["bytes"]
    note(f"{size(freed)} freed")


def _folders() -> list[dict[str, Any]]:
    """All folders of kernels, our own first, as they say of themselves."""
    from ..quant import kernel_cache
    from ..quant.target import target
    from ..runtime.cuda import ptx_cache

    used = ptx_cache.keys()
    with contextlib.suppress(KernelError):  # a CPU below the floor, or a wrong LLAMBA_TARGET
        for family in (kernel_cache.MODEL, kernel_cache.QUANTIZERS):
            used.add(kernel_cache.cache_key(target(), family))
    own, rows = kernel_cache.cache_root(), []
    for root in (own, *kernel_cache.system_roots()):
        try:
            folders = sorted(root.iterdir())
        except OSError:  # there is none, or it is not for us
            continue
        for folder in folders:
            if not kernel_cache.is_key(folder.name) or folder.is_symlink() or not folder.is_dir():
                continue
            use = "yes" if folder.name in used else "no"
            if use == "yes" and root != own and (why := kernel_cache.distrust(folder)):
                use = f"no: {why}"
            row = {"folder": str(folder), "own": root == own, "use": use}
            rows.append(row | kernel_cache.describe(folder))
    return rows
