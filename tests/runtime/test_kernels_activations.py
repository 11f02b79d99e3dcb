"""Kernels between matmuls: norms, gated activations, quantization and moving tokens about."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.architecture import Activation
from llamba.runtime.kernels.records import (
    ACTIVATE,
    FLOAT,
    GATHER,
    NATURAL,
    NORM,
    NORM_ADD,
    NORM_LAYER,
    NORM_NONE,
    NORM_RMS,
    PAIR16,
    PAIR32,
)
from llamba.runtime.kernels.reference_math import activate, gelu

pytestmark = pytest.mark.kernels

COLUMNS = (32, 96, 160, 256, 576, 1568)
COLUMNS_OF_128 = (128, 256, 640)  # PAIR32 is read by 256-blocks only


def inputs(tokens: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows of very different sizes; the second (if there is one) is all zeros."""
    rng = np.random.default_rng(seed + columns)
    x = rng.standard_normal((tokens, columns)) * 10.0 ** rng.integers(-3, 4, (tokens, 1))
    x[1:2] = 0
    return x.astype(np.float32)


def weights(columns: int) -> NDArray[np.float32]:
    return (1 + 0.3 * np.random.default_rng(5).standard_normal(columns)).astype(np.float32)


def check_rows(rig: ModuleType, r: Any, out: Any, y: NDArray[np.float64]) -> None:
    """All orders of the rows layout, given the exact values."""
    if out.natural:
        q = r.read(out.natural, y.shape, np.int8)
        check_groups(r, q, out.scale, out.sums, y, 16)
        if out.pair16:
            moved = r.read(out.pair16, y.shape, np.int8)
            np.testing.assert_array_equal(moved, q[:, rig.order_of(PAIR16, y.shape[1])])
    if out.pair32:
        q = np.empty(y.shape, np.int8)
        q[:, rig.order_of(PAIR32, y.shape[1])] = r.read(out.pair32, y.shape, np.int8)
        check_groups(r, q, out.pair_scale, out.pair_sums, y, 32)


def check_groups(
    r: Any, q: NDArray[np.int8], scale: int, sums: int, y: NDArray[np.float64], group: int
) -> None:
    """Scales, rounding and sums of groups in natural order."""
    tokens, columns = y.shape
    step = r.read(scale, (tokens, columns // group))
    largest = np.abs(y.reshape(tokens, -1, group)).max(axis=2)
    np.testing.assert_allclose(step, largest / 127, rtol=2e-6, atol=1e-35)
    wide = np.repeat(step.astype(np.float64), group, axis=1)
    assert (np.abs(q * wide - y) <= wide * 0.5001 + np.abs(y) * 2e-6).all()
    assert np.abs(q.astype(np.int16)).max() <= 127
    exact = (q * wide).reshape(tokens, -1, group).sum(axis=2)
    np.testing.assert_allclose(r.read(sums, step.shape), exact, rtol=1e-6, atol=1e-35)


def check_lanes(rig: ModuleType, r: Any, out: Any, y: NDArray[np.float64]) -> None:
    """The int8 of the lanes layout, given the exact values of whole blocks."""
    tokens, columns = y.shape
    blocks, n = tokens // rig.LANES, rig.LANES
    q = r.read(out.natural, (blocks, columns // 4, n, 4), np.int8)
    q = q.transpose(0, 2, 1, 3).reshape(y.shape).astype(np.float64)
    step = rig.from_lanes(r.read(out.scale, (blocks, columns // 32, n)))
    largest = np.abs(y.reshape(tokens, -1, 32)).max(axis=2)
    np.testing.assert_allclose(step, largest / 127, rtol=2e-6, atol=1e-35)
    wide = np.repeat(step.astype(np.float64), 32, axis=1)
    assert (np.abs(q * wide - y) <= wide * 0.5001 + np.abs(y) * 2e-6).all()
    sums = rig.from_lanes(r.read(out.sums, (blocks, columns // 16, n), np.int32))
    np.testing.assert_array_equal(sums, q.reshape(tokens, -1, 16).sum(axis=2))


def check_few(r: Any, out: Any, y: NDArray[np.float64], width: int, lanes: int) -> None:
    """The int8 with `width` tokens side by side, given the exact values."""
    tokens, columns = y.shape
    share, blocks = lanes // width, -(-tokens // width)

    def read(at: int, parts: int, dtype: Any) -> NDArray[Any]:
        x = r.read(at, (blocks, parts, width, share), dtype).transpose(0, 2, 1, 3)
        return x.reshape(blocks * width, parts, share)[:tokens]

    q = r.read(out.natural, (blocks, columns // (4 * share), width, 4 * share), np.int8)
    q = q.transpose(0, 2, 1, 3).reshape(blocks * width, columns)[:tokens].astype(np.float64)
    step = read(out.scale, columns // 32, np.float32)
    assert (step == step[:, :, :1]).all()
    largest = np.abs(y.reshape(tokens, -1, 32)).max(axis=2)
    np.testing.assert_allclose(step[:, :, 0], largest / 127, rtol=2e-6, atol=1e-35)
    wide = np.repeat(step[:, :, 0].astype(np.float64), 32, axis=1)
    assert (np.abs(q * wide - y) <= wide * 0.5001 + np.abs(y) * 2e-6).all()
    sums = read(out.sums, columns // 16, np.int32)
    assert not sums[:, :, 1:].any()
    np.testing.assert_array_equal(sums[:, :, 0], q.reshape(tokens, -1, 16).sum(axis=2))


def close(got: NDArray[np.float32], y: NDArray[np.float64]) -> None:
    """Within a few float32 roundings, of each value and of the row's largest ones."""
    scale = np.abs(y).max(axis=1, keepdims=True)
    assert (np.abs(got - y) <= 1e-6 * scale + 2e-6 * np.abs(y) + 1e-36).all()


def norm(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float,
    kind: int = NORM_RMS,
    bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float64]:
    y = x.astype(np.float64)
    if kind == NORM_LAYER:
        y = y - y.mean(axis=1, keepdims=True)
    if kind != NORM_NONE:
        y = y / np.sqrt(np.square(y).mean(axis=1, keepdims=True) + eps)
    y = y * weight
    return y if bias is None else y + bias


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("tokens", [1, 2, 5, 8])
def test_norm_rows(rig: ModuleType, tokens: int, columns: int) -> None:
    x, weight = inputs(tokens, columns), weights(columns)
    y = norm(x, weight, 1e-5)
    for orders in (FLOAT, NATURAL | PAIR16 | FLOAT, PAIR32, NATURAL | PAIR32 | PAIR16):
        if orders & PAIR32 and columns % 128:
            continue
        r = rig.Rig()
        out = r.buffers(tokens, columns, orders, lanes=False)
        r.set_step(num_tokens=tokens)
        row = np.pad(x, ((0, 0), (0, 48)), constant_values=np.nan)
        fields = {"x": r.keep(row), "x_stride": 4 * (columns + 48), "eps": 1e-5}
        r.run(
            "norm:norm_rows",
            NORM,
            weight=r.last(weight),
            columns=columns,
            **fields,
            **out.fields(),
        )
        if orders & FLOAT:
            close(r.read(out.plain, x.shape), y)
        if orders != FLOAT:
            check_rows(rig, r, out, y)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("tokens", [1, 4, 9, 17])
@pytest.mark.parametrize("width", [4, 8, 16])
def test_norm_few(rig: ModuleType, tokens: int, columns: int, width: int) -> None:
    if width > rig.LANES:
        pytest.skip("a vector of this CPU holds fewer tokens")
    x, weight = inputs(tokens, columns), weights(columns)
    y = norm(x, weight, 1e-5)
    for orders in (FLOAT, NATURAL | FLOAT, PAIR16):
        r = rig.Rig()
        out = r.buffers(tokens, columns, orders, lanes=False, width=width)
        r.set_step(num_tokens=tokens)
        r.run(
            "norm:norm_rows",
            NORM,
            x=r.last(x),
            x_stride=4 * columns,
            eps=1e-5,
            weight=r.last(weight),
            columns=columns,
            **out.fields(),
        )
        if orders & FLOAT:
            close(r.read(out.plain, x.shape), y)
        if orders != FLOAT:
            check_few(r, out, y, width, rig.LANES)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("tokens", [1, 9, 17, 40])
def test_norm_lanes(rig: ModuleType, tokens: int, columns: int) -> None:
    x, weight = rig.padded(inputs(tokens, columns)), weights(columns)
    y = norm(x, weight, 1e-5)
    for orders in (FLOAT, NATURAL | FLOAT, PAIR16):
        r = rig.Rig()
        out = r.buffers(tokens, columns, orders, lanes=True)
        r.set_step(num_tokens=tokens)
        r.run(
            "norm:norm_lanes",
            NORM,
            x=r.last(rig.to_lanes(x)),
            x_stride=columns,
            weight=r.last(weight),
            eps=1e-5,
            columns=columns,
            **out.fields(),
        )
        blocks = len(x) // rig.LANES
        if orders & FLOAT:
            close(rig.from_lanes(r.read(out.plain, (blocks, columns, rig.LANES))), y)
        if orders != FLOAT:
            check_lanes(rig, r, out, y)


NORMS = [(NORM_RMS, True), (NORM_LAYER, False), (NORM_LAYER, True), (NORM_NONE, False)]


@pytest.mark.parametrize("columns", [16, 48, 96, 576])
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize(("kind", "biased"), NORMS)
def test_norms_of_a_part_in_place(
    rig: ModuleType, kind: int, biased: bool, lanes: bool, columns: int
) -> None:
    """Some columns of a wider buffer, of every kind; as floats, and as activations if that goes."""
    tokens, width, r = 21, columns + 32, rig.Rig()
    x, weight = inputs(tokens, width) + np.float32(0.5), weights(columns)
    bias = weights(columns)[::-1] * np.float32(0.3) if biased else None
    y = norm(x[:, :columns], weight, 1e-5, kind, bias)
    given = rig.to_lanes(rig.padded(x)) if lanes else x
    buffer = rig.Fenced(given.shape)
    buffer.array[:] = given
    orders = FLOAT if columns % 32 == 0 else 0
    out = r.buffers(tokens, columns, orders, lanes=lanes)
    r.set_step(num_tokens=tokens)
    r.run(
        f"norm:norm_{'lanes' if lanes else 'rows'}",
        NORM,
        x=buffer.at,
        x_stride=width if lanes else 4 * width,
        out=buffer.at,
        kind=kind,
        weight=r.last(weight),
        bias=0 if bias is None else r.last(bias),
        eps=1e-5,
        columns=columns,
        **out.fields(),
    )
    buffer.check()
    got = rig.from_lanes(buffer.array)[:tokens] if lanes else buffer.array
    np.testing.assert_array_equal(got[:, columns:], x[:, columns:])
    # What adding up a mean one value after the other may lose is small beside the values, but not
    # beside what is left of them.
    lost = np.abs(x).max(axis=1, keepdims=True) * 2.0**-24 * columns
    lost = lost / np.sqrt(np.var(x[:, :columns].astype(np.float64), axis=1, keepdims=True) + 1e-5)
    limit = 2e-6 * np.abs(y) + 1e-6 * np.abs(y).max(axis=1, keepdims=True) + 1e-36
    assert (np.abs(got[:, :columns] - y) <= limit + (lost if kind == NORM_LAYER else 0)).all()
    if orders:
        blocks = len(rig.padded(x)) // rig.LANES
        shape = (blocks, columns, rig.LANES) if lanes else (tokens, columns)
        plain = r.read(out.plain, shape)
        plain = rig.from_lanes(plain)[:tokens] if lanes else plain
        np.testing.assert_array_equal(plain, got[:, :columns])


@pytest.mark.parametrize(("norm_kind", "biased"), [(NORM_RMS, False), (NORM_LAYER, True)])
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(("kind", "tokens"), [("rows", 1), ("rows", 7), ("lanes", 29)])
def test_norm_add(
    rig: ModuleType, kind: str, tokens: int, columns: int, norm_kind: int, biased: bool
) -> None:
    x, y, weight = inputs(tokens, columns), inputs(tokens, columns, 9), weights(columns)
    bias = weights(columns)[::-1] * np.float32(0.3) if biased else None
    r, lanes, scale = rig.Rig(), kind == "lanes", 0.75 if biased else 1.0
    hidden = rig.to_lanes(rig.padded(x)) if lanes else x
    out = rig.Fenced(hidden.shape)
    out.array[:] = hidden
    r.set_step(num_tokens=tokens)
    r.run(
        f"norm:norm_add_{kind}",
        NORM_ADD,
        x=out.at,
        x_stride=columns if lanes else 4 * columns,
        y=r.last(rig.to_lanes(rig.padded(y)) if lanes else y),
        y_stride=columns if lanes else 4 * columns,
        weight=r.last(weight),
        bias=0 if bias is None else r.last(bias),
        kind=norm_kind,
        scale=scale,
        eps=1e-6,
        columns=columns,
    )
    out.check()
    got = rig.from_lanes(out.array)[:tokens] if lanes else out.array
    added = norm(y, weight, 1e-6, norm_kind, bias) * scale
    limit = 2e-6 * (np.abs(x) + np.abs(added)) + 1e-36
    limit += 2e-6 if biased else 0.0  # a mean taken off, a bias added: terms of about 1
    assert (np.abs(got - (x + added)) <= limit).all()


EXTREME = [0.0, -0.0, 1e-30, -1e-30, 20, -20, 100, -100, 1e4, -1e4, 1e15, -1e15, 1e30]


@pytest.mark.parametrize("columns", (*COLUMNS, 513 * 32))
@pytest.mark.parametrize(("kind", "tokens"), [("rows", 1), ("rows", 6), ("lanes", 21)])
@pytest.mark.parametrize("form", Activation)
def test_activate(rig: ModuleType, kind: str, tokens: int, columns: int, form: Activation) -> None:
    """512 columns are a piece of work: with fewer, with some pieces and a rest."""
    if columns > 10_000 and (tokens == 6 or form is not Activation.SILU):
        pytest.skip("one large case a layout is enough")
    rng, lanes, r = np.random.default_rng(columns), kind == "lanes", rig.Rig()
    gate = (rng.standard_normal((tokens, columns)) * 4).astype(np.float32)
    up = rng.standard_normal((tokens, columns)).astype(np.float32)
    gate[0, : len(EXTREME)] = EXTREME
    up[0, : len(EXTREME)] *= 1e-2
    if form is Activation.RELU_SQUARED:
        gate = np.minimum(gate, np.float32(1e15))
    with np.errstate(over="ignore"):
        y = activate(form, gate.astype(np.float64), up.astype(np.float64), gelu)
    out = r.buffers(tokens, columns, NATURAL | PAIR16 | FLOAT, lanes=lanes)
    r.set_step(num_tokens=tokens)
    place = (lambda x: rig.to_lanes(rig.padded(x))) if lanes else (lambda x: x)
    r.run(
        f"activation:activate_{kind}",
        ACTIVATE,
        gate=r.last(place(gate)),
        up=r.last(place(up)),
        stride=columns if lanes else 4 * columns,
        columns=columns,
        kind=form.value,
        **out.fields(),
    )
    blocks = -(-tokens // rig.LANES)
    plain = r.read(out.plain, (blocks, columns, rig.LANES) if lanes else y.shape)
    got = rig.from_lanes(plain)[:tokens] if lanes else plain
    # Near -87 and below exp's argument is clamped: the result is 1e-36 instead of 0.
    assert (np.abs(got - y) <= 2e-6 * np.abs(y) + 1e-6 * (np.abs(gate) < 1) + 1e-7).all()
    exact = got.astype(np.float64)
    if lanes:
        check_lanes(rig, r, out, rig.padded(exact))
    else:
        check_rows(rig, r, out, exact)


@pytest.mark.parametrize("columns", [32, 1568])
@pytest.mark.parametrize("kind", ["rows", "lanes"])
@pytest.mark.parametrize("form", [Activation.GELU, Activation.RELU_SQUARED])
def test_activate_without_a_gate(
    rig: ModuleType, kind: str, columns: int, form: Activation
) -> None:
    """f(x) alone; and times the sigmoid of a number of each token."""
    rng, lanes, tokens = np.random.default_rng(columns), kind == "lanes", rig.LANES + 5
    x = (rng.standard_normal((tokens, columns)) * 4).astype(np.float32)
    gates = np.linspace(-90, 90, tokens, dtype=np.float32)[:, None]
    place = (lambda x: rig.to_lanes(rig.padded(x))) if lanes else (lambda x: x)
    for token_gate in (False, True):
        r = rig.Rig()
        out = r.buffers(tokens, columns, NATURAL | FLOAT, lanes=lanes)
        r.set_step(num_tokens=tokens)
        r.run(
            f"activation:activate_{kind}",
            ACTIVATE,
            gate=r.last(place(x)),
            alone=1,
            token_gate=r.last(place(gates)) if token_gate else 0,
            stride=columns if lanes else 4 * columns,
            columns=columns,
            kind=form.value,
            **out.fields(),
        )
        plain = r.read(out.plain, (2, columns, rig.LANES) if lanes else x.shape)
        got = rig.from_lanes(plain)[:tokens] if lanes else plain
        y = activate(form, x.astype(np.float64), None, gelu)
        y = y / (1 + np.exp(-gates.astype(np.float64))) if token_gate else y
        assert (np.abs(got - y) <= 3e-6 * np.abs(y) + 1e-6 * (np.abs(x) < 1) + 1e-7).all()


@pytest.mark.parametrize("columns", [32, 160, 1568])
def test_plain_quantization_of_rows(rig: ModuleType, columns: int) -> None:
    r, x = rig.Rig(), inputs(5, columns)
    out = r.buffers(len(x), columns, NATURAL | FLOAT, lanes=False)
    r.set_step(num_tokens=len(x))
    fields = {"gate": r.last(x), "stride": 4 * columns, "columns": columns}
    r.run("activation:activate_rows", ACTIVATE, **fields, **out.fields())
    np.testing.assert_array_equal(r.read(out.plain, x.shape), x)
    check_rows(rig, r, out, x.astype(np.float64))


@pytest.mark.parametrize("columns", COLUMNS)
def test_plain_quantization_of_lanes(rig: ModuleType, columns: int) -> None:
    """`up` 0: what attention computed, as it is."""
    r, tokens = rig.Rig(), rig.LANES + 5
    x = rig.padded(inputs(tokens, columns))
    out = r.buffers(tokens, columns, NATURAL | FLOAT, lanes=True)
    r.set_step(num_tokens=tokens)
    r.run(
        "activation:activate_lanes",
        ACTIVATE,
        gate=r.last(rig.to_lanes(x)),
        up=0,
        stride=columns,
        columns=columns,
        **out.fields(),
    )
    plain = rig.from_lanes(r.read(out.plain, (2, columns, rig.LANES)))
    np.testing.assert_array_equal(plain, x)
    check_lanes(rig, r, out, x.astype(np.float64))


@pytest.mark.parametrize("columns", COLUMNS_OF_128)
def test_quantization_at_the_limits(rig: ModuleType, columns: int) -> None:
    """One outlier, equal values, tiny and huge values; the orders agree with one another."""
    x = np.zeros((8, columns), np.float32)
    x[1] = 3.0
    x[2] = -3.0
    x[3, 5] = 1e30
    x[4] = 1e-25
    x[5] = np.linspace(-1, 1, columns)
    x[6] = np.where(np.arange(columns) % 2, 1, -1)
    x[7, ::16] = np.arange(columns // 16)  # all-zero group first, then a single value a group
    r, tokens = rig.Rig(), len(x)
    out = r.buffers(tokens, columns, NATURAL | PAIR32 | PAIR16 | FLOAT, lanes=False)
    r.set_step(num_tokens=tokens)
    # silu(gate) = gate from 90 on: an exact copy of `x` through the kernel.
    gate = np.full_like(x, 128)
    r.run(
        "activation:activate_rows",
        ACTIVATE,
        gate=r.last(gate),
        up=r.last(x / np.float32(128)),
        stride=4 * columns,
        columns=columns,
        kind=0,
        **out.fields(),
    )
    np.testing.assert_array_equal(r.read(out.plain, x.shape), x)
    check_rows(rig, r, out, x.astype(np.float64))
    q = r.read(out.natural, x.shape, np.int8)
    assert (q[0] == 0).all() and (q[1] == 127).all() and (q[2] == -127).all()
    assert q[3, 5] == 127 and (np.delete(q[3], 5) == 0).all()


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("wanted", [[0], [3], [2, 0, 2, 39, 17], list(range(39, 27, -1))])
def test_gather(rig: ModuleType, columns: int, wanted: list[int]) -> None:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((48, columns)).astype(np.float32)
    rows = np.array(wanted, np.int64)
    for kernel in ("gather_rows", "gather_lanes"):
        r = rig.Rig()
        out = rig.Fenced((len(rows), columns), fill=np.nan)
        r.set_step(num_outputs=len(rows), out_rows=rows)
        r.run(
            f"gather:{kernel}",
            GATHER,
            "num_outputs",
            x=r.last(rig.to_lanes(x) if kernel == "gather_lanes" else x),
            x_stride=4 * columns,
            columns=columns,
            out=out.at,
            out_stride=4 * columns,
        )
        out.check()
        np.testing.assert_array_equal(out.array, x[rows])
