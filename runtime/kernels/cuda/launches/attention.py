"""ATTENTION: single tokens split over their pages, chunks in tiles."""

from ...records import PAGE
from ..launch import Fields, Launch, StepShape

QUERIES = 8  # heads that share what is read of K and V
CHUNK = 16  # positions that a warp works on at once
WIDTH = 128  # of V's columns, the most that a warp works on
_BLOCKS = 264  # two for each multiprocessor of an H200
_MOST_SPLITS = 64
_LEAST = 64  # positions of a split: 16 for each warp
_WHOLE = 256  # positions up to which the launch that merges costs more than it saves
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
    if longest <= _WHOLE:
        return 1
    pieces = num_kv_heads * -(-num_heads // num_kv_heads // QUERIES)
    most = min(_MOST_SPLITS, longest // _LEAST, _BLOCKS // (tokens * pieces))
    return 1 << (most.bit_length() - 1) if most > 1 else 1


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


def slices_of(value_room: int) -> int:
    """Of V's columns: each is a warp's."""
    return -(-value_room // WIDTH)


def groups_of(f: Fields, blocks: int) -> int:
    """Of a block's warps: each has positions of its own. More where blocks are few.

    What they find must fit into shared memory, beside 32 bytes for a column of K.
    """
    key_room, value_room = room(f.key_dim), room(f.value_dim)
    wanted = 8 if blocks <= _BLOCKS // 2 else 4
    wanted = 4 if f.kv_type == "f32" else max(1, wanted // slices_of(value_room))
    space = _SHARED_BYTES - 32 * key_room
    most = space // (QUERIES * (slices_of(value_room) * WIDTH * 4 + 8))
    return next(n for n in (8, 4, 2, 1) if n <= min(wanted, most))


def decode(
    f: Fields,
    shape: StepShape,
    tokens: int,
    *,
    first: int = 0,
    splits: int = 1,
    into: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0),
) -> Launch:
    """Of `tokens` tokens from `first` on.

    In splits to f.out; one is the whole: to f.attended, or, if it is given, into activations.
    """
    pieces = -(-f.group // QUERIES)
    blocks = f.num_kv_heads * pieces * tokens
    groups = groups_of(f, blocks if splits == 1 else _BLOCKS)
    kernel = f"attention:decode_{f.kv_type}_{room(f.key_dim)}_{room(f.value_dim)}_{groups}"
    grid = (f.num_kv_heads * pieces, splits, tokens)
    attended = 0 if any(into) else f.attended
    out = (f.sinks, splits, 0, attended) if splits == 1 else (0, splits, f.out, 0)
    return Launch(kernel, grid, (*seen_arguments(f, shape), first, pieces, *out, *into))


def tiles(f: Fields, shape: StepShape) -> list[Launch]:
    """Of the pieces of chunks; nothing where the single tokens, filled up, are all tokens."""
    key_room, value_room = room(f.key_dim), room(f.value_dim)
    if f.kv_type == "f32" or not stage_of(key_room, value_room):  # token by token
        left = shape.tokens - shape.singles
        return [decode(f, shape, left, first=shape.singles)] if left else []
    kernel = f"attention_tiles:tiles_{f.kv_type}_{key_room}_{value_room}"
    arguments = (*seen_arguments(f, shape), shape.step.tiles, f.sinks, f.attended)
    return [Launch(kernel, (shape.tiles, f.num_kv_heads * f.group, 1), arguments)]


def attention_rows(f: Fields, shape: StepShape) -> list[Launch]:
    """ATTENTION."""
    work = []
    if shape.singles:
        work.append(decode(f, shape, shape.singles, splits=shape.splits))
    if shape.tiles:
        work += tiles(f, shape)
    return work


assert PAGE == 2 * CHUNK
