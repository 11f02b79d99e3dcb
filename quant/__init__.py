"""Numbers: the tensor formats, from their bytes to dot products. One file a format."""

from ..errors import UnsupportedModelError
from . import (
    bf16,
    f16,
    f32,
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    iq4_nl,
    iq4_xs,
    mxfp4,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    tq1_0,
    tq2_0,
)
from .format import Format

__all__ = ["FORMATS", "FORMATS_BY_NAME", "Format", "format_of"]

_MODULES = (
    f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, q2_k, q3_k, iq4_nl, iq4_xs,
    mxfp4, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq1_s, iq1_m, tq1_0, tq2_0,
)  # fmt: skip

FORMATS: dict[int, Format] = {m.FORMAT.type_id: m.FORMAT for m in _MODULES}
FORMATS_BY_NAME: dict[str, Format] = {f.name: f for f in FORMATS.values()}


def format_of(type_id: int, what: str = "") -> Format:
    """Look up a format by GGUF's type id; UnsupportedModelError naming it and `what` (a tensor)."""
    if (found := FORMATS.get(type_id)) is not None:
        return found
    raise UnsupportedModelError(
        f"{what or 'tensor'}: format {type_id} is not run; supported: {', '.join(FORMATS_BY_NAME)}"
    )
