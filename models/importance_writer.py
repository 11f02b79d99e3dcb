"""Writes importance matrices in either form of importance_file.py, whole or not at all.

What the older form keeps is llama.cpp's (tools/imatrix/imatrix.cpp: save_imatrix_legacy).
"""

import struct
from pathlib import Path

import numpy as np

from ..errors import InvalidParameterError
from .gguf_pairs import array_pair, pair
from .gguf_writer import GGUFWriter, NewTensor
from .importance import CHUNK_SIZE, Importance, Sums
from .output_file import OutputFile

FORMS = ("gguf", "dat")
_F32 = 0


def write(
    importance: Importance, path: str | Path, *, form: str = "gguf", overwrite: bool = False
) -> str:
    """Write to a file; returns its SHA-256.

    form: of FORMS. overwrite: whether a file of this name may be replaced. OutputError: it can't
    be written. InvalidParameterError: there is nothing to write.
    """
    if form not in FORMS:
        raise InvalidParameterError(f"{form!r} is no form of importance matrices: {FORMS}")
    if importance.chunked:  # its sums are of chunks: to sums of tokens first
        importance = Importance.merged([importance])
    if not importance:
        raise InvalidParameterError(f"{path}: there is no weight to write the importance of")
    for name, entry in importance.items():
        if not np.isfinite(entry.squares).all():
            raise InvalidParameterError(f"{path}: a sum of {name} is too large for a float32")
    if importance.chunk_count >= 1 << 31:
        raise InvalidParameterError(
            f"{path}: {importance.chunk_count} chunks are more than a file can say"
        )
    made = _gguf if form == "gguf" else _dat
    return made(importance, Path(path), overwrite)


def _gguf(importance: Importance, path: Path, overwrite: bool) -> str:
    pairs = [
        pair("general.type", "str", "imatrix"),
        # A file's name need not be UTF-8.
        array_pair(
            "imatrix.datasets", "str", [t.encode("utf-8", "replace") for t in importance.datasets]
        ),
        pair("imatrix.chunk_count", "u32", importance.chunk_count),
        pair("imatrix.chunk_size", "u32", importance.chunk_size),
    ]
    arrays = {}
    for name in sorted(importance):
        entry = importance[name]
        arrays[f"{name}.in_sum2"] = entry.squares
        arrays[f"{name}.counts"] = entry.counts[:, None].astype(np.float32)
        if entry.values is not None:
            arrays[f"{name}.in_sum"] = entry.values
    tensors = [NewTensor(name, _F32, array.shape) for name, array in arrays.items()]
    with GGUFWriter(path, pairs, tensors, overwrite=overwrite) as writer:
        for array in arrays.values():
            writer.write(np.ascontiguousarray(array, "<f4"))
    return writer.sha256


def _dat(importance: Importance, path: Path, overwrite: bool) -> str:
    """Experts that saw nothing get means of 1; weights of which nothing was seen are left out."""
    size = importance.chunk_size or CHUNK_SIZE
    seen = [name for name in sorted(importance) if importance[name].counts.any()]
    with OutputFile(path, overwrite=overwrite) as file:
        file.write(struct.pack("<i", len(seen)))
        for name in seen:
            file.write(_dat_entry(name, importance[name], size))
        text = importance.datasets[-1].encode("utf-8", "replace") if importance.datasets else b""
        file.write(struct.pack("<ii", importance.chunk_count, len(text)) + text)
    return file.sha256


def _dat_entry(name: str, entry: Sums, size: int) -> bytes:
    chunks = -(-int(entry.counts.max()) // size)  # rounded up: never 0
    values = entry.means() * np.float32(chunks)
    raw = name.encode()
    head = struct.pack("<i", len(raw)) + raw + struct.pack("<ii", chunks, values.size)
    return head + values.astype("<f4").tobytes()
