"""`llamba show --diff A B`: how two model files differ."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from . import loading
from .console import print_json, print_table, printable, size
from .progress import progress

if TYPE_CHECKING:
    from ..models.gguf import GGUFFile
    from ..models.gguf_diff import Diff

_MAX_VALUE_LEN = 60


def show_diff(name: str, other: str, *, tensors: bool, as_json: bool) -> None:
    """Compare two models, given as people name them, and print what differs."""
    with loading.open_file(name) as a, loading.open_file(other) as b:
        from ..models.gguf_diff import compare

        with progress(f"{a.path.name} and {b.path.name}") as update:
            diff = compare(a, b, progress=update)
        value = _value(a, b, diff)
    if as_json:
        print_json(value)
    else:
        _print(value, tensors)


def _value(a: "GGUFFile", b: "GGUFFile", diff: "Diff") -> dict[str, Any]:
    def changed(names: list[str], what: str) -> dict[str, Any]:
        return {name: {"a": _fact(a, name, what), "b": _fact(b, name, what)} for name in names}

    return {
        "same": diff.is_same,
        "a": {"path": str(a.path), "num_bytes": a.num_bytes},
        "b": {"path": str(b.path), "num_bytes": b.num_bytes},
        "metadata": {
            "added": {key: _shown(b, key) for key in diff.keys_added},
            "removed": {key: _shown(a, key) for key in diff.keys_removed},
            "changed": {
                key: {"a": _shown(a, key), "b": _shown(b, key)} for key in diff.keys_changed
            },
        },
        "tensors": {
            "added": diff.added,
            "removed": diff.removed,
            "types": changed(diff.types, "type"),
            "shapes": changed(diff.shapes, "shape"),
            "data": diff.data,
            "equal": diff.equal,
        },
    }


def _fact(gguf: "GGUFFile", name: str, what: str) -> dict[str, Any]:
    tensor = gguf.tensors[name]
    fact = {"type": tensor.type_name, "num_bytes": tensor.num_bytes}
    return fact if what == "type" else fact | {"shape": list(tensor.shape)}


def _shown(gguf: "GGUFFile", key: str) -> Any:
    count = gguf.array_len(key)
    return f"[{count} items]" if count is not None and count > 16 else gguf.metadata[key]


def _text(value: Any) -> str:
    text = printable(str(value))
    return text if len(text) <= _MAX_VALUE_LEN else f"{text[:_MAX_VALUE_LEN]}..."


def _print(value: dict[str, Any], tensors: bool) -> None:
    for name in ("a", "b"):
        click.echo(f"{name:10} {printable(value[name]['path'])} ({size(value[name]['num_bytes'])})")
    metadata, found = value["metadata"], value["tensors"]
    click.echo(f"{'metadata':10} {_counts(metadata, 'added', 'removed', 'changed')}")
    for sign, kind in (("+", "added"), ("-", "removed")):
        for key, item in metadata[kind].items():
            click.echo(f"  {sign} {printable(key)} = {_text(item)}")
    for key, item in metadata["changed"].items():
        click.echo(f"  ~ {printable(key)} = {_text(item['a'])} -> {_text(item['b'])}")
    click.echo(f"{'tensors':10} {_counts(found, 'added', 'removed')}")
    rows = [
        ("type", Counter(f"{t['a']['type']} -> {t['b']['type']}" for t in found["types"].values())),
        ("shape", Counter(_shapes(t) for t in found["shapes"].values())),
    ]
    for kind, counts in rows:
        for text, count in counts.most_common():
            click.echo(f"  ~ {kind} {text} x{count}")
    names = "" if tensors or not found["data"] else " (--tensors names them)"
    click.echo(f"  ~ other data x{len(found['data'])}{names}")
    click.echo(f"  = equal x{len(found['equal'])}")
    if tensors and (lines := _lines(found)):
        click.echo()
        print_table(("", "TENSOR", "CHANGE"), lines)
        click.echo()
    click.echo("the same metadata and tensors" if value["same"] else _verdict(metadata, found))


def _verdict(metadata: dict[str, Any], found: dict[str, Any]) -> str:
    """How many keys and tensors differ, in a line."""
    keys = sum(map(len, metadata.values()))
    kinds = ("added", "removed", "types", "shapes", "data")
    names = {name for kind in kinds for name in found[kind]}
    counts = [f"{n} {what}{'s' * (n != 1)}" for n, what in ((keys, "key"), (len(names), "tensor"))]
    return f"the files differ: {' and '.join(c for c in counts if not c.startswith('0 '))}"


def _counts(found: dict[str, Any], *kinds: str) -> str:
    return ", ".join(f"{len(found[kind])} {kind}" for kind in kinds)


def _shapes(tensor: dict[str, Any]) -> str:
    return " -> ".join(" x ".join(map(str, tensor[of]["shape"])) for of in ("a", "b"))


def _lines(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every tensor that is not equal."""
    types = {n: f"{t['a']['type']} -> {t['b']['type']}" for n, t in found["types"].items()}
    lines = [
        *(("+", name, "added") for name in found["added"]),
        *(("-", name, "removed") for name in found["removed"]),
        *(("~", name, text) for name, text in types.items()),
        *(("~", name, _shapes(t)) for name, t in found["shapes"].items()),
        *(("~", name, "other data") for name in found["data"]),
    ]
    return [(sign, printable(name), text) for sign, name, text in lines]
