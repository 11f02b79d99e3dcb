"""Q4_K on the CPU; the block's layout is in quant/q4_k.py."""

from .k_quants import make_k_format

FORMAT = make_k_format(144, 16, None)
