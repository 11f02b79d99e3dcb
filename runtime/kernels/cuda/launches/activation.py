"""ACTIVATE."""

from ..launch import Fields, Launch, StepShape, activation_arguments

THREADS = 128  # of four columns: many small blocks, as a decoded token has no more than 28 of them


def activate_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """ACTIVATE."""
    put = activation_arguments(f, shape.mode)
    arguments = (f.gate, f.up, f.stride, f.columns, f.kind, f.alone, f.token_gate, *put)
    parts = -(-f.columns // (4 * THREADS))
    return [Launch("activation:activate", (parts, shape.tokens, 1), arguments)]
