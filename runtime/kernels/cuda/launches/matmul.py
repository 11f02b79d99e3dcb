"""MATMUL: which kernels a matrix product becomes, and which of them run as one."""

from collections.abc import Sequence
from dataclasses import replace

from ..launch import Fields, Gemm, Matrix, Mode, StepShape, Work
from .bias import finish_rows
from .dequantize import dequantize
from .matmul_tiles import blas_is_faster, tiles
from .matvec import MAX_PARTS, Part, matvec

SINGLE_LIMIT = 32  # tokens up to which matrices of float32 are read by our own kernel
HALF_LIMIT = 8  # and those of float16 and bfloat16
SCRATCH_BYTES = 64 << 20  # of float16 that a matrix is decoded to at a time


def matmul_rows(fields: Sequence[Fields], shape: StepShape, scratch: int) -> list[Work]:
    """Products of one input (`can_group`); scratch: SCRATCH_BYTES for decoded weights."""
    first = fields[0]
    matrix: Matrix = first.matrix
    tokens = shape.tokens
    if matrix.format == "f32":
        if tokens <= SINGLE_LIMIT:
            return _own(fields, tokens)
        return [work for f in fields for work in _single(f, shape)]
    if matrix.format in ("f16", "bf16"):
        if tokens <= HALF_LIMIT:
            return _own(fields, tokens)
        return [work for f in fields for work in _half(f, shape, scratch)]
    if shape.mode is Mode.INT8:
        return _own(fields, tokens)
    blas = matrix.half and blas_is_faster(matrix.format, matrix.rows, tokens)
    if shape.mode is Mode.TILES and matrix.tiles and not blas:
        parts, ending = _parts(fields), _ending(first)
        groups = [parts[at : at + MAX_PARTS] for at in range(0, len(parts), MAX_PARTS)]
        return [tiles(group, first, tokens, *ending) for group in groups]
    return [work for f in fields for work in _half(f, shape, scratch)]


def can_group(a: Fields, b: Fields) -> bool:
    """Whether two ops that follow each other read the same and end alike."""
    same = ("x_q", "x_plain", "x_half", "x_columns", "column_at", "columns", "factor", "softcap")
    return (
        a.matrix.format == b.matrix.format
        and not (a.residual or b.residual)
        and all(getattr(a, name) == getattr(b, name) for name in same)
    )


def _parts(fields: Sequence[Fields]) -> list[Part]:
    return [Part(f.matrix, f.first, f.num_rows, f.out, f.out_stride, f.bias) for f in fields]


def _ending(f: Fields) -> tuple[float, bool, float]:
    return f.number("factor"), bool(f.residual), f.number("softcap")


def _own(fields: Sequence[Fields], tokens: int) -> list[Work]:
    """Our own kernels, of at most eight tokens each."""
    works: list[Work] = []
    step = min(tokens, 8)
    for start in range(0, tokens, step):
        x = fields[0] if not start else fields[0].moved(x_plain=4 * start * fields[0].x_columns)
        parts = [replace(p, out=p.out + start * p.out_stride) for p in _parts(fields)]
        for at in range(0, len(parts), MAX_PARTS):
            works.append(matvec(parts[at : at + MAX_PARTS], x, step, *_ending(fields[0])))
    return works


def _single(f: Fields, shape: StepShape) -> list[Work]:
    weight = f.matrix.planes + f.first * f.matrix.columns * 4
    return [_gemm(f, shape.tokens, weight, 0, f.num_rows, single=True), *finish_rows(f, shape)]


def _half(f: Fields, shape: StepShape, scratch: int) -> list[Work]:
    """By cuBLAS, of float16 weights that are there or made on the way, slice by slice."""
    matrix: Matrix = f.matrix
    half = matrix.planes if matrix.format == "f16" else matrix.half
    if half:
        weight = half + f.first * matrix.columns * 2
        return [_gemm(f, shape.tokens, weight, 0, f.num_rows), *finish_rows(f, shape)]
    works: list[Work] = []
    step = max(1, SCRATCH_BYTES // (2 * matrix.columns))
    for start in range(0, f.num_rows, step):
        rows = min(step, f.num_rows - start)
        works += [
            dequantize(matrix, f.first + start, rows, scratch),
            _gemm(f, shape.tokens, scratch, start, rows),
        ]
    return [*works, *finish_rows(f, shape)]


def _gemm(
    f: Fields, tokens: int, weight: int, start: int, rows: int, *, single: bool = False
) -> Gemm:
    x, size = (f.x_plain, 4) if single else (f.x_half, 2)
    return Gemm(
        weight=weight,
        x=x + f.column_at * size,
        out=f.out + 4 * start,
        rows=rows,
        columns=f.matrix.columns,
        tokens=tokens,
        x_stride=f.x_columns,
        out_stride=f.out_stride // 4,
        alpha=f.number("factor"),
        beta=float(bool(f.residual)),
        single=single,
    )
