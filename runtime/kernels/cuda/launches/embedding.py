"""EMBED."""

from .....quant.cuda.planes import FLOATS, PLANES, row_bytes
from ..launch import Fields, Launch, StepShape


def kernels() -> list[str]:
    """What these launch."""
    return [f"embedding:{name}" for name in (*PLANES, *FLOATS)]


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
