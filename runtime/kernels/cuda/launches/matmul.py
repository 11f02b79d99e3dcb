"""MATMUL: which kernels a matrix product becomes, and which of them run as one."""

from collections.abc import Sequence

from ..launch import Fields, Gemm, Launch, Matrix, Mode, StepShape, Work
from .bias import finish_rows
from .dequantize import dequantize
from .matmul_tiles import tiles
from .matvec import MAX_GROUP, Input, Part, matvec

SINGLE_LIMIT = 32  # tokens up to which matrices of float32 are read by our own kernel
HALF_LIMIT = 8  # and those of float16 and bfloat16
_SLICE_BYTES = 64 << 20  # of float16 that a matrix is decoded to at a time


def matmul_rows(fields: Sequence[Fields], shape: StepShape, scratch: int) -> list[Work]:
    """Products of one input (`can_group`); scratch: SCRATCH_BYTES for decoded weights."""
    first = fields[0]
    matrix: Matrix = first.matrix
    tokens = shape.tokens
    if matrix.format == "f32":
        if tokens <= SINGLE_LIMIT:
            return _own(fields, tokens)
        return [work for f in fields for work in _single(f, tokens)]
    if matrix.format in ("f16", "bf16"):
        if tokens <= HALF_LIMIT:
            return _own(fields, tokens)
        return [work for f in fields for work in _half(f, tokens, scratch)]
    if shape.mode is Mode.INT8:
        return _own(fields, tokens)
    if shape.mode is Mode.TILES:
        return [tiles(_parts(fields), _input(first), *_ending(first), tokens)]
    return [work for f in fields for work in _half(f, tokens, scratch)]


SCRATCH_BYTES = _SLICE_BYTES


def can_group(a: Fields, b: Fields) -> bool:
    """Whether two ops that follow each other read the same and end alike."""
    same = ("x_q", "x_plain", "x_half", "x_columns", "column_at", "columns", "factor", "softcap")
    return (
        a.matrix.format == b.matrix.format
        and not (a.residual or b.residual)
        and all(getattr(a, name) == getattr(b, name) for name in same)
    )


def _input(f: Fields) -> Input:
    return Input(
        q=f.x_q,
        scales=f.x_scales,
        plain=f.x_plain,
        columns=f.x_columns,
        at=f.column_at,
    )


def _parts(fields: Sequence[Fields]) -> list[Part]:
    return [Part(f.matrix, f.first, f.num_rows, f.out, f.out_stride, f.bias) for f in fields]


def _ending(f: Fields) -> tuple[float, bool, float]:
    return f.number("factor"), bool(f.residual), f.number("softcap")


def _own(fields: Sequence[Fields], tokens: int) -> list[Work]:
    """Our own kernels, of at most eight tokens each."""
    parts, works = _parts(fields), []
    step = min(tokens, 8)
    for start in range(0, tokens, step):
        for at in range(0, len(parts), MAX_GROUP):
            works.append(
                matvec(parts[at : at + MAX_GROUP], _input(fields[0]), *_ending(fields[0]), step, start)
            )
    return works


def _single(f: Fields, tokens: int) -> list[Work]:
    weight = f.matrix.planes + f.first * f.matrix.columns * 4
    return [_gemm(f, tokens, weight, 0, f.num_rows, single=True), *_finish(f, tokens)]


def _half(f: Fields, tokens: int, scratch: int) -> list[Work]:
    """By cuBLAS, of float16 weights that are there or made on the way, slice by slice."""
    matrix: Matrix = f.matrix
    half = matrix.planes if matrix.format == "f16" else matrix.half
    if half:
        weight = half + f.first * matrix.columns * 2
        return [_gemm(f, tokens, weight, 0, f.num_rows), *_finish(f, tokens)]
    works: list[Work] = []
    step = max(1, _SLICE_BYTES // (2 * matrix.columns))
    for start in range(0, f.num_rows, step):
        rows = min(step, f.num_rows - start)
        works += [
            dequantize(matrix, f.first + start, rows, scratch),
            _gemm(f, tokens, scratch, start, rows),
        ]
    return [*works, *_finish(f, tokens)]


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


def _finish(f: Fields, tokens: int) -> list[Launch]:
    """The bias, times the factor, and the soft cap."""
    if not f.bias and not f.softcap:
        return []
    return [
        finish_rows(
            out=f.out,
            out_stride=f.out_stride,
            rows=f.num_rows,
            tokens=tokens,
            bias=f.bias,
            factor=f.number("factor"),
            softcap=f.number("softcap"),
        )
    ]


def kernels() -> list[str]:
    """None of its own."""
    return []


