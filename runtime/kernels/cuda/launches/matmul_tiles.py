"""Matmuls of some tokens on tensor cores: which kernel a shape takes, and its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

from .....quant.cuda.tiles import LAYOUTS, ROWS, TILES, UNIT, tile_bytes
from ..launch import Launch, Matrix

COLUMNS = 8  # tokens of a block of activations
MAX_TOKENS = 64  # of a kernel; more are several passes over the weights
MAX_MEMBERS = 3


@dataclass(frozen=True, slots=True)
class Member:
    """A matmul of a launch: `rows` of a matrix from `first` on; out_stride: bytes a token."""

    matrix: Matrix
    first: int
    rows: int
    out: int
    out_stride: int
    bias: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """The activations (quantize.py, width 8): `columns` of a source's from `column_at` on.

    q, scales: addresses. source_columns: of the whole source.
    """

    q: int
    scales: int
    source_columns: int
    column_at: int
    columns: int


@dataclass(frozen=True, slots=True)
class Variant:
    """How a kernel divides its work.

    blocks: of eight tokens. tiles: that a warp multiplies at once. warps: of a block, which divide
    the columns.
    """

    layout: str
    blocks: int
    tiles: int
    warps: int

    @property
    def name(self) -> str:
        """The kernel's."""
        return f"{self.layout}_n{self.blocks}_r{self.tiles}_w{self.warps}"


def variant_for(layout: str, tiles: int, columns: int, blocks: int) -> Variant:
    """The variant for so many tiles of so many columns, and blocks of eight tokens."""
    steps = -(-columns // LAYOUTS[layout].columns)
    together = 2 if tiles >= 1024 or (blocks >= 3 and tiles >= 512) else 1
    warps = 2
    while warps < 16 and warps * 2 <= steps and -(-tiles // together) * warps < 2048:
        warps *= 2
    return Variant(layout, blocks, together, warps)


def tiles(
    members: Sequence[Member],
    given: Input,
    tokens: int,
    *,
    factor: float = 1.0,
    residual: bool = False,
    softcap: float = 0.0,
    variant: Variant | None = None,
) -> Launch:
    """Matmuls of one input by up to three matrices of one format, for a multiple of 8 tokens.

    out[token][row] = softcap(factor * (sum + bias) + residual), what `out` held before.
    """
    name = members[0].matrix.format
    passes = -(-tokens // MAX_TOKENS)
    blocks = tokens // COLUMNS // passes
    assert len(members) <= MAX_MEMBERS and blocks * COLUMNS * passes == tokens
    spans = [(m.first // ROWS, -(-(m.first + m.rows) // ROWS)) for m in members]
    if variant is None:
        count = sum(end - start for start, end in spans)
        variant = variant_for(TILES[name], count, given.columns, blocks)
    size = tile_bytes(name, given.columns)
    arguments: list[int | float] = []
    end = 0
    for i in range(MAX_MEMBERS):
        if i >= len(members):
            arguments += [end, 0, 1, 0, 0, 0, 0, 0]
            continue
        member, (start, stop) = members[i], spans[i]
        end += -(-(stop - start) // variant.tiles)
        at = member.matrix.tiles + start * size
        skipped = member.first - start * ROWS
        out = member.out - 4 * skipped
        bias = member.bias and member.bias - 4 * skipped
        rows = skipped + member.rows
        arguments += [end, at, stop - start, skipped, rows, out, member.out_stride, bias]
    units = given.column_at // UNIT
    arguments += [
        given.q + units * UNIT * COLUMNS,
        given.scales + units * 8 * COLUMNS,
        given.source_columns // UNIT,
        given.columns // UNIT,
        factor,
        softcap,
        int(residual),
    ]
    return Launch(f"matmul_tiles:{variant.name}", (end, passes, 1), tuple(arguments))
