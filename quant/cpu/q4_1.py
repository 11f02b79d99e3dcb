"""Q4_1 on the CPU; the block's layout is in quant/q4_1.py."""

from .blocks32 import make_nibble_format

FORMAT = make_nibble_format(block_bytes=20, first=4, high_bits=None, minimum=True, offset=0)
