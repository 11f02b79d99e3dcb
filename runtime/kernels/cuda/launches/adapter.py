"""ADAPT."""

from ..launch import Fields, Launch, StepShape

THREADS = 64


def adapt_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """ADAPT."""
    arguments = (f.x, f.stride, f.columns, f.scales)
    return [Launch("adapter:adapt", (shape.tokens, 1, 1), arguments)]
