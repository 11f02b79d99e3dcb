"""Random quantized rows with factors as models have them, and activations as kernels read them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamba.quant.cuda.planes import FLOATS, PLANES, format_named

FORMAT_NAMES = (*PLANES, *FLOATS)


def random_rows(name: str, rng: Any, rows: int, columns: int) -> NDArray[np.uint8]:
    """A file's bytes (rows, bytes a row)."""
    found = format_named(name)
    if name in FLOATS:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        if name == "bf16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if name == "f16" else np.float32).view(np.uint8)
    count = rows * columns // found.block_len
    raw = np.frombuffer(rng.bytes(count * found.block.itemsize), np.uint8)
    blocks = raw.copy().view(found.block)
    for field in found.block.names or ():
        if field in ("d", "dmin", "m"):
            blocks[field] = rng.uniform(-2e-3, 2e-3, count).astype(np.float16)
        if field == "e":
            blocks[field] = rng.integers(110, 125, count)
            blocks[field][1:3] = range(min(2, count - 1))
    return blocks.view(np.uint8).reshape(rows, -1)


def dequantized(name: str, raw: NDArray[np.uint8], columns: int) -> NDArray[np.float64]:
    """What they mean (rows, columns)."""
    found = format_named(name).dequantize(raw, (len(raw), columns))
    return found.astype(np.float64)


class Activations:
    """Random ones of some tokens: bytes with scales, and what these mean; or float32."""

    def __init__(self, rng: Any, tokens: int, columns: int) -> None:
        self.plain = rng.standard_normal((tokens, columns)).astype(np.float32)
        blocks = self.plain.reshape(tokens, -1, 32)
        d = (np.abs(blocks).max(-1) / 127).astype(np.float32)
        q = np.rint(blocks / d[..., None])
        self.q = q.astype(np.int8).reshape(tokens, columns)
        sums = (d * q.sum(-1)).astype(np.float32)
        self.scales = np.stack([d, sums], -1)
        self.values = (d[..., None].astype(np.float64) * q).reshape(tokens, columns)
