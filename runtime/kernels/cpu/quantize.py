"""What the ops that feed a matmul share: one part of a row into the op's activation buffers."""

from ....quant.cpu.activations import quantize_row
from ....quant.cpu.simd import inline, load_i64
from ..records import NORM


@inline
def put_row(op, row, start, count, x):
    """Quantize columns start..start+count of token `row` from address x, as the record asks.

    The `act_*` fields lie at the same offsets in every record that has them.
    """
    columns = load_i64(op + NORM.act_columns)
    at = row * columns + start
    natural = load_i64(op + NORM.act_natural)
    pair32 = load_i64(op + NORM.act_pair32)
    pair16 = load_i64(op + NORM.act_pair16)
    plain = load_i64(op + NORM.act_float)
    quantize_row(
        x,
        count,
        natural + at if natural != 0 else 0,
        pair16 + at if pair16 != 0 else 0,
        load_i64(op + NORM.act_scale) + at // 4,
        load_i64(op + NORM.act_sums) + at // 4,
        pair32 + at if pair32 != 0 else 0,
        load_i64(op + NORM.act_pair_scale) + at // 8,
        load_i64(op + NORM.act_pair_sums) + at // 8,
        plain + 4 * at if plain != 0 else 0,
    )
