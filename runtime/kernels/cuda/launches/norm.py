"""NORM and NORM_ADD."""

from ..launch import Fields, Launch, StepShape, activation_arguments


def kernels() -> list[str]:
    """What these launch."""
    return ["norm:norm", "norm:norm_add"]


def norm_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """NORM."""
    put = activation_arguments(f, shape.mode)
    arguments = (f.x, f.x_stride, f.weight, f.bias, f.number("eps"), f.columns, f.kind, f.out, *put)
    return [Launch("norm:norm", (shape.tokens, 1, 1), arguments)]


def norm_add_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """NORM_ADD."""
    where = (f.x, f.x_stride, f.y, f.y_stride, f.weight, f.bias)
    arguments = (*where, f.number("eps"), f.columns, f.kind, f.number("scale"))
    return [Launch("norm:norm_add", (shape.tokens, 1, 1), arguments)]
