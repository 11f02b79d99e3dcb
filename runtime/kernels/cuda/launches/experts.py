"""EXPERTS and MERGE."""

from .....quant.cuda.planes import FLOATS, row_bytes
from ..launch import Fields, Launch, StepShape
from .route import MAX_ALONE, TOGETHER

THREADS = 128
WARPS = THREADS // 32
MERGING = 64  # threads of four columns


def rows_of(format_name: str) -> int:
    """Rows that a warp has at once."""
    return 2 if format_name in ("q2_k", "q3_k") else 4  # whose pieces have 64 columns


def experts_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """EXPERTS. x_q are bytes, token after token, with their scales in every mode."""
    name, used = f.matrix.format, f.used
    pairs = shape.tokens * used
    if name in FLOATS:
        where = (f.x_plain + 4 * f.column_at, 4 * f.x_columns, 0, 0)
    else:
        scales = f.x_scales + f.column_at // 32 * 8
        where = (f.x_q + f.column_at, f.x_columns, scales, f.x_columns // 32 * 8)
    alone = pairs <= MAX_ALONE
    size = row_bytes(name, f.columns)
    arguments = (
        f.slots, pairs, f.matrix.planes + f.first * size, size, f.num_rows, f.columns, *where,
        f.divide, f.out, f.out_stride, f.bias,
    )  # fmt: skip
    parts = -(-f.num_rows // (WARPS * rows_of(name)))
    grid = (parts, pairs if alone else -(-pairs // TOGETHER), 1)
    return [Launch(f"experts:{'alone' if alone else 'sorted'}_{name}", grid, arguments)]


def merge_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """MERGE."""
    arguments = (f.y, f.used, f.weights, f.columns, f.out, f.residual, f.number("factor"))
    parts = -(-f.columns // (4 * MERGING))
    return [Launch("experts:merge", (parts, shape.tokens, 1), arguments)]
