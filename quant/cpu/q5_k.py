"""Q5_K on the CPU; the block's layout is in quant/q5_k.py."""

from .blocks32 import PAIR32, CpuFormat
from .k_quants import make_k_format

FORMAT = CpuFormat(*make_k_format(176, 48, 16), PAIR32, 0, 32, False, 176)
