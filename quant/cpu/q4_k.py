"""Q4_K on the CPU; the block's layout is in quant/q4_k.py."""

from .blocks32 import PAIR32, CpuFormat
from .k_quants import make_k_format

FORMAT = CpuFormat(*make_k_format(144, 16, None), PAIR32, 0, 32, False, 144)
