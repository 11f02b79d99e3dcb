"""NORM and NORM_ADD."""

from ..launch import Fields, Launch, StepShape, activation_arguments

THREADS = 512
KEPT = (1, 2, 4)  # vectors of four columns in a thread's registers, for which there are kernels


def _kernel(name: str, columns: int) -> str:
    kept = next((f"_{k}" for k in KEPT if columns <= 4 * THREADS * k), "")
    return f"norm:{name}{kept}"


def norm_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """NORM."""
    put = activation_arguments(f, shape.mode)
    arguments = (f.x, f.x_stride, f.weight, f.bias, f.number("eps"), f.columns, f.kind, f.out, *put)
    return [Launch(_kernel("norm", f.columns), (shape.tokens, 1, 1), arguments)]


def norm_add_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """NORM_ADD."""
    where = (f.x, f.x_stride, f.y, f.y_stride, f.weight, f.bias)
    arguments = (*where, f.number("eps"), f.columns, f.kind, f.number("scale"))
    return [Launch(_kernel("norm_add", f.columns), (shape.tokens, 1, 1), arguments)]
