"""`llamba show`: what is in a model file, and what running it needs."""

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError, LlambaError
from . import loading
from .adapter_facts import adapter_facts, adapter_rows
from .console import note, print_json, print_table, printable, size

if TYPE_CHECKING:
    from ..models.gguf import GGUFFile
    from ..models.weights import Weights

MAX_VALUE_LEN = 80
MAX_CONTEXT_LENGTH = 1 << 24  # EngineConfig's


@click.command("show")
@click.argument("model", metavar="MODEL")
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("--diff", is_flag=True, help="How MODEL and OTHER differ.")
@click.option("-c", "--ctx-size", "--context-length", type=int, help="Memory for this context.")
@click.option(
    "--cache-type", type=click.Choice(["f16", "f32", "q8_0"]), default="f16", help="And KV cache."
)
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--template", is_flag=True, help="Print the chat template, nothing else.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    model: str,
    other: str | None,
    diff: bool,
    ctx_size: int | None,
    cache_type: str,
    tensors: bool,
    template: bool,
    as_json: bool,
) -> None:
    """Show what is in a model file and what it needs; or in a LoRA adapter.

    With --diff: which keys, tensors, types, shapes and data of two files are not the same.
    """
    if diff != (other is not None):
        raise click.UsageError("--diff takes two models, everything else one")
    if other is not None:
        from .show_diff import show_diff

        show_diff(model, other, tensors=tensors, as_json=as_json)
        return
    if ctx_size is not None and not 1 <= ctx_size <= MAX_CONTEXT_LENGTH:
        raise InvalidParameterError(
            f"-c {ctx_size}: must be a whole number from 1 to {MAX_CONTEXT_LENGTH}"
        )
    with loading.open_file(model) as gguf:
        if template:
            text = gguf.metadata.get("tokenizer.chat_template")
            if text is None:
                note(f"{model} has no chat template")
                raise SystemExit(1)
            print_json(text) if as_json else click.echo(text)
            return
        value = describe(gguf, ctx_size, cache_type)
        if as_json:
            value["tensors"] = _tensors(gguf)
            print_json(value)
        else:
            _print(value, _tensors(gguf) if tensors else [])


def describe(
    gguf: "GGUFFile", context_length: int | None = None, cache_type: str = "f16"
) -> dict[str, Any]:
    """All of it but the single tensors, as values for JSON."""
    types: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for tensor in gguf.tensors.values():
        name = tensor.type_name
        types[name] += 1
        num_bytes[name] += tensor.num_bytes
    metadata = gguf.metadata
    architecture = metadata.get("general.architecture")
    adapter = adapter_facts(gguf)
    return {
        "path": str(gguf.path),
        "name": metadata.get("general.name"),
        "architecture": architecture,
        "num_bytes": gguf.num_bytes,
        "num_parameters": sum(prod(t.shape) for t in gguf.tensors.values()),
        "context_length": metadata.get(f"{architecture}.context_length"),
        "vocab_size": _array_len(gguf, "tokenizer.ggml.tokens"),
        "has_chat_template": "tokenizer.chat_template" in metadata,
        "tensor_types": {
            name: {"count": count, "num_bytes": num_bytes[name]}
            for name, count in types.most_common()
        },
        **(_needs(gguf, context_length, cache_type) if adapter is None else {"adapter": adapter}),
        "metadata": {key: _shown(gguf, metadata, key) for key in metadata},
    }


def _needs(gguf: "GGUFFile", context_length: int | None, cache_type: str) -> dict[str, Any]:
    """The memory that running takes, or why the model can't be run."""
    try:
        from ..models.weights import Weights
        from ..runtime.config import DEFAULT_CONTEXT_LENGTH, EngineConfig
        from ..runtime.footprint import memory_need
        from ..runtime.memory import RESERVE, available_memory
        from ..runtime.threads import default_num_threads

        weights = Weights.open(gguf)
        length = context_length or min(
            weights.hyperparameters.context_length, DEFAULT_CONTEXT_LENGTH
        )
        config = EngineConfig(
            context_length=length, num_threads=default_num_threads(), cache_type=cache_type
        )
        need, free = memory_need(weights, config), available_memory()
    except LlambaError as error:
        return {"runs": False, "why_not": str(error)}
    return {
        "runs": True,
        "made_for": _made_for(weights),
        "memory": {
            "context_length": length,
            "cache_type": cache_type,
            "weights_mapped": sum(t.num_bytes for t in gguf.tensors.values()),
            "read_per_token": need.streamed,
            "kv_cache": need.kv,
            "arena": need.arena,
            "program": RESERVE,
            "free": free,
            "fits": free is None or need.private + RESERVE <= free,
            "weights_stay": free is None or need.comfortable <= free,
        },
    }


def _made_for(weights: "Weights") -> str:
    """What the model is for: its commands."""
    if weights.hyperparameters.num_labels:
        return "rerank"
    return "generate, chat, embed" if weights.architecture.causal else "embed"


def _array_len(gguf: "GGUFFile", key: str) -> int | None:
    return gguf.array_len(key) if key in gguf.metadata else None


def _shown(gguf: "GGUFFile", metadata: Mapping[str, Any], key: str) -> Any:
    """A value as it is; of a long array how long it is (a vocabulary has 262,144 entries)."""
    count = gguf.array_len(key)
    if count is not None and count > 16:
        return f"[{count} items]"
    return metadata[key]


def _tensors(gguf: "GGUFFile") -> list[dict[str, Any]]:
    return [
        {
            "name": tensor.name,
            "type": tensor.type_name,
            "shape": list(tensor.shape),
            "num_bytes": tensor.num_bytes,
        }
        for tensor in gguf.tensors.values()
    ]


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _of_model(value: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines that an adapter doesn't have."""
    return [
        ("context", f"{value['context_length'] or '-'} tokens"),
        ("vocabulary", f"{value['vocab_size'] or '-'} tokens"),
        ("chat template", "yes" if value["has_chat_template"] else "no"),
    ]


def _memory_rows(memory: dict[str, Any]) -> list[tuple[str, str]]:
    """What running it takes, and what there is."""
    own = memory["kv_cache"] + memory["arena"]
    rows = [
        (
            "memory",
            f"{size(memory['weights_mapped'])} weights, mapped and shared + {size(own)} own "
            f"(KV cache {size(memory['kv_cache'])} for {memory['context_length']} tokens in "
            f"{memory['cache_type']}, arena {size(memory['arena'])}) + the program, up to "
            f"{size(memory['program'])}",
        ),
        ("a token reads", f"{size(memory['read_per_token'])} of weights, and its KV cache"),
    ]
    if memory["free"] is not None:
        fits = "it fits"
        if not memory["fits"]:
            fits = "too little for KV cache and arena: a smaller context (-c) is taken, or refused"
        elif not memory["weights_stay"]:
            fits = "too little for all weights: they would be read from disk again and again"
        rows.append(("free here", f"{size(memory['free'])}: {fits}"))
    return rows


def _print(value: dict[str, Any], tensors: list[dict[str, Any]]) -> None:
    memory, adapter = value.get("memory"), value.get("adapter")
    parameters = value["num_parameters"]
    rows = [
        ("model" if adapter is None else "adapter", value["name"] or "-"),
        ("path", value["path"]),
        ("architecture", value["architecture"] or "-"),
        ("parameters", _count(parameters)),
        ("size", size(value["num_bytes"])),
        *(_of_model(value) if adapter is None else adapter_rows(adapter)),
        (
            "tensors",
            ", ".join(
                f"{name} x{of['count']} ({size(of['num_bytes'])})"
                for name, of in value["tensor_types"].items()
            ),
        ),
    ]
    if adapter is None:
        runs = f"yes, to {value['made_for']}" if value["runs"] else f"no: {value['why_not']}"
        rows.append(("runs here", runs))
    if memory:
        rows += _memory_rows(memory)
    for name, text in rows:
        click.echo(f"{name:14} {printable(text)}")
    click.echo()
    for key, item in value["metadata"].items():
        text = printable(str(item))
        click.echo(
            f"{printable(key)} = {text[:MAX_VALUE_LEN]}{'...' if len(text) > MAX_VALUE_LEN else ''}"
        )
    if tensors:
        click.echo()
        print_table(
            ("TENSOR", "TYPE", "SHAPE", "SIZE"),
            [
                (
                    printable(t["name"]),
                    t["type"],
                    " x ".join(map(str, t["shape"])),
                    size(t["num_bytes"]),
                )
                for t in tensors
            ],
            right="  rr",
        )
