"""`llamba convert`: a checkpoint as it is on Hugging Face -> a GGUF file."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidModelFileError, InvalidParameterError
from .console import file_row, note, print_json, print_table, printable, size
from .progress import progress

if TYPE_CHECKING:
    from ..models.convert.conversion import Conversion


@click.command("convert")
@click.argument("folder", metavar="DIR")
@click.argument("out", metavar="[OUT]", required=False)
@click.option(
    "--outtype",
    type=click.Choice(["auto", "f32", "f16", "bf16", "q8_0"]),
    default="auto",
    show_default=True,
    help="Of most tensors; auto: the checkpoint's own 16-bit type.",
)
@click.option("--name", metavar="TEXT", help="The model's name. [its README's, or DIR's]")
@click.option(
    "--metadata",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key; KEY=TYPE:VALUE with int, float, bool or str; repeatable.",
)
@click.option("--pre", metavar="NAME", help="The pre-tokenizer, where it isn't recognised.")
@click.option(
    "--merge-lora",
    "loras",
    multiple=True,
    metavar="DIR[:SCALE]",
    help="Merge a LoRA adapter of PEFT into the weights; repeatable.",
)
@click.option(
    "--base",
    metavar="DIR",
    help="Of an adapter: the folder of the model it was trained on, or its config.json.",
)
@click.option("--dry-run", is_flag=True, help="Check all of it, write nothing.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("-v", "--verbose", is_flag=True, help="List every tensor.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(folder: str, out: str | None, as_json: bool, verbose: bool, **given: Any) -> None:
    """Make a GGUF file of a model as it is on Hugging Face.

    DIR is a folder with config.json, *.safetensors and the tokenizer's files. OUT is the new file
    or a folder for it; by default it gets its usual name in the current folder.

    DIR may also be a LoRA adapter of PEFT, which becomes an adapter for --lora.

    \b
      llamba convert my-model model-f16.gguf
      llamba convert base-model tuned.gguf --merge-lora my-adapter
      llamba convert my-adapter my-adapter.gguf --base base-model
    """
    from ..models.convert.conversion import parse_override, prepare
    from ..models.convert.lora_merge import parse_adapter
    from ..models.convert.peft import PeftAdapter, is_peft

    if folder.startswith("hf:") and not Path(folder).exists():
        raise InvalidParameterError(
            f"{folder}: convert reads a folder; fetch it first: hf download {folder[3:]} "
            f"--local-dir {folder.rpartition('/')[2] or 'DIR'}"
        )
    overrides = dict(map(parse_override, given["metadata"]))
    with _unreadable():
        is_adapter = is_peft(folder)
    if is_adapter:
        from .convert_adapter import convert_adapter

        with _unreadable():
            convert_adapter(folder, out, overrides, as_json=as_json, verbose=verbose, **given)
        return
    if given["base"] is not None:
        raise InvalidParameterError(
            f"--base {given['base']} is of use only where DIR is an adapter (adapter_config.json)"
        )
    with _unreadable():
        adapters = [(PeftAdapter.open(p), scale) for p, scale in map(parse_adapter, given["loras"])]
        conversion = prepare(
            folder,
            outtype=given["outtype"],
            name=given["name"],
            overrides=overrides,
            pre=given["pre"],
            adapters=adapters,
        )
    target = _target(out, conversion)
    value = described(conversion, target)
    if not given["dry_run"]:
        with progress(target.name) as update:
            sha256 = conversion.write(target, overwrite=given["force"], progress=update)
        value["files"] = [file_row(target, target.stat().st_size, sha256)]
    if as_json:
        print_json(value)
        return
    _print(value, verbose=verbose)
    if not given["dry_run"]:
        note(f"run it: {_next_command(conversion, target)}")


@contextmanager
def _unreadable() -> Iterator[None]:
    """What the system says of a file in the folder is about the model, not a fault."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise InvalidModelFileError(f"{error.filename}: can't be read: {error.strerror}") from None


def _target(out: str | None, conversion: "Conversion") -> Path:
    """The file's path: OUT, or the usual name in the folder OUT."""
    path = Path(out or ".")
    return path / conversion.file_name if path.is_dir() else path


def described(conversion: "Conversion", target: Path) -> dict[str, Any]:
    """What the file is, or would be, as values for JSON."""
    from ..models.gguf_writer import file_size

    forms = Counter(entry.form for entry in conversion.planned)
    num_bytes = file_size(conversion.pairs, conversion.tensors)
    return {
        "files": [file_row(target, num_bytes, None)],
        "source": str(conversion.checkpoint.folder),
        "adapters": [{"path": str(path), "scale": scale} for path, scale in conversion.adapters],
        "class": conversion.class_name,
        "architecture": conversion.family.architecture,
        "name": conversion.values["general.name"][1],
        "outtype": conversion.outtype,
        "tensor_types": dict(forms.most_common()),
        "num_bytes": conversion.num_bytes,
        "unused": list(conversion.unused),
        "tensors": [
            {"name": e.name, "type": e.form, "shape": list(e.shape), "sources": e.source_names}
            for e in conversion.planned
        ],
    }


def _next_command(conversion: "Conversion", target: Path) -> str:
    """What the file is for."""
    import shlex

    from ..models.architectures import ARCHITECTURES

    path = shlex.quote(str(target))
    if any(entry.name.startswith("cls.output.") for entry in conversion.planned):
        return f"llamba rerank {path} QUERY DOCUMENT..."
    if not ARCHITECTURES[conversion.family.architecture].causal:
        return f"llamba embed {path} TEXT..."
    if any(pair.key == "tokenizer.chat_template" for pair in conversion.pairs):
        return f"llamba chat {path}"
    return f"llamba run {path} PROMPT"


def _print(value: dict[str, Any], *, verbose: bool) -> None:
    [file] = value["files"]
    types = ", ".join(f"{form} x{count}" for form, count in value["tensor_types"].items())
    rows = [
        ("model", value["name"]),
        ("class", f"{value['class']} -> {value['architecture']}"),
        *(("merged", f"{a['path']}, scale {a['scale']:g}") for a in value["adapters"]),
        ("tensors", types),
        ("size", size(file["num_bytes"])),
    ]
    if value["unused"]:
        rows.append(("not needed", f"{len(value['unused'])} tensors of the checkpoint"))
    if file["sha256"]:
        rows.append(("sha256", file["sha256"]))
    rows.append(("file" if file["sha256"] else "would be", file["path"]))
    for name, text in rows:
        click.echo(f"{name:14} {printable(text)}")
    if verbose:
        click.echo()
        print_table(
            ("TENSOR", "TYPE", "SHAPE", "FROM"),
            [
                (
                    t["name"],
                    t["type"],
                    " x ".join(map(str, t["shape"])),
                    printable(t["sources"][0]) if t["sources"] else "config.json",
                )
                for t in value["tensors"]
            ],
        )
