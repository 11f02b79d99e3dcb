"""MXFP4 on the CPU; the block's layout is in quant/mxfp4.py."""

from ..mxfp4 import VALUES
from .blocks32 import make_nibble_format

FORMAT = make_nibble_format(
    block_bytes=17,
    first=1,
    high_bits=None,
    minimum=False,
    offset=-min(VALUES),
    table=VALUES,
    exponent=True,
)
