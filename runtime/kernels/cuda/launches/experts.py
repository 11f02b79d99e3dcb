"""EXPERTS and MERGE."""

from collections.abc import Sequence

from .....quant.cuda.planes import FLOATS, row_bytes
from ..launch import Fields, Launch, StepShape

TOGETHER = 8  # sorted slots that share the rows that they read
THREADS = 128
WARPS = THREADS // 32
MERGING = 64  # threads of four columns


def rows_of(format_name: str) -> int:
    """Rows that a warp has at once: as many as there are registers for."""
    return 2 if format_name in ("q2_k", "q3_k", "q5_0", "q5_1") else 4


def experts_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """EXPERTS. x_q are bytes, token after token, with their scales in every mode."""
    return experts_together([f], shape)


def can_join(a: Fields, b: Fields) -> bool:
    """Whether two EXPERTS that follow each other read the same, as a block's gate and up do."""
    same = (
        "x_q", "x_plain", "x_columns", "column_at", "columns", "num_rows", "divide", "used",
        "slots", "out_stride",
    )  # fmt: skip
    return a.matrix.format == b.matrix.format and all(getattr(a, n) == getattr(b, n) for n in same)


def experts_together(fields: Sequence[Fields], shape: StepShape) -> list[Launch]:
    """Several EXPERTS that `can_join`, two of them a launch."""
    return [_launch(fields[at : at + 2], shape) for at in range(0, len(fields), 2)]


def _launch(fields: Sequence[Fields], shape: StepShape) -> Launch:
    f = fields[0]
    name, pairs = f.matrix.format, shape.tokens * f.used
    if name in FLOATS:
        where = (f.x_plain + 4 * f.column_at, 4 * f.x_columns, 0, 0)
    else:
        scales = f.x_scales + f.column_at // 32 * 8
        where = (f.x_q + f.column_at, f.x_columns, scales, f.x_columns // 32 * 8)
    size = row_bytes(name, f.columns)
    blocks = -(-f.num_rows // (WARPS * rows_of(name)))
    matrices: list[int] = []
    for each in (f, fields[-1]):
        matrices += [each.matrix.planes + each.first * size, each.out, each.bias]
    alone = pairs < 2 * (f.matrix.rows // f.num_rows)  # experts, each with two slots on average
    shared = (f.slots, pairs, size, f.num_rows, f.columns, *where, f.divide, f.out_stride, blocks)
    grid = (blocks * len(fields), pairs if alone else -(-pairs // TOGETHER), 1)
    kernel = f"experts:{'alone' if alone else 'sorted'}_{name}"
    return Launch(kernel, grid, (*shared, *matrices))


def merge_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """MERGE."""
    arguments = (f.y, f.used, f.weights, f.columns, f.out, f.residual, f.number("factor"))
    parts = -(-f.columns // (4 * MERGING))
    return [Launch("experts:merge", (parts, shape.tokens, 1), arguments)]
