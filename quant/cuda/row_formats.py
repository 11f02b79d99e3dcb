"""All formats that kernels read by rows, by name."""

from .blocks32 import BLOCKS_32
from .crumbs import CRUMBS
from .floats import FLOAT_ROWS
from .k_quants import K_QUANTS
from .rows import RowFormat

ROW_FORMATS: dict[str, RowFormat] = {**BLOCKS_32, **CRUMBS, **K_QUANTS, **FLOAT_ROWS}
