"""Each format's compiled kernels against float64: the weights' and activations' own values.

Odd shapes throughout: columns in odd multiples of the block, rows that fill no tile, any number of
tokens. Weights lie at the very end of readable memory and outputs between fences.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.quant import FORMATS_BY_NAME, Format, jit
from llamba.runtime.kernels.records import (
    ACTIVATE,
    ACTIVATION_ORDER,
    EMBED,
    FLOAT,
    MATMUL,
    PAIR32,
)

pytestmark = pytest.mark.kernels

QUANTIZED = list(ACTIVATION_ORDER)
EVERY = [name.lower() for name in FORMATS_BY_NAME]
# A format of each shape of the kernels' code: an offset or minima, a scale a 32 or a 16 weights,
# bytes beyond 127. The others differ from these by their dot product and by how a row is unpacked,
# which one kernel of rows, of lanes and of embeddings shows: what else there is of them is compiled
# in the slow tests only.
SHAPES = ("q4_0", "q4_k", "q6_k", "q2_k", "q8_0")
# Of the sum of all terms' magnitudes: what some hundred float32 additions in a row may lose.
BOUND = 4e-6
ROWS = 37
# An emulated CPU is slow (tests/arm): it takes each so-many-th of the cases that `cases` gives.
EVERY_CASE = int(os.environ.get("LLAMBA_TEST_EVERY", "1"))
ACTIVATIONS = ("normal", "zero", "outlier", "full", "signs")

Blocks = Callable[[Format, str, int], NDArray[np.uint8]]


def formats(*, once: bool, every: list[str] = EVERY) -> list[Any]:
    """Parameters `name`; where `once`, the formats that others stand for are left to slow tests."""
    others = set(QUANTIZED) - set(SHAPES) if once else set()
    marks = {name: [pytest.mark.slow] for name in others}
    return [pytest.param(name, marks=marks.get(name, [])) for name in every]


def kinds() -> list[Any]:
    """Parameters `name, floats` of the matmuls."""
    ints = [(p, False) for p in formats(once=False, every=QUANTIZED)]
    floats = [(p, True) for p in formats(once=True)]
    return [
        pytest.param(*p.values, f, marks=p.marks, id=f"{p.values[0]}-{'float32' if f else 'int8'}")
        for p, f in ints + floats
    ]


def rows_kernel(name: str, floats: bool = False) -> str:
    return f"matmul:matmul_{'float_' * floats}rows_{name}"


def lanes_kernel(name: str, floats: bool = False) -> str:
    return f"matmul_lanes:matmul_{'float_' * floats}lanes_{name}"


def few_kernel(name: str, width: int) -> str:
    return f"matmul_few:matmul_few{width}_{name}"


def embed_kernel(name: str, lanes: bool = False) -> str:
    return f"embedding:embed_{'lanes' if lanes else 'rows'}_{name}"


KERNELS: dict[str, Callable[..., str]] = {
    "test_matmul_rows": rows_kernel,
    "test_matmul_lanes": lanes_kernel,
    "test_matmul_few": few_kernel,
    "test_embed_rows": embed_kernel,
    "test_embed_lanes": lambda name: embed_kernel(name, lanes=True),
}


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest, rig: ModuleType) -> None:
    """The kernels of all selected tests at once, on all cores: a compiler starts for a second."""
    wanted = []
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        kernel = KERNELS.get(getattr(item, "originalname", ""))
        if item.path == request.path and kernel and params.get("width", 0) <= rig.LANES:
            wanted.append(f"runtime.kernels.cpu.{kernel(**params)}")
    jit.load(wanted)


def columns_of(fmt: Format) -> tuple[int, ...]:
    return (256, 768) if fmt.block_len == 256 else (32, 96, 160, 576)


def patterns(fmt: Format) -> tuple[str, ...]:
    if fmt.block_len == 1:
        return ("weights",)
    return ("weights", "bytes", "ones", "zeros", "golden")


@pytest.fixture(scope="module")
def blocks(tiny: ModuleType) -> Blocks:
    """blocks(fmt, pattern, columns) -> the bytes of ROWS rows."""
    shared = Path(__file__).parents[2] / "../shared/goldens/open"

    def make(fmt: Format, pattern: str, columns: int) -> NDArray[np.uint8]:
        rng = np.random.default_rng(columns)
        if pattern == "weights":
            if fmt.name == "BF16":
                values = (rng.standard_normal((ROWS, columns)) * 0.05).astype(np.float32)
                return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            return tiny.weight(rng, ROWS, columns, fmt.name).view(np.uint8)
        size = ROWS * columns // fmt.block_len
        if pattern == "golden":
            path = shared / f"blocks_{fmt.name}.json"
            if not path.is_file():
                return make(fmt, "bytes", columns)
            raw = [bytes.fromhex(b) for _, b, _ in json.loads(path.read_text())["blocks"]]
            found = np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), -1)
            good = np.isfinite(fmt.dequantize(found, (len(raw), fmt.block_len))).all(axis=1)
            assert good.sum() > 20
            return rng.choice(found[good], size).reshape(ROWS, -1)
        fill = {"ones": 0xFF, "zeros": 0}
        raw = np.full((size, fmt.block.itemsize), fill.get(pattern, 0), np.uint8)
        if pattern == "bytes":
            raw = rng.integers(0, 256, raw.shape, np.uint8)
        parts = raw.view(fmt.block)[:, 0]
        for name in fmt.block.names or ():  # scales that are numbers, of both signs
            if fmt.block[name] == np.float16:
                parts[name] = rng.standard_normal(size) * (pattern != "zeros")
            elif name == "e":
                parts[name] = 0 if pattern == "zeros" else rng.integers(120, 132, size)
        if fmt.name == "IQ1_M":  # its scale is in pieces
            tiny.put_scale(raw, 48, fmt.name, rng.standard_normal(size) * (pattern != "zeros"))
        return raw.reshape(ROWS, -1)

    return make


def activations(kind: str, tokens: int, columns: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    if kind == "zero":
        x[:] = 0
    elif kind == "outlier":
        x *= 1e-3
        x[:, 17] = 5e4
    elif kind == "full":  # every int8 is 127: the largest sums there are
        x[:] = 2.5
    elif kind == "signs":
        x = np.where(x > 0, 1, -1).astype(np.float32)
    return x


def cases(fmt: Format, first: int, last: int) -> Iterator[tuple[str, int, str, int, bool, bool]]:
    """(pattern, columns, activations, tokens, bias, residual): each with each of its neighbours."""
    tokens, number_of_case = first, 0
    for number, pattern in enumerate(patterns(fmt)):
        for columns in columns_of(fmt):
            for kind in ACTIVATIONS:
                if number_of_case % EVERY_CASE == 0:
                    yield pattern, columns, kind, tokens, tokens % 2 == 0, tokens % 3 == number % 3
                number_of_case += 1
                tokens = first if tokens == last else tokens + 1


def finite(fmt: Format, raw: NDArray[np.uint8], columns: int) -> NDArray[np.float64]:
    w = fmt.dequantize(raw, (ROWS, columns)).astype(np.float64)
    assert np.isfinite(w).all()
    return w


def extras(
    rig: Any, bias: bool, residual: bool, before: NDArray[np.float32]
) -> tuple[dict[str, int], NDArray[np.float64]]:
    """Record fields, and what they add: (tokens, ROWS)."""
    values = np.random.default_rng(1).standard_normal(ROWS).astype(np.float32)
    added = np.zeros(before.shape) + (values if bias else 0) + (before if residual else 0)
    return {"bias": rig.last(values) if bias else 0, "residual": int(residual)}, added


def check(
    got: NDArray[np.float32],
    expected: NDArray[np.float64],
    terms: NDArray[np.float64],
    added: NDArray[np.float64],
    relative: float = BOUND,
) -> None:
    assert np.isfinite(got).all()
    bound = relative * (terms + np.abs(added)) + 1e-30
    np.testing.assert_array_less(np.abs(got - (expected + added)) / bound, 1.0)


def group_of(name: str) -> int:
    """Activations a scale that a format's decode kernel reads."""
    return 32 if ACTIVATION_ORDER[name] == PAIR32 else 16


@pytest.mark.parametrize(("name", "floats"), kinds())
def test_matmul_rows(rig: ModuleType, blocks: Blocks, name: str, floats: bool) -> None:
    fmt = rig.FORMATS[name]
    for pattern, columns, kind, tokens, bias, residual in cases(fmt, 1, 8):
        raw, r = blocks(fmt, pattern, columns), rig.Rig()
        w, x = finite(fmt, raw, columns), activations(kind, tokens, columns)
        if floats:
            a, source = x.astype(np.float64), {"q": r.last(x), "q_stride": 4 * columns}
        else:
            q, step = rig.quantize(x, group_of(name))
            a, source = rig.dequantize(q, step), r.rows_input(q, step, ACTIVATION_ORDER[name])
        out = rig.Fenced((tokens, ROWS + 3))
        out.array[:] = np.random.default_rng(2).standard_normal(out.array.shape)
        before = out.array.copy()
        fields, added = extras(r, bias, residual, before[:, :ROWS])
        r.set_step(num_tokens=tokens)
        r.run(
            rows_kernel(name, floats),
            MATMUL,
            weight=r.last(raw),
            row_bytes=fmt.row_bytes(columns),
            num_rows=ROWS,
            columns=columns,
            chunk=(8, 5, 100)[tokens % 3],
            out=out.at,
            out_stride=4 * (ROWS + 3),
            **source,
            **fields,
        )
        out.check()
        assert (out.array[:, ROWS:] == before[:, ROWS:]).all()
        terms = np.abs(a) @ rig.magnitudes(fmt, raw, columns).T
        check(out.array[:, :ROWS], a @ w.T, terms, added)


@pytest.mark.parametrize(("name", "floats"), kinds())
def test_matmul_lanes(rig: ModuleType, blocks: Blocks, name: str, floats: bool) -> None:
    fmt = rig.FORMATS[name]
    for pattern, columns, kind, tokens, bias, residual in cases(fmt, 9, 40):
        raw, r = blocks(fmt, pattern, columns), rig.Rig()
        w, x = finite(fmt, raw, columns), activations(kind, tokens, columns)
        if floats:
            source = {"q": r.last(rig.to_lanes(rig.padded(x))), "q_stride": 4 * columns}
            a = x.astype(np.float64)
        else:
            q, step = rig.quantize(x, 32)
            a, source = rig.dequantize(q, step), r.lanes_input(q, step)
        out = rig.Fenced((-(-tokens // rig.LANES), ROWS + 3, rig.LANES))
        out.array[:] = np.random.default_rng(2).standard_normal(out.array.shape)
        before = out.array.copy()
        old = rig.from_lanes(before)[:tokens, :ROWS]
        fields, added = extras(r, bias, residual, old)
        r.set_step(num_tokens=tokens)
        r.run(
            lanes_kernel(name, floats),
            MATMUL,
            weight=r.last(raw),
            row_bytes=fmt.row_bytes(columns),
            num_rows=ROWS,
            columns=columns,
            chunk=32,
            out=out.at,
            out_stride=ROWS + 3,
            **source,
            **fields,
        )
        out.check()
        assert (out.array[:, ROWS:] == before[:, ROWS:]).all()
        terms = np.abs(a) @ rig.magnitudes(fmt, raw, columns).T
        # With float activations a lane adds up all columns one after the other.
        relative = max(BOUND, columns * 2.0**-25) if floats else BOUND
        check(rig.from_lanes(out.array)[:tokens, :ROWS], a @ w.T, terms, added, relative)


@pytest.mark.parametrize("name", formats(once=True, every=QUANTIZED))
@pytest.mark.parametrize("width", [4, 8, 16])
def test_matmul_few(rig: ModuleType, blocks: Blocks, name: str, width: int) -> None:
    """Any number of tokens, fewer than the width and more."""
    if width > rig.LANES:
        pytest.skip("a vector of this CPU holds fewer tokens")
    fmt = rig.FORMATS[name]
    for pattern, columns, kind, tokens, bias, residual in cases(fmt, 1, 19):
        raw, r = blocks(fmt, pattern, columns), rig.Rig()
        w, x = finite(fmt, raw, columns), activations(kind, tokens, columns)
        q, step = rig.quantize(x, 32)
        a = rig.dequantize(q, step)
        out = rig.Fenced((tokens, ROWS + 3))
        out.array[:] = np.random.default_rng(2).standard_normal(out.array.shape)
        before = out.array.copy()
        fields, added = extras(r, bias, residual, before[:, :ROWS])
        r.set_step(num_tokens=tokens)
        r.run(
            few_kernel(name, width),
            MATMUL,
            weight=r.last(raw),
            row_bytes=fmt.row_bytes(columns),
            num_rows=ROWS,
            columns=columns,
            chunk=16,
            out=out.at,
            out_stride=4 * (ROWS + 3),
            **r.few_input(q, step, width),
            **fields,
        )
        out.check()
        assert (out.array[:, ROWS:] == before[:, ROWS:]).all()
        terms = np.abs(a) @ rig.magnitudes(fmt, raw, columns).T
        check(out.array[:, :ROWS], a @ w.T, terms, added)


@pytest.mark.parametrize("rows", [1, 3, 8, 31, 33, 97])
@pytest.mark.parametrize("name", ["q4_k", "q8_0"])
def test_any_number_of_rows(rig: ModuleType, tiny: ModuleType, name: str, rows: int) -> None:
    fmt, columns, tokens = rig.FORMATS[name], 256, rig.LANES + 3
    raw = tiny.weight(np.random.default_rng(rows), rows, columns, fmt.name)
    w = fmt.dequantize(raw, (rows, columns)).astype(np.float64)
    x = activations("normal", tokens, columns)
    for lanes in (False, True):
        r = rig.Rig()
        count = tokens if lanes else 3
        q, step = rig.quantize(x[:count], 32 if lanes else group_of(name))
        source = r.lanes_input(q, step) if lanes else r.rows_input(q, step, ACTIVATION_ORDER[name])
        out = rig.Fenced((2, rows, rig.LANES) if lanes else (count, rows))
        r.set_step(num_tokens=count)
        r.run(
            lanes_kernel(name) if lanes else rows_kernel(name),
            MATMUL,
            weight=r.last(raw),
            row_bytes=fmt.row_bytes(columns),
            num_rows=rows,
            columns=columns,
            chunk=16,
            out=out.at,
            out_stride=rows if lanes else 4 * rows,
            **source,
        )
        out.check()
        got = rig.from_lanes(out.array)[:count] if lanes else out.array
        a = rig.dequantize(q, step)
        check(got, a @ w.T, np.abs(a) @ rig.magnitudes(fmt, raw, columns).T, np.zeros(got.shape))


@pytest.mark.parametrize("name", ["q4_k", "q8_0", "f32"])
@pytest.mark.parametrize("kind", ["rows", "few", "lanes", "exact lanes"])
def test_a_piece_of_a_wider_input(rig: ModuleType, tiny: ModuleType, name: str, kind: str) -> None:
    """The input begins at a column of a wider buffer; factor, then what was there."""
    fmt, wide, columns, at, rows = rig.FORMATS[name], 768, 256, 384, 13
    if name == "f32" and kind == "few":
        pytest.skip("float formats have no kernel of few tokens")
    raw = tiny.weight(np.random.default_rng(3), rows, columns, fmt.name)
    raw = np.ascontiguousarray(raw).view(np.uint8).reshape(rows, -1)
    w = fmt.dequantize(raw, (rows, columns)).astype(np.float64)
    lanes, exact, r = "lanes" in kind, kind == "exact lanes" or name == "f32", rig.Rig()
    tokens = rig.LANES + 3 if lanes else 7
    x = activations("normal", tokens, wide)
    orders = FLOAT if exact else ACTIVATION_ORDER[name]
    a = r.buffers(tokens, wide, orders, lanes=lanes, width=4 * (kind == "few"))
    r.set_step(num_tokens=tokens)
    place = (lambda v: rig.to_lanes(rig.padded(v))) if lanes else (lambda v: v)
    gate = {"gate": r.keep(place(np.full_like(x, 128))), "up": r.keep(place(x / np.float32(128)))}
    stride = wide if lanes else 4 * wide
    r.run(
        f"activation:activate_{'lanes' if lanes else 'rows'}",
        ACTIVATE,
        **gate,
        stride=stride,
        columns=wide,
        **a.fields(),
    )
    out = rig.Fenced((2, rows, rig.LANES) if lanes else (tokens, rows), fill=1.0)
    kernel = {"rows": ":matmul_rows", "few": "few:matmul_few4"}.get(kind, "lanes:matmul_lanes")
    kernel = kernel.replace("matmul_", "matmul_float_") if exact else kernel
    r.run(
        f"matmul{'_' * (kernel[0] != ':')}{kernel}_{name}",
        MATMUL,
        weight=r.last(raw),
        row_bytes=fmt.row_bytes(columns),
        num_rows=rows,
        columns=columns,
        chunk=8,
        out=out.at,
        out_stride=rows if lanes else 4 * rows,
        bias=r.last(np.full(rows, 0.5, np.float32)),
        factor=-0.25,
        residual=1,
        **a.input_of(orders, at),
    )
    out.check()
    got = rig.from_lanes(out.array)[:tokens] if lanes else out.array
    expected = (x[:, at : at + columns].astype(np.float64) @ w.T + 0.5) * -0.25 + 1
    assert np.abs(got - expected).max() < (1e-5 if exact else 0.02) * np.abs(expected).max()


@pytest.mark.parametrize("name", formats(once=False))
def test_embed_rows(rig: ModuleType, blocks: Blocks, name: str) -> None:
    check_embedding(rig, blocks, name, lanes=False)


@pytest.mark.parametrize("name", formats(once=True))
def test_embed_lanes(rig: ModuleType, blocks: Blocks, name: str) -> None:
    check_embedding(rig, blocks, name, lanes=True)


def check_embedding(rig: ModuleType, blocks: Blocks, name: str, *, lanes: bool) -> None:
    fmt = rig.FORMATS[name]
    for pattern in patterns(fmt):
        for columns in columns_of(fmt):
            raw, r = blocks(fmt, pattern, columns), rig.Rig()
            tokens = rig.LANES * 3 if lanes else columns // 32 % 8 + 1
            ids = np.random.default_rng(columns).integers(0, ROWS, tokens).astype(np.int32)
            ids[0], ids[-1] = ROWS - 1, 0
            shape = (3, columns, rig.LANES) if lanes else (tokens, columns)
            out = rig.Fenced(shape, fill=np.nan)
            r.set_step(num_tokens=tokens, token_ids=ids)
            r.run(
                embed_kernel(name, lanes),
                EMBED,
                weight=r.last(raw),
                row_bytes=fmt.row_bytes(columns),
                columns=columns,
                scale=2.5,
                out=out.at,
                out_stride=4 * columns,
            )
            out.check()
            got = rig.from_lanes(out.array) if lanes else out.array
            expected = 2.5 * finite(fmt, raw, columns)[ids]
            terms = 2.5 * rig.magnitudes(fmt, raw, columns)[ids]
            assert (np.abs(got - expected) <= 3e-7 * terms + 1e-30).all()
