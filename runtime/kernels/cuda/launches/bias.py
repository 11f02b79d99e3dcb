"""The end of a MATMUL that cuBLAS did."""

from ..launch import Fields, Launch, StepShape

THREADS = 256
PER_THREAD = 4  # columns


def finish_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """Bias and soft cap of a MATMUL whose products (times its factor) are at `out`, if it has any.

    Of f: out, out_stride, num_rows, bias, factor, softcap.
    """
    factor, cap = f.number("factor"), f.number("softcap")
    if not f.bias and not cap:
        return []
    arguments = (f.out, f.out_stride, f.num_rows, f.bias, factor, cap)
    parts = -(-f.num_rows // (THREADS * PER_THREAD))
    return [Launch("bias:finish", (parts, shape.tokens, 1), arguments)]
