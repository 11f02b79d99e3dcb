"""ATTENTION: single tokens split over their pages, chunks in tiles."""

from ...records import PAGE
from ..launch import Fields, Launch, StepShape

QUERIES = 8  # heads that share what is read of K and V
CHUNK = 16  # positions that a warp works on at once
WIDTH = 128  # of V's columns, the most that a warp works on
_BLOCKS = 264  # two for each multiprocessor of an H200
_MOST_SPLITS = 64
_LEAST = 64  # positions of a split: 16 for each warp
_SHARED_BYTES = 48 << 10


def room(dim: int) -> int:
    """Columns of a head in pages."""
    return -(-dim // 32) * 32


def split_bytes(num_heads: int, value_dim: int, tokens: int) -> int:
    """What the partial results of a split take: [token][head][split][m, l, 0, 0, values]."""
    return tokens * num_heads * (value_dim + 4) * 4


def choose_splits(tokens: int, longest: int, num_heads: int, num_kv_heads: int) -> int:
    """Into how many pieces the pages of `tokens` single tokens are split, at most `longest` each.

    A power of two, so that there are few different steps.
    """
    pieces = num_kv_heads * -(-num_heads // num_kv_heads // QUERIES)
    most = min(_MOST_SPLITS, longest // _LEAST, _BLOCKS // (tokens * pieces))
    return 1 << (most.bit_length() - 1) if most > 1 else 1


def partial_bytes(num_heads: int, value_dim: int, max_singles: int) -> int:
    """The most that partial results of up to so many tokens take in any number of splits."""
    each = -(-num_heads // QUERIES)  # the fewest blocks of a token's split
    most = min(_BLOCKS // each, max_singles * _MOST_SPLITS)
    return split_bytes(num_heads, value_dim, max(most, 1))


def stage_of(key_room: int, value_room: int) -> int:
    """Positions whose K and V shared memory holds twice, for tiles; 0: not even 16."""
    fitting = (n for n in (32, 16) if 4 * n * (key_room + value_room + 16) <= _SHARED_BYTES)
    return next(fitting, 0)


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


def tiles(f: Fields, shape: StepShape) -> Launch:
    """Of the pieces of chunks."""
    key_room, value_room = room(f.key_dim), room(f.value_dim)
    if f.kv_type == "f32" or not stage_of(key_room, value_room):  # token by token
        return decode(f, shape, shape.singles, shape.tokens - shape.singles, 1)
    kernel = f"attention_tiles:tiles_{f.kv_type}_{key_room}_{value_room}"
    arguments = (*seen_arguments(f, shape), shape.step.tiles, f.sinks, f.attended)
    return Launch(kernel, (shape.tiles, f.num_kv_heads * f.group, 1), arguments)


def attention_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """ATTENTION."""
    work = []
    if shape.singles:
        work.append(decode(f, shape, 0, shape.singles, shape.splits))
    if shape.tiles:
        work.append(tiles(f, shape))
    return work


assert PAGE == 2 * CHUNK
