"""IQ4_NL on the CPU; the block's layout is in quant/iq4_nl.py."""

from ..iq4_nl import VALUES
from .blocks32 import make_nibble_format

FORMAT = make_nibble_format(
    block_bytes=18, first=2, high_bits=None, minimum=False, offset=-min(VALUES), table=VALUES
)
