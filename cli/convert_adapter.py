"""`llamba convert` of an adapter: a PEFT folder -> a GGUF adapter for --lora."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError
from .console import file_row, note, print_json, print_table, printable, size

if TYPE_CHECKING:
    from ..models.convert.lora_file import AdapterConversion


def convert_adapter(
    folder: str,
    out: str | None,
    overrides: dict[str, Any],
    *,
    as_json: bool,
    verbose: bool,
    **given: Any,
) -> None:
    """given: the command's other options. InvalidParameterError: one that an adapter can't have."""
    from ..models.convert.lora_file import prepare_adapter

    for option in ("loras", "pre"):
        if given[option]:
            name = "--merge-lora" if option == "loras" else "--pre"
            raise InvalidParameterError(
                f"{name} is of no use here: {folder} is an adapter itself (adapter_config.json); "
                "give the model's folder as DIR to merge adapters into it"
            )
    conversion = prepare_adapter(
        folder, given["base"], outtype=given["outtype"], name=given["name"], overrides=overrides
    )
    target = Path(out or ".")
    if target.is_dir():
        target /= f"{Path(folder).resolve().name}-{conversion.form}-LoRA.gguf"
    value = described(conversion, target)
    if not given["dry_run"]:
        sha256 = conversion.write(target, overwrite=given["force"])
        value["files"] = [file_row(target, target.stat().st_size, sha256)]
    if as_json:
        print_json(value)
        return
    _print(value, verbose=verbose)
    if not given["dry_run"]:
        note(f"use it: llamba chat MODEL --lora {shlex.quote(str(target))}")


def described(conversion: "AdapterConversion", target: Path) -> dict[str, Any]:
    """What the file is, or would be, as values for JSON."""
    from ..models.gguf_writer import file_size

    num_bytes = file_size(conversion.pairs, [tensor for tensor, _ in conversion.tensors])
    return {
        "files": [file_row(target, num_bytes, None)],
        "source": str(conversion.adapter.folder),
        "class": conversion.class_name,
        "architecture": conversion.family.architecture,
        "name": conversion.values["general.name"][1],
        "outtype": conversion.form,
        "alpha": conversion.values["adapter.lora.alpha"][1],
        "ranks": sorted({b.shape[-1] for _, b in conversion.matrices.values()}),
        "num_bytes": conversion.num_bytes,
        "tensors": [
            {"name": name, "lora_a": list(a.shape), "lora_b": list(b.shape)}
            for name, (a, b) in conversion.matrices.items()
        ],
    }


def _print(value: dict[str, Any], *, verbose: bool) -> None:
    [file] = value["files"]
    rows = [
        ("adapter", value["name"]),
        ("of", f"{value['class']} -> {value['architecture']}"),
        ("matrices", f"{len(value['tensors'])}, rank {', '.join(map(str, value['ranks']))}"),
        ("alpha", f"{value['alpha']:g}"),
        ("size", size(file["num_bytes"])),
    ]
    if file["sha256"]:
        rows.append(("sha256", file["sha256"]))
    rows.append(("file" if file["sha256"] else "would be", file["path"]))
    for name, text in rows:
        click.echo(f"{name:14} {printable(text)}")
    if verbose:
        click.echo()
        print_table(
            ("MATRIX", "LORA_A", "LORA_B"),
            [
                (t["name"], *(" x ".join(map(str, t[half])) for half in ("lora_a", "lora_b")))
                for t in value["tensors"]
            ],
        )
