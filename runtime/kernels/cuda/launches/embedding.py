"""EMBED."""

from .....quant.cuda.planes import row_bytes
from ..launch import Fields, Launch, StepShape


def embed_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """EMBED: the kernel is that of the matrix's format."""
    matrix = f.matrix
    width = row_bytes(matrix.format, matrix.columns)
    arguments = (
        matrix.planes + f.first * width, width, f.columns, shape.step.token_ids, f.number("scale"),
        f.out, f.out_stride, shape.step.positions, f.position_rows, f.num_positions,
        f.constant_row,
    )  # fmt: skip
    return [Launch(f"embedding:{matrix.format}", (shape.tokens, 1, 1), arguments)]
