"""The non-linearity of a feed-forward block, on its way into the down projection.

All are f(gate) * g(up), as in cpu/activation.py: SiLU, GELU's tanh form and gpt-oss's are
x / (1 + exp(-z)), where z is x, 2 sqrt(2 / pi) (x + 0.044715 x^3) or 1.702 x.
"""

import numpy as np

from ....quant.cuda.memory import load_f32, load_f32x4
from ....quant.cuda.simt import (
    block_x,
    block_y,
    exp2,
    f32_of,
    inline,
    kernel,
    let_next_start,
    make_f32x4,
    maximum,
    minimum,
    reciprocal,
    thread,
    wait_for_inputs,
)
from .launches.activation import THREADS
from .quantize import put_activations

# Of exp2: -log2(e), and with it -2 sqrt(2 / pi) and -1.702.
_SILU, _GELU = np.float32(-1.4426950408889634), np.float32(-2.302208198144325)
_STEEP = np.float32(-2.4554669595930157)
_CUBIC, _LIMIT = np.float32(0.044715), np.float32(7)


@inline
def _logistic(x, z):
    """x / (1 + 2^z)."""
    return x * reciprocal(f32_of(1) + exp2(z))


@inline
def _gate(x, up, kind):
    """f(x) * g(up); kinds as models/architecture.py's Activation."""
    if kind == 0:
        return _logistic(x, x * _SILU) * up
    if kind == 1:
        return _logistic(x, x * (f32_of(1) + x * x * _CUBIC) * _GELU) * up
    if kind == 4:
        x = minimum(x, _LIMIT)
        return _logistic(x, x * _STEEP) * (f32_of(1) + minimum(maximum(up, -_LIMIT), _LIMIT))
    r = maximum(x, f32_of(0))
    if kind == 3:
        r = r * r
    return r * up


@kernel(block=THREADS)
def activate(gate, up, stride, columns, kind, alone, token_gate, q, scales, half, plain, width):
    """Four columns a thread, a token a row of the grid; `up` 0: f(gate) if `alone`, else gate."""
    let_next_start()
    wait_for_inputs()
    token = block_y()
    column = (block_x() * THREADS + thread()) * 4
    v = make_f32x4(f32_of(0), f32_of(0), f32_of(0), f32_of(0))
    if column < columns:
        at = token * stride + 4 * column
        v = load_f32x4(gate + at)
        if up != 0 or alone != 0:
            u = make_f32x4(f32_of(1), f32_of(1), f32_of(1), f32_of(1))
            if up != 0:
                u = load_f32x4(up + at)
            v = make_f32x4(
                _gate(v[0], u[0], kind),
                _gate(v[1], u[1], kind),
                _gate(v[2], u[2], kind),
                _gate(v[3], u[3], kind),
            )
        if token_gate != 0:
            s = _logistic(f32_of(1), load_f32(token_gate + 4 * token) * _SILU)
            v = make_f32x4(v[0] * s, v[1] * s, v[2] * s, v[3] * s)
    put_activations(v, token, column, columns, q, scales, half, plain, width)
