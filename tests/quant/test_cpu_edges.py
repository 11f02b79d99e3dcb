"""Edges of the compiled kernels of formats: soft caps, scales that are no numbers, the smallest."""

from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.quant import jit
from llamba.runtime.kernels.records import ACTIVATION_ORDER, EMBED, MATMUL, PAIR32

pytestmark = pytest.mark.kernels

ROWS = 37
BOUND = 4e-6  # of the sum of all terms' magnitudes, as in test_cpu_formats.py


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """The kernels of all selected formats at once, on all cores."""
    names = []
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.path == request.path and (name := params.get("name")):
            names += [f"matmul:matmul_rows_{name}", f"matmul_lanes:matmul_lanes_{name}"]
    jit.load([f"runtime.kernels.cpu.{name}" for name in names])


def activations(tokens: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
    x = np.random.default_rng(tokens).standard_normal((tokens, columns))
    return (x * scale).astype(np.float32)


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_soft_cap_of_the_rows(rig: ModuleType, tiny: ModuleType, cap: float) -> None:
    """cap * tanh(y / cap) with y far below, around and far above the cap."""
    fmt, r = rig.FORMATS["f32"], rig.Rig()
    raw = tiny.weight(np.random.default_rng(96), ROWS, 96, fmt.name)
    x = activations(4, 96) * np.array([[1e-3], [1], [100], [1e5]], np.float32)
    out = rig.Fenced((4, ROWS))
    r.set_step(num_tokens=4)
    r.run(
        "matmul:matmul_float_rows_f32",
        MATMUL,
        weight=r.last(raw),
        row_bytes=4 * 96,
        num_rows=ROWS,
        columns=96,
        chunk=8,
        out=out.at,
        out_stride=4 * ROWS,
        softcap=cap,
        q=r.last(x),
        q_stride=4 * 96,
    )
    y = x.astype(np.float64) @ raw.T.astype(np.float64)
    np.testing.assert_allclose(out.array, cap * np.tanh(y / cap), atol=2e-6 * cap + 1e-6)


def test_soft_cap_of_a_few_tokens(rig: ModuleType, tiny: ModuleType) -> None:
    fmt, r = rig.FORMATS["q8_0"], rig.Rig()
    raw = tiny.weight(np.random.default_rng(96), ROWS, 96, fmt.name)
    q, step = rig.quantize(activations(3, 96, 100), 32)
    out = rig.Fenced((3, ROWS))
    r.set_step(num_tokens=3)
    r.run(
        "matmul_few:matmul_few4_q8_0",
        MATMUL,
        weight=r.last(raw),
        row_bytes=fmt.row_bytes(96),
        num_rows=ROWS,
        columns=96,
        chunk=8,
        out=out.at,
        out_stride=4 * ROWS,
        softcap=30.0,
        **r.few_input(q, step, 4),
    )
    y = rig.dequantize(q, step) @ fmt.dequantize(raw, (ROWS, 96)).astype(np.float64).T
    np.testing.assert_allclose(out.array, 30 * np.tanh(y / 30), atol=1e-4)


@pytest.mark.parametrize("name", ACTIVATION_ORDER)
def test_damaged_scales(rig: ModuleType, tiny: ModuleType, name: str) -> None:
    """Any bytes: rows with a scale that is no number give none, the others what they should."""
    fmt, columns, tokens = rig.FORMATS[name], 256, 3
    rng = np.random.default_rng(11)
    raw = rng.integers(0, 256, (ROWS, fmt.row_bytes(columns)), np.uint8)
    parts = raw.view(fmt.block)
    for field in fmt.block.names or ():
        if fmt.block[field] == np.float16:
            parts[field] = rng.choice([0, -0.0, 6e-8, -1e-3, 2.5, -65504], parts.shape)
            parts[field][::5, 0] = rng.choice([np.inf, -np.inf, np.nan], len(parts[::5]))
        elif field == "e":
            parts[field] = rng.integers(60, 180, parts.shape)
            parts[field][::5, 0] = 255
    if fmt.name == "IQ1_M":  # its scale is in pieces
        scales = rng.choice([0, -0.0, 6e-8, -1e-3, 2.5, -65504], ROWS)
        scales[::5] = rng.choice([np.inf, -np.inf, np.nan], len(scales[::5]))
        tiny.put_scale(raw, 48, fmt.name, scales)
    w = fmt.dequantize(raw, (ROWS, columns)).astype(np.float64)
    good = np.isfinite(w).all(axis=1)
    assert 20 < good.sum() < ROWS - 3
    x = activations(tokens, columns)
    for lanes in (False, True):
        r = rig.Rig()
        group = 32 if lanes or ACTIVATION_ORDER[name] == PAIR32 else 16
        q, step = rig.quantize(x, group)
        source = r.lanes_input(q, step) if lanes else r.rows_input(q, step, ACTIVATION_ORDER[name])
        out = rig.Fenced((1, ROWS, rig.LANES) if lanes else (tokens, ROWS))
        r.set_step(num_tokens=tokens)
        r.run(
            f"matmul_lanes:matmul_lanes_{name}" if lanes else f"matmul:matmul_rows_{name}",
            MATMUL,
            weight=r.last(raw),
            row_bytes=fmt.row_bytes(columns),
            num_rows=ROWS,
            columns=columns,
            chunk=32,
            out=out.at,
            out_stride=ROWS if lanes else 4 * ROWS,
            **source,
        )
        out.check()
        got = rig.from_lanes(out.array)[:tokens] if lanes else out.array
        assert not np.isfinite(got[:, ~good]).any()
        a = rig.dequantize(q, step)
        terms = np.abs(a) @ rig.magnitudes(fmt, raw[good], columns).T
        assert (np.abs(got[:, good] - a @ w[good].T) <= BOUND * terms + 1e-30).all()


def test_the_smallest_powers(rig: ModuleType) -> None:
    """MXFP4's scales of 2^-128 and above: the first two are subnormal numbers."""
    fmt, columns = rig.FORMATS["mxfp4"], 160
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (ROWS, fmt.row_bytes(columns)), np.uint8)
    raw.view(fmt.block)["e"] = rng.integers(0, 4, (ROWS, columns // 32))
    w = fmt.dequantize(raw, (ROWS, columns)).astype(np.float64)
    q, step = rig.quantize(activations(2, columns, 1e30), 16)
    a, r = rig.dequantize(q, step), rig.Rig()
    weight = {"weight": r.last(raw), "row_bytes": fmt.row_bytes(columns), "columns": columns}
    out = rig.Fenced((2, ROWS))
    r.set_step(num_tokens=2)
    source = r.rows_input(q, step, ACTIVATION_ORDER["mxfp4"])
    fields = {"num_rows": ROWS, "chunk": 32, "out": out.at, "out_stride": 4 * ROWS}
    r.run("matmul:matmul_rows_mxfp4", MATMUL, **weight, **fields, **source)
    terms = np.abs(a) @ rig.magnitudes(fmt, raw, columns).T
    assert terms.min() > 1e-9
    assert (np.abs(out.array - a @ w.T) <= BOUND * terms).all()
    rows = rig.Fenced((ROWS, columns))
    r.set_step(num_tokens=ROWS, token_ids=np.arange(ROWS, dtype=np.int32))
    fields = {"out": rows.at, "out_stride": 4 * columns}
    r.run("embedding:embed_rows_mxfp4", EMBED, scale=1.0, **weight, **fields)
    np.testing.assert_array_equal(rows.array, w)
