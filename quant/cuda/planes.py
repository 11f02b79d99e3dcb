"""Row planes: how quantized rows lie on a GPU.

The pieces of a row's blocks stand together, quants first, then upper bits, scales and factors, so
that 16-byte loads line up (in GGUF's own bytes a Q6_K block is 210 bytes long, one of Q8_0 34).
Rows are padded to a multiple of 16 bytes. Rows of floats stay as they are. Formats that aren't here
have no kernels on a GPU: their weights are expanded to float16.
"""

import numpy as np
from numpy.typing import NDArray

from .. import FORMATS_BY_NAME
from ..format import Format

# Of each format: (first byte in the block, bytes) of its pieces, in the order of the planes.
PLANES: dict[str, tuple[tuple[int, int], ...]] = {
    "q4_0": ((2, 16), (0, 2)),
    "q4_1": ((4, 16), (0, 4)),
    "q5_0": ((6, 16), (2, 4), (0, 2)),
    "q5_1": ((8, 16), (4, 4), (0, 4)),
    "q8_0": ((2, 32), (0, 2)),
    "mxfp4": ((1, 16), (0, 1)),
    "iq4_nl": ((2, 16), (0, 2)),
    "iq4_xs": ((8, 128), (0, 8)),
    "q2_k": ((16, 64), (0, 16), (80, 4)),
    "q3_k": ((32, 64), (0, 32), (96, 12), (108, 2)),
    "q4_k": ((16, 128), (0, 16)),
    "q5_k": ((48, 128), (16, 32), (0, 16)),
    "q6_k": ((0, 128), (128, 64), (192, 16), (208, 2)),
}
FLOATS = ("f32", "f16", "bf16")


def format_named(name: str) -> Format:
    """The format of a name as kernels spell it, "q4_k"."""
    return FORMATS_BY_NAME[name.upper()]


def row_bytes(name: str, columns: int) -> int:
    """Bytes from one row to the next in planes; ValueError when these aren't whole blocks."""
    return -(-format_named(name).row_bytes(columns) // 16) * 16


def regroup(name: str, data: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """A file's rows (rows, bytes) -> planes (rows, row_bytes); the padding is zero."""
    if name in FLOATS:
        return data
    rows, width = data.shape
    blocks = data.reshape(rows, -1, format_named(name).block.itemsize)
    out = np.zeros((rows, row_bytes(name, columns)), np.uint8)
    planes = [blocks[:, :, at : at + size].reshape(rows, -1) for at, size in PLANES[name]]
    out[:, :width] = np.concatenate(planes, axis=1)
    return out


def restore(name: str, planes: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """The file's rows of planes."""
    if name in FLOATS:
        return planes
    size = format_named(name).block.itemsize
    rows, count = len(planes), columns // format_named(name).block_len
    out = np.empty((rows, count, size), np.uint8)
    start = 0
    for at, piece in PLANES[name]:
        out[:, :, at : at + piece] = planes[:, start : start + count * piece].reshape(
            rows, count, piece
        )
        start += count * piece
    return out.reshape(rows, count * size)
