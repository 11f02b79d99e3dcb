"""Matrices times the vectors of 1 to 8 tokens: how rows and columns are dealt out to blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from .....quant.cuda.planes import FLOATS, row_bytes
from ..launch import Fields, Launch, Matrix

THREADS = 128  # of a block: 4 warps
WARPS = THREADS // 32
FETCHES = 4
MAX_PARTS = 3
TOKENS = (1, 2, 4, 8)
ENOUGH_WARPS = 3000  # 24 on each of 128 multiprocessors
K_QUANTS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
USUAL = ("q4_0", "q8_0", "q4_k", "q5_k", "q6_k", "f32", "f16")
PIECE_COLUMNS = {"q8_0": 16, "f32": 4, "f16": 8, "bf16": 8, "q2_k": 64, "q3_k": 64}  # others: 32


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a matrix and where their results go. bias: 0, or a float32 a row (of these)."""

    matrix: Matrix
    first: int
    num_rows: int
    out: int
    out_stride: int
    bias: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """rows: of a warp at once. ahead: pieces of each that a thread has under way.

    split: warps (1, 2 or 4) that share a row's columns. blocks: 0, or how many at once the
    registers must suffice for. fetch: 0, or the bytes from one address to the next with which a
    block asks for its rows at the start, FETCHES times a thread.
    """

    rows: int
    ahead: int
    split: int
    blocks: int = 0
    fetch: int = 0

    @property
    def rows_a_block(self) -> int:
        """Rows of a block."""
        return WARPS // self.split * self.rows


def kernel_name(format_name: str, tokens: int, layout: Layout) -> str:
    """The kernel of a layout."""
    work = f"r{layout.rows}_a{layout.ahead}_s{layout.split}_b{layout.blocks}"
    return f"matvec:{format_name}_{tokens}_{work}"


def kernels() -> list[str]:
    """What `matvec` launches for the usual formats and sizes; others are made when asked for."""
    sizes = [(columns, rows) for columns in (2048, 4096, 14336) for rows in (1024, 4096, 32768)]
    names = [
        kernel_name(name, tokens, choose_layout(name, *size, tokens))
        for name in USUAL
        for tokens in TOKENS
        for size in sizes
    ]
    return list(dict.fromkeys(names))


def choose_layout(format_name: str, columns: int, num_rows: int, tokens: int) -> Layout:
    """Enough warps to fill a GPU, each with as much work as that leaves.

    Formats of few registers a piece have two under way, so that there are as many bytes as with
    the others.
    """
    steps = -(-columns // PIECE_COLUMNS.get(format_name, 32) // 32)  # of a warp for a row
    if tokens == 1 and format_name in ("q4_k", "q5_k", "q6_k"):
        return _one_token(format_name, columns, num_rows, steps)
    slim = tokens <= 2 and format_name not in K_QUANTS
    few = tokens > 4 or format_name in ("q2_k", "q3_k")
    layout = Layout(1, 1, 1)
    for rows in (1,) if few else (2, 1):
        for split in (1, 2, 4):
            if split <= steps:
                layout = Layout(rows, 2 if slim and steps >= 2 * split else 1, split)
                if num_rows // rows * split >= ENOUGH_WARPS:
                    return layout
    return layout


def _one_token(format_name: str, columns: int, num_rows: int, steps: int) -> Layout:
    """Of one token, as measured on an H200: four rows a warp unless there are very many."""
    if num_rows >= 16384:
        return Layout(2, 1, 1)
    enough = 1500 if format_name == "q4_k" else 4000
    split = next((n for n in (1, 2) if num_rows // 4 * n >= enough), 4)
    while split > steps:
        split //= 2
    # What is neither in flight at once anyway nor too much for the second-level cache.
    fetch = 32 if format_name == "q4_k" and 20e6 < num_rows * columns < 80e6 else 0
    return Layout(4, 1, max(1, split), fetch=fetch)


def matvec_launch(
    parts: Sequence[Part],
    x: int,
    x_stride: int,
    scales: int,
    scales_stride: int,
    tokens: int,
    layout: Layout,
    factor: float = 1.0,
    residual: bool = False,
    softcap: float = 0.0,
) -> Launch:
    """One launch for up to three matrices of one format and input, in the given layout."""
    matrix = parts[0].matrix
    width = row_bytes(matrix.format, matrix.columns)
    described: list[int] = []
    blocks = 0
    for part in parts:
        described += [
            part.matrix.planes + part.first * width, part.num_rows, part.out, part.out_stride,
            part.bias,
        ]  # fmt: skip
        blocks += -(-part.num_rows // layout.rows_a_block)
        described.append(blocks)
    for _ in range(MAX_PARTS - len(parts)):
        described += [*described[-6:-1], blocks]
    pieces = matrix.columns // PIECE_COLUMNS.get(matrix.format, 32)
    rounds = -(-pieces // (32 * layout.split * layout.ahead))
    work = (width, matrix.columns, rounds, layout.fetch)
    arguments = (*described, *work, x, x_stride, scales, scales_stride)
    name = kernel_name(matrix.format, tokens, layout)
    return Launch(name, (blocks, 1, 1), (*arguments, factor, int(residual), softcap))


def matvec(
    parts: Sequence[Part],
    x: Fields,
    tokens: int,
    factor: float = 1.0,
    residual: bool = False,
    softcap: float = 0.0,
) -> Launch:
    """out = softcap(factor * (W x + bias) + (out if residual)) of up to three matrices.

    All have one format and number of columns. x: the fields x_q, x_scales, x_plain, x_columns and
    column_at. tokens: 1, 2, 4 or 8, rows that are there in all buffers.
    """
    matrix = parts[0].matrix
    if matrix.format in FLOATS:
        where = (x.x_plain + 4 * x.column_at, 4 * x.x_columns, 0, 0)
    else:
        scales = x.x_scales + x.column_at // 32 * 8
        where = (x.x_q + x.column_at, x.x_columns, scales, x.x_columns // 32 * 8)
    num_rows = sum(part.num_rows for part in parts)
    layout = choose_layout(matrix.format, matrix.columns, num_rows, tokens)
    return matvec_launch(parts, *where, tokens, layout, factor, residual, softcap)
