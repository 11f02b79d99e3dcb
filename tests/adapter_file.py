"""Writes LoRA adapter files for tiny models, and the models that they would be merged into.

Tests reach it through the fixture `adapter_file` of conftest.py.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile

EMBEDDING = "token_embd.weight"
BLOCK = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
Pairs = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def matrices(model: Path, *more: str) -> list[str]:
    """The usual targets: all of a model's layers' matrices by name, and `more`."""
    with GGUFFile.open(model) as file:
        return [n for n in file.tensors if n.split(".")[2:3] and n.split(".")[2] in BLOCK] + [*more]


def random_pairs(model: Path, names: Sequence[str], *, rank: int = 5, seed: int = 1) -> Pairs:
    """Random lora_a and lora_b that change what the model says."""
    rng, pairs = np.random.default_rng(seed), {}
    with GGUFFile.open(model) as file:
        shapes = {name: tuple(file.tensors[name].shape) for name in names}
    for name, (rows, columns) in shapes.items():
        a = rng.standard_normal((rank, columns)).astype(np.float32) * np.float32(0.1)
        b = rng.standard_normal((rows, rank)).astype(np.float32) * np.float32(0.1)
        if name == EMBEDDING:  # A by token, B not transposed
            a, b = b, np.ascontiguousarray(a.T)
        pairs[name] = a, b
    return pairs


def write_adapter(
    path: Path,
    pairs: Pairs,
    *,
    architecture: str = "llama",
    alpha: float | None = 8.0,
    kind: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """An adapter file; kind: the format of its matrices; metadata: strings and arrays to set."""
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {"general.type": "adapter", "adapter.type": "lora"}
    for key, value in (values | dict(metadata or {})).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, halves in pairs.items():
        for suffix, values_of in zip(("lora_a", "lora_b"), halves, strict=True):
            _add(writer, f"{name}.{suffix}", values_of, kind)
    for name, data in (tensors or {}).items():
        _add(writer, name, data, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, data: NDArray[Any], kind: str) -> None:
    if kind in ("F32", "F16"):
        writer.add_tensor(name, data.astype(np.float32 if kind == "F32" else np.float16))
        return
    raw = GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quants.quantize(data.astype(np.float32), raw), raw_dtype=raw)


def merged(model: Path, out: Path, *adapters: tuple[Pairs, float]) -> Path:
    """A copy of an F32 model with W + factor * B A in place of each W, computed in float64."""
    shutil.copy(model, out)
    reader = gguf.GGUFReader(out, "r+")
    for tensor in reader.tensors:
        for pairs, factor in adapters:
            if tensor.name in pairs:
                a, b = (x.astype(np.float64) for x in pairs[tensor.name])
                delta = a @ b.T if tensor.name == EMBEDDING else b @ a
                tensor.data[:] = tensor.data + factor * delta
    reader.data.flush()
    return out
