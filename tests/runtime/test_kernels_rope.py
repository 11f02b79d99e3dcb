"""Rope with the norms before it, and new keys and values into their pages, against NumPy."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.architecture import Hyperparameters, Norm, Rope, Rotation
from llamba.runtime.cache import CACHE_TYPES
from llamba.runtime.kernels.records import ROPE, ROPE_TABLE
from llamba.runtime.rope_table import RopeTables

pytestmark = pytest.mark.kernels


# f32 is made as f16 is; the tests of architectures run it.
SLOW = {"f32": pytest.mark.slow}


@pytest.fixture(params=[pytest.param(kind, marks=SLOW.get(kind, ())) for kind in CACHE_TYPES])
def kv(request: pytest.FixtureRequest) -> str:
    """Every cache type."""
    return request.param


def frequencies(dim: int, base: float = 1e4) -> NDArray[np.float64]:
    return base ** (-np.arange(0, dim, 2) / dim)


def test_rope_tables(rig: ModuleType) -> None:
    """Right to float32 far beyond the first length, and the cells follow when a table grows."""
    tables, r = RopeTables(), rig.Rig()
    rotations = [
        Rotation(Rope.NEOX, frequencies(8)),
        Rotation(Rope.NORM, frequencies(20, 1e6) / 8.0, magnitude=1.25),
    ]
    cells = [tables.cell(rotation) for rotation in rotations]
    for length in (3, 512, 513, 5000):
        tables.reach(length)
        for rotation, cell in zip(rotations, cells, strict=True):
            angles = np.arange(length)[:, None] * rotation.frequencies
            expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
            expected *= rotation.magnitude
            at = int(r.read(cell, (1,), np.int64)[0])
            np.testing.assert_allclose(r.read(at, expected.shape), expected, atol=1.3e-7)
    assert [tables.cell(rotation) for rotation in rotations] == cells


def test_temperature_table(rig: ModuleType) -> None:
    numbers = Hyperparameters(
        dim=32,
        vocab_size=8,
        context_length=64,
        norm_eps=1e-5,
        layers=(),
        temperature=0.1,
        temperature_length=40,
    )
    tables, r = RopeTables(), rig.Rig()
    cell = tables.temperature_cell(numbers)
    tables.reach(700)
    at = int(r.read(cell, (1,), np.int64)[0])
    expected = [1 + 0.1 * np.log(1 + p // 40) for p in range(700)]
    np.testing.assert_allclose(r.read(at, (700,)), expected, rtol=1e-7)
    assert expected[39] == 1 < expected[40]


@dataclass(frozen=True)
class Form:
    """What a model's heads are like. norms: none, RMS for all heads, or LAYER with a bias for each.

    shared: the rotated part of k is one for all heads. same: v is what k is before its norm.
    """

    kind: Rope
    dim: int
    rope_dim: int
    norms: str = ""
    value_dim: int = 0
    offset: int = 0
    shared: bool = False
    same: bool = False
    v_norm: bool = False
    temperature: bool = False

    def __str__(self) -> str:
        return f"{self.kind.name}-{self.dim}-{self.rope_dim}-{self.norms}-{self.value_dim}"


FORMS = [
    Form(Rope.NORM, 64, 64),
    Form(Rope.NORM, 96, 48, value_dim=64),
    Form(Rope.NEOX, 32, 32, "rms"),
    Form(Rope.NEOX, 128, 64),
    Form(Rope.NEOX, 96, 10, "layer"),
    Form(Rope.NEOX, 256, 256, "rms", v_norm=True, same=True),
    Form(Rope.NEOX, 80, 20, "rms", v_norm=True),
    Form(Rope.NEOX, 48, 48, "layer", value_dim=16),
    Form(Rope.NONE, 32, 0, temperature=True),
    Form(Rope.NONE, 160, 0, "rms"),
    Form(Rope.NORM, 192, 64, value_dim=128, offset=128, shared=True),
    Form(Rope.NORM, 576, 64, value_dim=512, offset=512, temperature=True),
    Form(Rope.NORM, 48, 16, value_dim=32, offset=32, shared=True),
]
FEW = [FORMS[i] for i in (2, 4, 5, 6, 7, 10)]


class Case:
    """Inputs of a rope op, and what it must leave: q, k, v in float64."""

    def __init__(self, rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form) -> None:
        self.rig, self.r, self.form = rig, rig.Rig(), form
        self.heads, self.kv_heads = 5, 3
        self.dim, self.value_dim = form.dim, form.value_dim or form.dim
        self.plain = form.offset if form.shared else form.dim  # of k, what each head has itself
        rng = np.random.default_rng(form.dim)
        self.tables = RopeTables()
        self.rotation = Rotation(form.kind, frequencies(form.rope_dim or 2), offset=form.offset)
        self.numbers = Hyperparameters(
            dim=32,
            vocab_size=8,
            context_length=64,
            norm_eps=1e-6,
            layers=(),
            temperature=0.3,
            temperature_length=25,
        )
        # Weights and biases of q's heads, then of k's.
        shape = (2, self.heads + self.kv_heads, form.dim)
        self.norms = 0.2 * rng.standard_normal(shape) + np.array([1.0, 0.0])[:, None, None]
        if form.norms == "rms":
            self.norms = np.repeat(self.norms[:, :1], shape[1], axis=1)
        self.norms = self.norms.astype(np.float32)
        self.cache = kv_pages.Cache(60, self.kv_heads, form.dim, kv, self.value_dim)
        # Columns: q, k, v (or none), the shared part, a gap.
        self.at = dict.fromkeys("qkvs", 0)
        self.at["k"] = self.heads * form.dim
        self.at["v"] = self.at["k"] + (0 if form.same else self.kv_heads * self.plain)
        self.at["s"] = self.at["v"] + self.kv_heads * self.value_dim
        self.columns = self.at["s"] + 64

    def norm(self, x: NDArray, first: int) -> NDArray:
        """Of (tokens, heads, dim), the heads' weights from `first` on."""
        if not self.form.norms:
            return x
        weight, bias = self.norms[:, first : first + x.shape[1]].astype(np.float64)
        if self.form.norms == "layer":
            x = x - x.mean(axis=2, keepdims=True)
        y = x / np.sqrt((x * x).mean(axis=2, keepdims=True) + 1e-6) * weight
        return y + bias if self.form.norms == "layer" else y

    def turn(self, x: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[Any]:
        if self.form.kind is Rope.NONE:
            return x
        n, at = self.form.rope_dim, self.form.offset
        angles = (positions[:, None] * frequencies(n))[:, None]
        places = np.arange(at, at + n)
        pairs = places.reshape(-1, 2).T if self.form.kind is Rope.NORM else places.reshape(2, -1)
        y = x.copy()
        y[..., pairs[0]] = x[..., pairs[0]] * np.cos(angles) - x[..., pairs[1]] * np.sin(angles)
        y[..., pairs[1]] = x[..., pairs[0]] * np.sin(angles) + x[..., pairs[1]] * np.cos(angles)
        return y

    def expected(
        self, x: NDArray[Any], positions: NDArray[np.int64]
    ) -> tuple[NDArray, NDArray, NDArray]:
        x, n = x.astype(np.float64), len(x)

        def part(name: str, heads: int, size: int) -> NDArray:
            return x[:, self.at[name] : self.at[name] + heads * size].reshape(n, heads, size)

        q, k = part("q", self.heads, self.dim), part("k", self.kv_heads, self.plain)
        v = part("v", self.kv_heads, self.value_dim)
        if self.form.shared:
            shared = np.repeat(part("s", 1, self.dim - self.plain), self.kv_heads, axis=1)
            k = np.concatenate([k, shared], axis=2)
        if self.form.v_norm:
            v = v / np.sqrt((v * v).mean(axis=2, keepdims=True) + 1e-6)
        q, k = self.norm(q, 0), self.norm(k, self.heads)
        factor = np.full(n, 0.25)
        if self.form.temperature:
            factor *= 1 + 0.3 * np.log(1 + positions // 25)
        q = self.turn(q, positions) * factor[:, None, None]
        return q, self.turn(k, positions), v

    def fields(self, out: int, lanes: int) -> dict[str, Any]:
        """The record's; out: address of the buffer."""
        form, unit = self.form, lanes or 1
        norm = self.norms if form.norms else None
        fields = {
            **{part: out + 4 * self.at[part] * unit for part in "qkv"},
            "shared": out + 4 * self.at["s"] * unit if form.shared else 0,
            **dict.fromkeys(
                ("stride", "kv_stride", "shared_stride"), self.step(self.columns, lanes)
            ),
            "k_step": self.step(self.plain, lanes),
            "v_step": self.step(self.value_dim, lanes),
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "key_dim": form.dim,
            "value_dim": self.value_dim,
            "rope_dim": form.rope_dim,
            "rope_offset": form.offset,
            "kind": form.kind.value,
            "v_norm": int(form.v_norm),
            "eps": 1e-6,
            "q_scale": 0.25,
            **self.cache.fields(),
        }
        if form.temperature:
            fields["temperature_at"] = self.tables.temperature_cell(self.numbers)
        if norm is not None:
            fields["q_norm"] = self.r.keep(norm[0])
            fields["k_norm"] = self.r.keep(norm[0, self.heads :])
        if norm is not None and form.norms == "layer":
            fields |= {"norm_kind": Norm.LAYER.value, "norm_step": 4 * form.dim}
            fields["q_bias"] = self.r.keep(norm[1])
            fields["k_bias"] = self.r.keep(norm[1, self.heads :])
        return fields

    def step(self, columns: int, lanes: int) -> int:
        return columns if lanes else 4 * columns

    def check_pages(
        self, table: NDArray[np.int32], start: int, k: NDArray, v: NDArray, before: Any
    ) -> None:
        """New positions hold k and v, rounded; then `before` gets them, too."""
        end = start + len(k)
        new = self.cache.load(table, end)
        for which, wanted in enumerate((k, v)):
            self.cache.check(which, new[which][start:], wanted)
        before.take(self.cache, table, start, end)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rope_rows(rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form) -> None:
    """Eight tokens of several sequences: within a page, over its border, far out."""
    case = Case(rig, kv_pages, kv, form)
    runs = [(0, 1), (30, 4), (31, 1), (1000, 2)]  # start, tokens
    case.tables.cell(case.rotation)
    case.tables.temperature_cell(case.numbers)
    case.tables.reach(1002)
    positions = np.concatenate([np.arange(s, s + n) for s, n in runs])
    tables = [case.cache.table(s + n) for s, n in runs]
    x = np.random.default_rng(1).standard_normal((8, case.columns)).astype(np.float32) * 3
    before, out = case.cache.copy(), rig.Fenced((8, case.columns))
    out.array[:] = x
    pointers = [t.ctypes.data for t, (_, n) in zip(tables, runs, strict=True) for _ in range(n)]
    case.r.set_step(num_tokens=8, positions=positions, tables=np.array(pointers, np.int64))
    case.r.run(
        f"rope:rope_rows_{kv}",
        ROPE,
        table_at=case.tables.cell(case.rotation),
        **case.fields(out.at, 0),
    )
    out.check()
    q, k, v = case.expected(x, positions)
    np.testing.assert_allclose(out.array[:, : case.at["k"]], q.reshape(8, -1), atol=5e-6)
    np.testing.assert_array_equal(out.array[:, case.at["k"] :], x[:, case.at["k"] :])
    at = 0
    for table, (start, n) in zip(tables, runs, strict=True):
        case.check_pages(table, start, k[at : at + n], v[at : at + n], before)
        at += n
    np.testing.assert_array_equal(case.cache.pages, before.pages)


def test_no_keys_where_another_layer_has_them(rig: ModuleType, kv_pages: ModuleType) -> None:
    """num_kv_heads=0: q is normed, turned and scaled, the pages stay as they are."""
    case = Case(rig, kv_pages, "f16", FORMS[2])
    table, x = case.cache.table(4), np.random.default_rng(1).standard_normal((4, case.columns))
    out = rig.Fenced((4, case.columns))
    out.array[:] = x
    positions, before = np.arange(4), case.cache.copy()
    case.r.set_step(num_tokens=4, positions=positions)
    case.r.set_step(tables=np.full(4, table.ctypes.data, np.int64))
    table_at = case.tables.cell(case.rotation)
    fields = case.fields(out.at, 0) | {"num_kv_heads": 0}
    case.r.run("rope:rope_rows_f16", ROPE, table_at=table_at, **fields)
    q, _, _ = case.expected(x.astype(np.float32), positions)
    np.testing.assert_allclose(out.array[:, : case.at["k"]], q.reshape(4, -1), atol=5e-6)
    np.testing.assert_array_equal(case.cache.pages, before.pages)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rope_lanes(rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form) -> None:
    """Sequences that start on and off the borders of blocks and pages, with blocks partly empty."""
    n = rig.LANES
    runs = [(0, 3), (0, 2 * n), (n, n + 1), (29, n), (5, 40), (700, 1)]
    rope_in_lanes(Case(rig, kv_pages, kv, form), [], runs)


@pytest.mark.parametrize("form", FEW, ids=str)
def test_rope_packed(rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form) -> None:
    """Tokens of many sequences in a block; some of one, over the border of a page; one block whole
    and at a page's begin.
    """
    n = rig.LANES
    packed = [(700, 1), (0, 1), (30, 5), (64, 1), (31, 1), (0, 2), (96, n)]
    rope_in_lanes(Case(rig, kv_pages, kv, form), packed, [(0, n), (29, 3)])
    rope_in_lanes(Case(rig, kv_pages, kv, form), [(32, n)], [])
    rope_in_lanes(Case(rig, kv_pages, kv, form), packed[:1], [])


def rope_in_lanes(case: Case, packed: list[tuple[int, int]], runs: list[tuple[int, int]]) -> None:
    """(start, tokens) of sequences, side by side or each in blocks of its own."""
    rig, n, dim = case.rig, case.rig.LANES, case.dim
    case.tables.cell(case.rotation)
    case.tables.temperature_cell(case.numbers)
    case.tables.reach(701)
    layout, rng = rig.Layout(), np.random.default_rng(1)
    every = [*packed, *runs]
    tables = [case.cache.table(start + tokens) for start, tokens in every]
    x = [rng.standard_normal((t, case.columns)).astype(np.float32) * 3 for _, t in every]
    for (start, tokens), table in zip(packed, tables, strict=False):
        layout.pack(start, tokens, table)
    for (start, tokens), table in zip(runs, tables[len(packed) :], strict=True):
        layout.chunk(start, tokens, table)
    layout.into(case.r)
    before, out = case.cache.copy(), rig.Fenced((layout.num_blocks, case.columns, n))
    out.array[:] = rig.to_lanes(layout.place(x))
    angles = rig.Fenced((layout.num_blocks, max(case.form.rope_dim, 2), n))
    case.r.run(
        "rope:rope_table_lanes",
        ROPE_TABLE,
        table_at=case.tables.cell(case.rotation),
        rope_dim=case.rotation.dim,
        out=angles.at,
    )
    angles.check()
    rows = rig.Fenced((-(-layout.num_packed // n) * n, case.heads * dim), fill=np.nan)
    case.r.run(
        f"rope:rope_lanes_{case.cache.kind}",
        ROPE,
        table_at=angles.at,
        q_rows=rows.at,
        q_rows_stride=4 * case.heads * dim,
        **case.fields(out.at, n),
    )
    out.check()
    rows.check()
    got = rig.from_lanes(out.array)[:, : case.heads * dim]
    packed_rows = rows.array[: layout.num_packed]
    np.testing.assert_array_equal(packed_rows, got[: layout.num_packed])
    for part, table, (start, tokens), places in zip(x, tables, every, layout.places, strict=True):
        q, k, v = case.expected(part, np.arange(start, start + tokens))
        np.testing.assert_allclose(got[places], q.reshape(tokens, -1), atol=5e-6)
        case.check_pages(table, start, k, v, before)
    np.testing.assert_array_equal(case.cache.pages, before.pages)
