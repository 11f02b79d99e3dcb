"""Writes GGUF files with random weights, the same bytes on every machine.

Weights are sums of PCG64's raw integers, so no mathematics of the platform takes part, and blocks
of a quantized format are random bytes with scales of a sane size.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_STRUCT = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}


@dataclass(frozen=True)
class Blocks:
    """A format: its id, values and bytes a block, where the scale (and minimum) lies.

    spread: standard deviation of random blocks' values when the scale is 1 and the minimum
    `minimum[1]` times the scale.
    """

    type_id: int
    length: int
    num_bytes: int
    scale_at: int
    spread: float
    minimum: tuple[int, float] | None = None


FORMATS = {
    "Q4_0": Blocks(2, 32, 18, 0, 4.61),
    "Q4_1": Blocks(3, 32, 20, 0, 4.61, (2, -7.5)),
    "Q5_0": Blocks(6, 32, 22, 0, 9.23),
    "Q5_1": Blocks(7, 32, 24, 0, 9.23, (2, -15.5)),
    "Q8_0": Blocks(8, 32, 34, 0, 73.9),
    "Q2_K": Blocks(10, 256, 84, 80, 15.0, (82, 1.5)),
    "Q3_K": Blocks(11, 256, 110, 108, 43.4),
    "Q4_K": Blocks(12, 256, 144, 0, 257.0, (2, 7.5)),
    "Q5_K": Blocks(13, 256, 176, 0, 522.0, (2, 15.5)),
    "Q6_K": Blocks(14, 256, 210, 208, 1367.0),
    "IQ4_NL": Blocks(20, 32, 18, 0, 72.0),
    "IQ4_XS": Blocks(23, 256, 136, 0, 1330.0),
    "MXFP4": Blocks(39, 32, 17, 0, 2.93),
}


def normals(seed: str, count: int) -> NDArray[np.float64]:
    """Nearly normal numbers with a variance of 1: sums of four uniform ones."""
    raw = np.random.PCG64(zlib.crc32(seed.encode())).random_raw(count)
    parts = raw.view(np.uint16).reshape(count, 4).astype(np.int64).sum(axis=1)
    return (parts - 131070) * (1 / 37837.0)


def random_bytes(seed: str, count: int) -> NDArray[np.uint8]:
    """Uniform bytes."""
    raw = np.random.PCG64(zlib.crc32(seed.encode())).random_raw(-(-count // 8))
    return raw.view(np.uint8)[:count].copy()


def quantized(seed: str, shape: tuple[int, ...], name: str, spread: float) -> NDArray[np.uint8]:
    """A tensor's bytes: random blocks whose values have about the standard deviation `spread`."""
    kind = FORMATS[name]
    count = int(np.prod(shape)) // kind.length
    blocks = random_bytes(seed, count * kind.num_bytes).reshape(count, kind.num_bytes)
    if name == "MXFP4":  # a power of two, one of two neighbours
        exponent = 127 + round(float(np.log2(spread / kind.spread)))
        blocks[:, 0] = exponent - (blocks[:, 0] & 1)
        return blocks
    # Between 0.75 and 1.25 times the wanted scale, in steps of 1/512.
    steps = random_bytes(seed + " scales", count).astype(np.float64)
    scale = (0.75 + steps / 512) * (spread / kind.spread)
    half = scale.astype(np.float16)
    blocks[:, kind.scale_at : kind.scale_at + 2] = half.view(np.uint8).reshape(-1, 2)
    if kind.minimum is not None:
        at, factor = kind.minimum
        low = (half.astype(np.float64) * factor).astype(np.float16)
        blocks[:, at : at + 2] = low.view(np.uint8).reshape(-1, 2)
    return blocks


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _kind(value: Any) -> int:
    kinds = {bool: _BOOL, int: _U32, float: _F32, str: _STRING}
    return kinds[type(value)]


def _scalar(kind: int, value: Any) -> bytes:
    return _text(value) if kind == _STRING else struct.pack(_STRUCT[kind], value)


def _pair(key: str, value: Any) -> bytes:
    if isinstance(value, list | tuple):
        kind = _kind(value[0])
        kind = _I32 if kind == _U32 else kind
        items = b"".join(_scalar(kind, item) for item in value)
        return _text(key) + struct.pack("<IIQ", _ARRAY, kind, len(value)) + items
    return _text(key) + struct.pack("<I", _kind(value)) + _scalar(_kind(value), value)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[tuple[int, ...], int, NDArray[Any]]],
) -> Path:
    """Write a file. tensors: name -> (shape with the rows' length last, type id, data)."""
    with path.open("wb") as file:
        _write(file, metadata, tensors)
    return path


def _write(
    file: BinaryIO,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[tuple[int, ...], int, NDArray[Any]]],
) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    file.write(b"".join(_pair(key, value) for key, value in metadata.items()))
    offset = 0
    for name, (shape, type_id, data) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        file.write(_text(name) + dims + struct.pack("<IQ", type_id, offset))
        offset += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
    file.write(bytes(-file.tell() % ALIGNMENT))
    for _, _, data in tensors.values():
        file.write(np.ascontiguousarray(data).tobytes())
        file.write(bytes(-data.nbytes % ALIGNMENT))
