"""Q5_1 on the CPU; the block's layout is in quant/q5_1.py."""

from .blocks32 import make_nibble_format

FORMAT = make_nibble_format(block_bytes=24, first=8, high_bits=4, minimum=True, offset=0)
