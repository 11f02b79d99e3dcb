"""Matrices to float16, for cuBLAS."""

from .....quant.cuda.planes import PLANES, row_bytes
from ..launch import Launch, Matrix
from .matvec import PIECE_COLUMNS

THREADS = 256


def kernels() -> list[str]:
    """What these launch."""
    return [f"dequantize:{name}" for name in (*PLANES, "f32", "bf16")]


def dequantize(matrix: Matrix, first: int, num_rows: int, out: int) -> Launch:
    """Rows first.. of a matrix to float16 (num_rows, columns) at `out`.

    Of every format of planes, and f32 and bf16 (f16 is there already: copied).
    """
    width = row_bytes(matrix.format, matrix.columns)
    items = matrix.columns // 8 // stores(matrix.format)
    grid = (-(-num_rows * items // THREADS), 1, 1)
    start = matrix.planes + first * width
    arguments = (start, width, matrix.columns, num_rows, items, out)
    return Launch(f"dequantize:{matrix.format}", grid, arguments)


def stores(format_name: str) -> int:
    """16-byte stores of a thread: one for each group of columns in a piece."""
    if format_name in ("q4_k", "q5_k", "q6_k"):
        return 2
    return 4 if PIECE_COLUMNS.get(format_name) == 64 else 1
