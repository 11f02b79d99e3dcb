"""Tensors of any format as float32 rows, compiled: what a quantizer is fed with.

The kernels (quantizers/expand.py) write the bits of Format.dequantize, many times as fast.
"""

import ctypes
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedModelError
from . import FORMATS_BY_NAME, jit
from .format import Format
from .scratch import scratch


class Expander:
    """Reads one format. Calls of several threads run side by side: they hold no lock."""

    def __init__(self, format: Format, address: int) -> None:
        self.format = format
        self._kernel = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(address)

    @classmethod
    def load(cls, name: str, *, progress: Callable[[int, int], None] | None = None) -> Self:
        """The expander of a format by its name, compiled the first time.

        progress: as for `jit.load`. UnsupportedModelError: a format that is not read.
        KernelError: the compiler failed.
        """
        if name not in FORMATS_BY_NAME:
            known = ", ".join(FORMATS_BY_NAME)
            raise UnsupportedModelError(f"tensors of {name} can't be read; of these: {known}")
        kernel = kernel_of(name)
        return cls(FORMATS_BY_NAME[name], jit.load([kernel], progress=progress)[kernel])

    def __call__(self, source: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Expand whole rows.

        Args:
            source: uint8, contiguous, rows * format.row_bytes(columns) bytes in any shape.
            out: float32 (rows, columns), contiguous.

        Raises:
            ValueError: shapes or types that don't fit.
        """
        rows, columns = out.shape
        expected = rows * self.format.row_bytes(columns)
        if out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"out must be contiguous float32, not {out.dtype}")
        if source.dtype != np.uint8 or not source.flags.c_contiguous or source.size != expected:
            raise ValueError(f"source must be {expected} contiguous bytes, has {source.size} items")
        _memory, at = scratch()
        self._kernel(source.ctypes.data, out.ctypes.data, rows, columns, at)


def kernel_of(name: str) -> str:
    """The kernel that reads a format, as `jit.load` names it."""
    return f"quant.quantizers.expand:expand_{name.lower()}"
