"""SLICES."""

from ..launch import Fields, Launch, StepShape, activation_arguments

THREADS = 128


def slices_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """SLICES."""
    put = activation_arguments(f, shape.mode)
    where = (f.out, f.out_stride, f.out_step)
    arguments = (f.x, f.x_stride, f.step, f.heads, f.columns, *where, *put)
    parts = -(-f.heads * f.columns // (4 * THREADS))
    return [Launch("slices:slices", (parts, shape.tokens, 1), arguments)]
