"""Q5_K on the CPU; the block's layout is in quant/q5_k.py."""

from .k_quants import make_k_format

FORMAT = make_k_format(176, 48, 16)
