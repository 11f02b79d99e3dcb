"""Q5_0: 32 times 5 bits and a scale, by the extreme or, with importance, by a search."""

from ..cpu.simd import kernel
from .plain import symmetric
from .weighted import weighted_symmetric

_weighted = weighted_symmetric(5)


@kernel
def quantize(values, importance, out, num_rows, columns, scratch):
    """Float32 rows at `values` to blocks at `out`; importance of the columns, or 0."""
    if importance == 0:
        symmetric(values, out, num_rows * columns // 32, 5)
    else:
        _weighted(values, importance, out, num_rows, columns, scratch)
    return 0
