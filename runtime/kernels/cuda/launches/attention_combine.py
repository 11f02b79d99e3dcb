"""COMBINE."""

from ..launch import Fields, Launch, StepShape, activation_arguments
from .attention import attention_rows, decode

THREADS = 256
AT_ONCE = 4  # splits that a thread reads before it adds them


def combine_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """COMBINE. Where there are tiles, or single tokens are whole, `attended` has all results."""
    columns, put = f.num_heads * f.head_dim, activation_arguments(f, shape.mode)
    whole, work = shape.tiles > 0 or shape.splits == 1, []
    if shape.singles and shape.splits > 1:
        parts = next((n for n in (1, 2, 4) if shape.splits <= n * AT_ONCE), 8)
        out = (f.attended, 0, 0, 0, 0, 0) if whole else (0, *put)
        arguments = (f.partial, shape.splits, f.num_heads, f.head_dim, f.sinks, *out)
        grid = (-(-columns * parts // (THREADS * 4)), shape.singles, 1)
        work.append(Launch(f"attention_combine:combine_{parts}", grid, arguments))
    if whole:
        grid = (-(-columns // (THREADS * 4)), shape.tokens, 1)
        work.append(Launch("attention_combine:put_attended", grid, (f.attended, columns, *put)))
    return work


def attention_to_activations(attend: Fields, merge: Fields, shape: StepShape) -> list[Launch]:
    """ATTENTION and the COMBINE after it: one launch where there is nothing to merge."""
    in_blocks = attend.value_dim % 32 == 0  # each head has 32s of columns of its own
    if shape.tiles == 0 and shape.splits == 1 and in_blocks:
        into = activation_arguments(merge, shape.mode)
        return [decode(attend, shape, shape.singles, into=into)]
    return [*attention_rows(attend, shape), *combine_rows(merge, shape)]
