"""Token embeddings: rows of the embedding matrix as float32, times the architecture's scale.

Where a model has them, the row of the token's position and a constant row are added.
"""

from ....quant.cuda.memory import load_f32x4, load_i32, store_f32x4
from ....quant.cuda.row_formats import ROW_FORMATS
from ....quant.cuda.rows import RowFormat
from ....quant.cuda.simt import (
    Kernel,
    bits_f32,
    block_x,
    i64,
    inline,
    kernel,
    let_next_start,
    make_f32x4,
    thread,
    wait_for_inputs,
)
from .dequantize import word_values

THREADS = 256


@inline
def _put(v, scale, column, out, positions, constant):
    """Four columns."""
    a, b, c, d = v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale
    if constant != 0:
        more = load_f32x4(constant + 4 * column)
        a, b, c, d = a + more[0], b + more[1], c + more[2], d + more[3]
    if positions != 0:
        more = load_f32x4(positions + 4 * column)
        a, b, c, d = a + more[0], b + more[1], c + more[2], d + more[3]
    store_f32x4(out + 4 * column, make_f32x4(a, b, c, d))


@inline
def _position_row(token, columns, positions, position_rows, num_positions):
    """The address of the row for a token's position, or 0."""
    if position_rows == 0:
        return 0
    position = i64(load_i32(positions + 4 * token))
    return position_rows + min(position, num_positions - 1) * columns * 4


def _make(form: RowFormat) -> Kernel:
    groups, per_group = form.groups, form.run // 4
    is_float = form.is_float
    load, prepare, start = form.load, form.prepare, form.start
    value = word_values(form)
    bits = form.columns.bit_length() - 1

    @kernel(block=THREADS)
    def embed(
        planes, width, columns, token_ids, scale: float, out, out_stride, positions,
        position_rows, num_positions, constant,
    ):  # fmt: skip
        """A token a block."""
        let_next_start()
        wait_for_inputs()
        token = block_x()
        row = planes + i64(load_i32(token_ids + 4 * token)) * width
        more = _position_row(token, columns, positions, position_rows, num_positions)
        to = out + token * out_stride
        for piece in range(thread(), columns >> bits, THREADS):
            made = prepare(load(row, columns, piece), piece)
            for g in range(groups):
                for k in range(per_group):
                    at = g * per_group + k
                    if is_float:
                        v = make_f32x4(
                            bits_f32(made[4 * at]),
                            bits_f32(made[4 * at + 1]),
                            bits_f32(made[4 * at + 2]),
                            bits_f32(made[4 * at + 3]),
                        )
                    else:
                        v = make_f32x4(
                            value(made, g, made[at], 0),
                            value(made, g, made[at], 1),
                            value(made, g, made[at], 2),
                            value(made, g, made[at], 3),
                        )
                    _put(v, scale, start(piece, g) + 4 * k, to, more, constant)

    return embed


for _name, _form in ROW_FORMATS.items():
    globals()[_name] = _make(_form)
