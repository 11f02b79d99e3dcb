"""GATHER."""

from ..launch import Fields, Launch, StepShape

THREADS = 128


def gather_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """GATHER, of so many rows as the shape has tokens."""
    arguments = (f.x, f.x_stride, f.columns, f.out, f.out_stride, shape.step.out_rows)
    parts = -(-f.columns // (4 * THREADS))
    return [Launch("gather:gather", (parts, shape.tokens, 1), arguments)]
