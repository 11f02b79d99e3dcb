"""Making tiles of planes that are on the device."""

from .....quant.cuda.tiles import LAYOUTS, NATIVE, TILES, num_tiles
from ..launch import Launch

WARPS = 8  # of a block


def make_tiles(name: str, planes: int, row_bytes: int, rows: int, columns: int, out: int) -> Launch:
    """Tiles of a format of NATIVE at `out`, of rows that lie `row_bytes` apart as planes."""
    assert name in NATIVE
    steps = -(-columns // LAYOUTS[TILES[name]].columns)
    blocks = -(-num_tiles(rows) * steps // WARPS)
    return Launch(f"tile:{name}", (blocks, 1, 1), (planes, row_bytes, rows, columns, out))
