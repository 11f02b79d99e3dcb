"""Q4_0 on the CPU; the block's layout is in quant/q4_0.py."""

from .blocks32 import make_nibble_format

FORMAT = make_nibble_format(block_bytes=18, first=2, high_bits=None, minimum=False, offset=8)
