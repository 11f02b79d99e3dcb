"""ATTENTION: single tokens split over their pages, chunks in tiles."""

from ...records import PAGE
from ..launch import Fields, Launch, StepShape

QUERIES = 8  # heads that share what is read of K and V
CHUNK = 16  # positions that a warp works on at once
WIDTH = 128  # of V's columns, the most that a warp works on


def room(dim: int) -> int:
    """Columns of a head in pages."""
    return -(-dim // 32) * 32


def split_bytes(num_heads: int, value_dim: int, tokens: int) -> int:
    """What the partial results of a split take: [token][head][split][m, l, 0, 0, values]."""
    return tokens * num_heads * (value_dim + 4) * 4


def seen_arguments(f: Fields, shape: StepShape) -> tuple[int | float, ...]:
    """Queries, pages, and what is seen of them, as kernels take them."""
    return (
        *(f.q, f.stride, f.num_kv_heads, f.group, f.key_dim, f.value_dim),
        *(f.kv, f.page_bytes, f.head_bytes),
        *(shape.step.positions, shape.step.ends, shape.step.tables),
        *(f.window, f.ahead, f.number("softcap"), f.slopes),
    )


def decode(f: Fields, shape: StepShape, first: int, tokens: int, splits: int) -> Launch:
    """Of `tokens` tokens from `first` on: in splits, or, if that is 1, whole to `attended`."""
    pieces = -(-f.group // QUERIES)
    kernel = f"attention:decode_{f.kv_type}_{room(f.key_dim)}_{room(f.value_dim)}"
    grid = (f.num_kv_heads * pieces, splits, tokens)
    out = (f.sinks, splits, 0, f.attended) if splits == 1 else (0, splits, f.out, 0)
    return Launch(kernel, grid, (*seen_arguments(f, shape), first, pieces, *out))


def attention_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """ATTENTION."""
    work = []
    if shape.singles:
        work.append(decode(f, shape, 0, shape.singles, shape.splits))
    if shape.tiles:
        work.append(decode(f, shape, shape.singles, shape.tokens - shape.singles, 1))
    return work


assert PAGE == 2 * CHUNK
