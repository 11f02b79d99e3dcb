"""Quantizers: float32 rows to the blocks of a format, byte for byte as llama.cpp makes them.

One module a format, each with a kernel `quantize`. This one loads them and imports none: they need
the compiler.
"""

import ctypes
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedModelError
from .. import FORMATS_BY_NAME, jit
from ..format import Format
from ..scratch import scratch
from .codebooks import TABLES

__all__ = ["NEEDS_IMPORTANCE", "QUANTIZERS", "Quantizer"]

# Formats that can be written; each is a module of this package, in lower case.
QUANTIZERS = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS",
    "IQ2_XXS", "IQ1_S", "IQ1_M",
)  # fmt: skip
# Too coarse to be of use where all columns count alike: llama.cpp refuses, too.
NEEDS_IMPORTANCE = frozenset({"IQ2_XXS", "IQ2_XS", "IQ1_S"})


class Quantizer:
    """Writes one format. Calls of several threads run side by side: they hold no lock."""

    def __init__(self, format: Format, address: int) -> None:
        self.format = format
        self.needs_importance = format.name in NEEDS_IMPORTANCE
        self._tables: list[NDArray] = TABLES[format.name]() if format.name in TABLES else []
        self._table_addresses = np.array([t.ctypes.data for t in self._tables], np.int64)
        number = ctypes.c_int64
        count = 7 if self._tables else 6
        self._kernel = ctypes.CFUNCTYPE(number, *[number] * count)(address)

    @classmethod
    def load(cls, name: str, *, progress: Callable[[int, int], None] | None = None) -> Self:
        """The quantizer of a format by its name, compiled the first time.

        progress: as for `jit.load`. UnsupportedModelError: a format that is not written.
        KernelError: the compiler failed.
        """
        if name not in QUANTIZERS:
            raise UnsupportedModelError(
                f"tensors can't be quantized to {name}; to these: {', '.join(QUANTIZERS)}"
            )
        kernel = kernel_of(name)
        return cls(FORMATS_BY_NAME[name], jit.load([kernel], progress=progress)[kernel])

    def __call__(
        self,
        values: NDArray[np.float32],
        out: NDArray[np.uint8],
        importance: NDArray[np.float32] | None = None,
    ) -> None:
        """Quantize whole rows.

        Args:
            values: float32 (rows, columns), contiguous and finite.
            out: uint8, contiguous, of rows * format.row_bytes(columns) bytes, in any shape.
            importance: float32 (columns,): how much the error in each column counts, the same for
                all rows; None where all count alike.

        Raises:
            ValueError: shapes or types that don't fit, or no importance where one is needed.
        """
        rows, columns = values.shape
        expected = rows * self.format.row_bytes(columns)
        if values.dtype != np.float32 or not values.flags.c_contiguous:
            raise ValueError(f"values must be contiguous float32, not {values.dtype}")
        if out.dtype != np.uint8 or not out.flags.c_contiguous or out.size != expected:
            raise ValueError(f"out must be {expected} contiguous bytes, has {out.size} items")
        if importance is None and self.needs_importance:
            raise ValueError(f"{self.format.name} needs the importance of the columns")
        if importance is not None and (
            importance.shape != (columns,)
            or importance.dtype != np.float32
            or not importance.flags.c_contiguous
        ):
            raise ValueError(f"importance must be {columns} contiguous float32 values")
        _memory, at = scratch()
        weights = 0 if importance is None else importance.ctypes.data
        tables = [self._table_addresses.ctypes.data] if self._tables else []
        self._kernel(values.ctypes.data, weights, out.ctypes.data, rows, columns, at, *tables)


def kernel_of(name: str) -> str:
    """The kernel that writes a format, as `jit.load` names it."""
    return f"quant.quantizers.{name.lower()}:quantize"
