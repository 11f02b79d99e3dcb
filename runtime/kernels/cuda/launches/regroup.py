"""Raw rows of a file, as uploaded, to row planes."""

from .....quant.cuda.planes import PLANES, format_named, row_bytes
from ..launch import Launch

THREADS = 256
MAX_PIECES = 4


def kernels() -> list[str]:
    """What these launch."""
    return ["regroup:regroup_bytes", "regroup:regroup_halves"]


def regroup(format_name: str, raw: int, planes: int, num_rows: int, columns: int) -> Launch:
    """From `raw`, the file's bytes of so many rows, to `planes`; the two must not overlap.

    For formats of quant.cuda.planes.PLANES; floats need only be copied.
    """
    found = format_named(format_name)
    pieces = PLANES[format_name]
    unit = 1 if any(at % 2 or size % 2 for at, size in pieces) else 2
    described: list[int] = []
    end = 0
    blocks = columns // found.block_len
    for at, size in (*pieces, *[(0, 0)] * (MAX_PIECES - len(pieces))):
        end += blocks * size // unit
        described += [end, at, max(size // unit, 1)]
    raw_bytes, width = found.row_bytes(columns), row_bytes(format_name, columns)
    kernel = "regroup:regroup_bytes" if unit == 1 else "regroup:regroup_halves"
    grid = (num_rows, -(-width // unit // THREADS), 1)
    arguments = (raw, raw_bytes, planes, width, found.block.itemsize, *described)
    return Launch(kernel, grid, arguments)
