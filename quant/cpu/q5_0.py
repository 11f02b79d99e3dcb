"""Q5_0 on the CPU; the block's layout is in quant/q5_0.py."""

from .blocks32 import make_nibble_format

FORMAT = make_nibble_format(block_bytes=22, first=6, high_bits=2, minimum=False, offset=16)
