"""Each chosen expert's own matrix times the tokens that chose it; and their weighted sums.

A slot (route.py) is a pair of a token and an expert. A warp takes a few rows of the expert's
matrix, each of its threads pieces of them (quant/cuda/rows.py), for one slot, or for those of
TOGETHER sorted slots in a row that have the same expert.
"""

from typing import Any

from ....quant.cuda.memory import load_f32, load_f32x4, load_i64, store_f32, store_f32x4
from ....quant.cuda.row_formats import ROW_FORMATS
from ....quant.cuda.rows import RowFormat
from ....quant.cuda.simt import (
    Kernel,
    block_x,
    block_y,
    f32_of,
    fma,
    i32,
    i64,
    inline,
    kernel,
    let_next_start,
    make_f32x4,
    put,
    put_part,
    take,
    thread,
    wait_for_inputs,
    warp_sum,
    zero,
)
from .launches.experts import MERGING, THREADS, TOGETHER, WARPS, rows_of

_LOW = (1 << 32) - 1
_tokens, _put_token = zero(f"i32x{TOGETHER}"), put(f"i32x{TOGETHER}")


class _Rows:
    """What kernels say of `count` rows of a format: inline functions."""

    def __init__(self, form: RowFormat, count: int) -> None:
        loaded, prepared = f"i32x{form.loaded * count}", f"i32x{form.prepared * count}"
        none_loaded, put_load = zero(loaded), put_part(loaded, form.loaded)
        none_made, put_made = zero(prepared), put_part(prepared, form.prepared)
        take_load, take_made = take(loaded, form.loaded), take(prepared, form.prepared)
        load, prepare = form.load, form.prepare

        @inline
        def read(matrix, row_bytes, first, rows, columns, piece):
            """A piece of each row from `first` on."""
            found, made = none_loaded(), none_made()
            for r in range(count):
                row = matrix + min(first + r, rows - 1) * row_bytes
                found = put_load(found, r, load(row, columns, piece))
            for r in range(count):
                made = put_made(made, r, prepare(take_load(found, r), piece))
            return made

        @inline
        def finish(sums, k, first, rows, out, bias):
            """The sums from element k on over a warp, to its rows; by thread r that of row r."""
            lane, mine = thread() & 31, f32_of(0)
            for r in range(count):
                total = warp_sum(sums[k + r])
                if lane == r:
                    mine = total
            row = first + lane
            if lane < count and row < rows:
                if bias != 0:
                    mine = mine + load_f32(bias + 4 * row)
                store_f32(out + 4 * row, mine)

        self.read, self.take, self.finish = read, take_made, finish


def _make(form: RowFormat, count: int) -> Kernel:
    """The kernel of one slot after the other."""
    many = _Rows(form, count)
    read, take_row, finish = many.read, many.take, many.finish
    take_input, dot, columns_bits = form.take_input, form.dot, form.columns.bit_length() - 1
    no_sums, put_sum = zero(f"f32x{count}"), put(f"f32x{count}")

    @kernel(block=THREADS)
    def experts(
        slots, num_slots, row_bytes, rows, columns, x, x_step, scales, scales_step, divide,
        out_stride, blocks, weight, out, bias, other_weight, other_out, other_bias,
    ):  # fmt: skip
        """A slot a row of the grid; from block `blocks` of it on, the other matrix."""
        let_next_start()
        block = block_x()
        if block >= blocks:
            block, weight, out, bias = block - blocks, other_weight, other_out, other_bias
        first = (block * WARPS + (thread() >> 5)) * count
        wait_for_inputs()
        slot = load_i64(slots + 8 * block_y())
        expert, pair = slot >> 32, slot & _LOW
        matrix, token = weight + expert * rows * row_bytes, pair // divide
        sums = no_sums()
        for piece in range(thread() & 31, columns >> columns_bits, 32):
            made = read(matrix, row_bytes, first, rows, columns, piece)
            given = take_input(x + token * x_step, scales + token * scales_step, piece)
            for r in range(count):
                sums = put_sum(sums, r, sums[r] + dot(take_row(made, r), given))
        own = 0 if bias == 0 else bias + 4 * expert * rows
        finish(sums, 0, first, rows, out + pair * out_stride, own)

    return experts


def _make_sorted(form: RowFormat, count: int) -> Kernel:
    """The kernel of TOGETHER sorted slots."""
    many = _Rows(form, count)
    read, take_row, finish = many.read, many.take, many.finish
    take_input, dot, columns_bits = form.take_input, form.dot, form.columns.bit_length() - 1
    no_sums, put_sum = zero(f"f32x{count * TOGETHER}"), put(f"f32x{count * TOGETHER}")

    @kernel(block=THREADS)
    def experts_sorted(
        slots, num_slots, row_bytes, rows, columns, x, x_step, scales, scales_step, divide,
        out_stride, blocks, weight, out, bias, other_weight, other_out, other_bias,
    ):  # fmt: skip
        """TOGETHER slots a row of the grid, of one or several experts; `blocks` as above."""
        let_next_start()
        block = block_x()
        if block >= blocks:
            block, weight, out, bias = block - blocks, other_weight, other_out, other_bias
        first = (block * WARPS + (thread() >> 5)) * count
        begin = block_y() * TOGETHER
        end = min(begin + TOGETHER, num_slots)
        wait_for_inputs()
        for start in range(begin, end):
            expert, before = load_i64(slots + 8 * start) >> 32, -1
            if start > begin:
                before = load_i64(slots + 8 * (start - 1)) >> 32
            if before != expert:  # a run of slots of this expert
                tokens, length = _tokens(), 0
                for i in range(TOGETHER):
                    if start + i < end:
                        slot = load_i64(slots + 8 * (start + i))
                        if slot >> 32 == expert:
                            tokens = _put_token(tokens, i, i32((slot & _LOW) // divide))
                            length = i + 1
                matrix, sums = weight + expert * rows * row_bytes, no_sums()
                for piece in range(thread() & 31, columns >> columns_bits, 32):
                    made = read(matrix, row_bytes, first, rows, columns, piece)
                    for i in range(TOGETHER):
                        if i < length:
                            t = i64(tokens[i])
                            given = take_input(x + t * x_step, scales + t * scales_step, piece)
                            for r in range(count):
                                k = i * count + r
                                sums = put_sum(sums, k, sums[k] + dot(take_row(made, r), given))
                own = 0 if bias == 0 else bias + 4 * expert * rows
                for i in range(TOGETHER):
                    if i < length:
                        pair = load_i64(slots + 8 * (start + i)) & _LOW
                        finish(sums, i * count, first, rows, out + pair * out_stride, own)

    return experts_sorted


def __getattr__(name: str) -> Any:
    """The kernel of a name: sorted_q4_k, alone_f32."""
    kind, _, form = name.partition("_")
    if kind not in ("alone", "sorted") or form not in ROW_FORMATS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    make = _make_sorted if kind == "sorted" else _make
    made = globals()[name] = make(ROW_FORMATS[form], rows_of(form))
    return made


@kernel(block=MERGING)
def merge(y, used, weights, columns, out, residual, factor: float):
    """Of each token: factor * the sum of its experts' results by their weights, by rank."""
    let_next_start()
    wait_for_inputs()
    token = block_y()
    column = (block_x() * MERGING + thread()) * 4
    if column < columns:
        a, b, c, d = f32_of(0), f32_of(0), f32_of(0), f32_of(0)
        for pair in range(token * used, (token + 1) * used):
            w, v = load_f32(weights + 4 * pair), load_f32x4(y + 4 * (pair * columns + column))
            a, b, c, d = fma(w, v[0], a), fma(w, v[1], b), fma(w, v[2], c), fma(w, v[3], d)
        at = out + 4 * (token * columns + column)
        a, b, c, d = a * factor, b * factor, c * factor, d * factor
        if residual != 0:
            old = load_f32x4(at)
            a, b, c, d = a + old[0], b + old[1], c + old[2], d + old[3]
        store_f32x4(at, make_f32x4(a, b, c, d))
