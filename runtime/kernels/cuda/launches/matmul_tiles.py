"""Matmuls of some tokens on tensor cores: which kernel a shape takes, and its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

from .....quant.cuda.tiles import LAYOUTS, ROWS, TILES, UNIT, num_tiles, tile_bytes
from ..launch import Fields, Launch
from .matvec import MAX_PARTS, Part

COLUMNS = 8  # tokens of a block of activations
# From so many blocks of tokens on float16 is faster than bytes, by format; never with others.
HALF_BLOCKS = {"q4_k": 2, "q4_0": 2, "q8_0": 2}
# From so many tokens on cuBLAS is faster, if it is no output matrix (measured on an H200).
BLAS_TOKENS, BLAS_ROWS = {"q6_k": 16, "q5_k": 24}, 32768
MAX_TOKENS = 64  # of a kernel; more are several passes over the weights


@dataclass(frozen=True, slots=True)
class Variant:
    """How a kernel divides its work.

    blocks: of eight tokens. tiles: that a warp multiplies at once. across: warps of a block that
    take other tiles; along: that divide the columns. half: multiplied as float16. resident: blocks
    that a multiprocessor's registers must suffice for at once (0: as it comes).
    """

    layout: str
    blocks: int
    tiles: int
    across: int
    along: int
    half: bool = False
    resident: int = 0

    @property
    def name(self) -> str:
        """The kernel's."""
        work = f"n{self.blocks}_r{self.tiles}_a{self.across}_w{self.along}_b{self.resident}"
        return f"{'half_' if self.half else ''}{self.layout}_{work}"


def variant_for(layout: str, tiles: int, columns: int, blocks: int, half: bool) -> Variant:
    """The variant for so many tiles of so many columns, and blocks of eight tokens."""
    steps = -(-columns // LAYOUTS[layout].columns)
    if tiles >= 1024:
        shape = (2, 1, 4) if blocks < 3 else (2, 2, 2)
    elif tiles >= 384 and blocks > 1:
        shape = (2, 1, 4) if half else (1, 2, 4)
    else:
        shape = (1, 1, 8)
    together, across, along = shape
    while along > 2 and along > steps:
        along //= 2
    return Variant(layout, blocks, together, across, along, half)


def blas_is_faster(format_name: str, rows: int, tokens: int) -> bool:
    """Whether a float16 copy is better read by cuBLAS than tiles by tensor cores here."""
    return rows < BLAS_ROWS and tokens >= BLAS_TOKENS.get(format_name, 1 << 30)


def tiles(
    parts: Sequence[Part],
    x: Fields,
    tokens: int,
    factor: float = 1.0,
    residual: bool = False,
    softcap: float = 0.0,
    variant: Variant | None = None,
) -> Launch:
    """out = softcap(factor * (W x + bias) + (out if residual)) of up to three matrices.

    All have tiles of one format and number of columns. x: the fields x_half, or x_q and x_scales
    (of width 8), x_columns and column_at. tokens: a multiple of 8, rows that are there in all
    buffers.
    """
    matrix = parts[0].matrix
    passes = -(-tokens // MAX_TOKENS)
    blocks = tokens // COLUMNS // passes
    assert len(parts) <= MAX_PARTS and blocks * COLUMNS * passes == tokens
    spans = [(p.first // ROWS, num_tiles(p.first + p.num_rows)) for p in parts]
    if variant is None:
        count = sum(end - start for start, end in spans)
        enough = blocks >= HALF_BLOCKS.get(TILES[matrix.format], 99)
        half = x.x_half != 0 and (enough or not x.x_q)
        variant = variant_for(TILES[matrix.format], count, matrix.columns, blocks, half)
    size = tile_bytes(matrix.format, matrix.columns)
    described: list[int] = []
    end = 0
    for part, (start, stop) in zip(parts, spans, strict=True):
        end += -(-(stop - start) // (variant.tiles * variant.across))
        skipped = part.first - start * ROWS
        bias = part.bias and part.bias - 4 * skipped
        described += [
            end, part.matrix.tiles + start * size, stop - start, skipped, skipped + part.num_rows,
            part.out - 4 * skipped, part.out_stride, bias,
        ]  # fmt: skip
    described += [end, 0, 1, 0, 0, 0, 0, 0] * (MAX_PARTS - len(parts))
    if variant.half:
        source = (x.x_half + 2 * x.column_at, 0, 2 * x.x_columns)
    else:
        units = x.column_at // UNIT
        q, scales = x.x_q + units * UNIT * COLUMNS, x.x_scales + units * 8 * COLUMNS
        source = (q, scales, x.x_columns // UNIT)
    arguments = (*described, *source, matrix.columns // UNIT, factor, softcap, int(residual))
    return Launch(f"matmul_tiles:{variant.name}", (end, passes, 1), arguments)
