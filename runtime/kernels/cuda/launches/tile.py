"""Making tiles of planes that are on the device."""

from .....quant.cuda.planes import row_bytes
from .....quant.cuda.tiles import LAYOUTS, NATIVE, TILES, num_tiles
from ..launch import Launch
from .matvec import PIECE_COLUMNS

WARPS = 8  # of a block


def make_tiles(name: str, planes: int, out: int, rows: int, columns: int) -> Launch:
    """From a matrix's planes to tiles at `out`, which must hold zeros; for formats of TILES."""
    if name in NATIVE:
        count = num_tiles(rows) * -(-columns // LAYOUTS[TILES[name]].columns)  # warps
    else:
        count = -(-rows * (columns // PIECE_COLUMNS.get(name, 32)) // 32)
    arguments = (planes, row_bytes(name, columns), rows, columns, out)
    return Launch(f"tile:{name}", (-(-count // WARPS), 1, 1), arguments)
