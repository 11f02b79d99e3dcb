"""Rope, the pages of keys and values, and attention in both layouts, against NumPy."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.architecture import Rope
from llamba.runtime.cache import CACHE_TYPES
from llamba.runtime.kernels.records import (
    ATTENTION,
    COMBINE,
    FLOAT,
    NATURAL,
    PAIR16,
    ROPE,
    ROPE_TABLE,
    SPLIT_PAGES,
)
from llamba.runtime.kernels.reference import attention, rms_norm, rotate
from llamba.runtime.rope_table import RopeTables

pytestmark = pytest.mark.kernels

PAGE = 32
DIMS = (32, 64, 96, 128, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
LENGTHS = (1, 31, 32, 33, 511, 512, 513, 1100)  # a split is 512 positions


class Cache:
    """One layer's pages as the kernels see them; what nothing was stored in is NaN, or bytes of -1
    with NaN scales. The layouts are in the words of runtime/cache.py.
    """

    def __init__(self, num_pages: int, kv_heads: int, dim: int, kind: str) -> None:
        self.kv_heads, self.dim, self.kind = kv_heads, dim, kind
        self.head_bytes = 2 * PAGE * dim * 2 if kind == "f16" else 2 * PAGE * dim // 32 * 34
        self.pages = np.full((num_pages, kv_heads, self.head_bytes), 0xFF, np.uint8)
        self._free = list(np.random.default_rng(dim).permutation(num_pages))

    def table(self, positions: int) -> NDArray[np.int32]:
        """A block table of scattered pages."""
        return np.array([self._free.pop() for _ in range(-(-positions // PAGE))], np.int32)

    def _slots(self, page: int) -> list[NDArray]:
        """Views of a page's arrays with the slots first: (PAGE, kv_heads, ...)."""
        raw, d, n = self.pages[page], self.dim, PAGE * self.dim
        if self.kind == "f16":
            k, v = raw[:, : 2 * n].view(np.float16), raw[:, 2 * n :].view(np.float16)
            keys = np.moveaxis(k.reshape(-1, d, PAGE), 2, 0)
            return [keys, np.moveaxis(v.reshape(-1, PAGE, d), 1, 0)]
        found = []
        for half in (raw[:, : n + n // 16], raw[:, n + n // 16 :]):
            scales = half[:, n:].view(np.float16).reshape(-1, d // 32, PAGE)
            values = half[:, :n].view(np.int8)
            if not found:
                fours = np.moveaxis(values.reshape(-1, d // 4, PAGE, 4), 2, 0)
                found += [fours, np.moveaxis(scales, 2, 0)]
            else:
                rows = np.moveaxis(values.reshape(-1, PAGE, d), 1, 0)
                found += [rows, np.moveaxis(scales, 2, 0)]
        return found

    def store(self, table: NDArray[np.int32], k: NDArray, v: NDArray) -> None:
        """Put (positions, kv_heads, dim) in, rounded."""
        for p in range(len(k)):
            arrays = self._slots(table[p // PAGE])
            if self.kind == "f16":
                arrays[0][p % PAGE], arrays[1][p % PAGE] = k[p], v[p]
                continue
            for i, x in enumerate((k[p], v[p])):
                scale = np.abs(x[:, self.groups(i)]).max(axis=2) / 127
                q = x / np.maximum(self.spread(i, scale), 1e-32)
                q = np.rint(q).astype(np.int8)
                arrays[2 * i][p % PAGE] = q.reshape(arrays[2 * i].shape[1:])
                arrays[2 * i + 1][p % PAGE] = scale

    def load(self, table: NDArray[np.int32], positions: int) -> tuple[NDArray, NDArray]:
        """What positions 0.. hold, float64 (positions, kv_heads, dim) each."""
        parts: list[list[NDArray]] = [[], []]
        shape = (PAGE, self.kv_heads, self.dim)
        for page in table:
            arrays = [a.astype(np.float64) for a in self._slots(page)]
            if self.kind == "f16":
                parts[0].append(arrays[0])
                parts[1].append(arrays[1])
                continue
            for i in (0, 1):
                scales = self.spread(i, arrays[2 * i + 1])
                parts[i].append(arrays[2 * i].reshape(shape) * scales)
        k, v = (np.concatenate(part)[:positions] for part in parts)
        return k, v

    def take(self, other: "Cache", table: NDArray[np.int32], start: int, end: int) -> None:
        """The bytes of another's positions start..end-1."""
        for p in range(start, end):
            page = table[p // PAGE]
            for mine, theirs in zip(self._slots(page), other._slots(page), strict=True):
                mine[p % PAGE] = theirs[p % PAGE]

    def groups(self, which: int) -> NDArray[np.int64]:
        """(dim / 32, 32): the columns of K (0) or V (1) that share a scale."""
        columns = np.arange(self.dim)
        if which:
            return columns.reshape(-1, 32)
        return np.hstack([half.reshape(-1, 16) for half in np.split(columns, 2)])

    def spread(self, which: int, scales: NDArray) -> NDArray:
        """(..., dim / 32) -> (..., dim)."""
        found = np.empty((*scales.shape[:-1], self.dim))
        found[..., self.groups(which)] = scales[..., None]
        return found

    def check(self, which: int, got: NDArray, wanted: NDArray) -> None:
        """(positions, kv_heads, dim) as rounding allows: half a step, and that of the scale."""
        error = np.abs(got - wanted)
        if self.kind == "f16":
            assert (error <= np.abs(wanted) * 2.0**-11 * 1.002 + 4e-7).all()
            return
        largest = np.abs(wanted)[:, :, self.groups(which)].max(axis=3)
        largest = self.spread(which, largest)
        assert (error <= largest * (1 / 254 + 2.0**-11) * 1.002 + 4e-6).all()

    def fields(self) -> dict[str, int]:
        return {
            "kv": self.pages.ctypes.data,
            "page_bytes": self.kv_heads * self.head_bytes,
            "head_bytes": self.head_bytes,
        }


@pytest.fixture(params=CACHE_TYPES)
def kv(request: pytest.FixtureRequest) -> str:
    """Every cache type."""
    return request.param


# ---- rope and the pages ------------------------------------------------------------------------
@pytest.mark.parametrize("factors", [None, [1.0, 2.0, 4.0, 7.5]])
def test_rope_tables(rig: ModuleType, factors: list[float] | None) -> None:
    """Right to float32 far beyond the first length, and the cells follow when a table grows."""
    given = None if factors is None else np.array(factors, np.float32)
    tables, r = RopeTables(8, given), rig.Rig()
    cells = {key: tables.cell(*key, True) for key in ((1e4, 1.0), (1e6, 8.0))}
    for length in (3, 512, 513, 5000):
        tables.reach(length)
        for (base, scale), cell in cells.items():
            frequencies = base ** (-np.arange(0, 8, 2) / 8) / (factors or 1.0)
            angles = np.arange(length)[:, None] / scale * frequencies
            expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
            at = int(r.read(cell, (1,), np.int64)[0])
            np.testing.assert_allclose(r.read(at, expected.shape), expected, atol=1e-7)
    assert tables.cell(1e4, 1.0, True) == cells[1e4, 1.0]


class RopeCase:
    """Inputs of a rope op, and what it must leave: q, k, v rotated in float64."""

    def __init__(
        self, rig: ModuleType, kv: str, kind: Rope, dim: int, rope_dim: int, norms: bool
    ) -> None:
        self.rig, self.r, self.kind = rig, rig.Rig(), kind
        self.heads, self.kv_heads, self.dim, self.rope_dim = 5, 3, dim, rope_dim
        self.columns = (self.heads + 2 * self.kv_heads) * dim
        rng = np.random.default_rng(dim)
        self.tables = RopeTables(rope_dim, None)
        self.norms = (1 + 0.2 * rng.standard_normal((2, dim))).astype(np.float32) if norms else None
        self.cache = Cache(60, self.kv_heads, dim, kv)

    def expected(
        self, x: NDArray[np.float32], positions: NDArray[np.int64]
    ) -> tuple[NDArray, NDArray, NDArray]:
        split = np.split(
            x.astype(np.float64), [self.heads * self.dim, -self.kv_heads * self.dim], 1
        )
        q, k, v = (part.reshape(len(x), -1, self.dim) for part in split)
        if self.norms is not None:
            q = rms_norm(q, self.norms[0].astype(np.float64), 1e-6)
            k = rms_norm(k, self.norms[1].astype(np.float64), 1e-6)
        frequencies = 1e4 ** (-np.arange(0, self.rope_dim, 2) / self.rope_dim)
        angles = positions[:, None] * frequencies
        return rotate(q, angles, self.kind) * 0.25, rotate(k, angles, self.kind), v

    def fields(self) -> dict[str, Any]:
        norm = (0, 0) if self.norms is None else [self.r.last(w) for w in self.norms]
        return {
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.dim,
            "rope_dim": self.rope_dim,
            "kind": self.kind.value,
            "q_norm": norm[0],
            "k_norm": norm[1],
            "eps": 1e-6,
            "q_scale": 0.25,
            **self.cache.fields(),
        }

    def check_pages(
        self, table: NDArray[np.int32], start: int, k: NDArray, v: NDArray, before: Cache
    ) -> None:
        """New positions hold k and v, rounded; then `before` gets them, too."""
        end = start + len(k)
        new = self.cache.load(table, end)
        for which, wanted in enumerate((k, v)):
            self.cache.check(which, new[which][start:], wanted)
        before.take(self.cache, table, start, end)


ROPES = [
    (Rope.NORM, 64, 64, False),
    (Rope.NORM, 96, 48, False),
    (Rope.NEOX, 32, 32, True),
    (Rope.NEOX, 128, 64, False),
    (Rope.NEOX, 96, 10, True),
    (Rope.NEOX, 256, 256, True),
    (Rope.NONE, 32, 32, False),
    (Rope.NONE, 160, 160, True),
]


def copy_of(cache: Cache) -> Cache:
    copy = Cache(len(cache.pages), cache.kv_heads, cache.dim, cache.kind)
    copy.pages = cache.pages.copy()
    return copy


@pytest.mark.parametrize(("kind", "dim", "rope_dim", "norms"), ROPES)
def test_rope_rows(
    rig: ModuleType, kv: str, kind: Rope, dim: int, rope_dim: int, norms: bool
) -> None:
    """Eight tokens of several sequences: within a page, over its border, far out."""
    case = RopeCase(rig, kv, kind, dim, rope_dim, norms)
    runs = [(0, 1), (30, 4), (31, 1), (1000, 2)]  # start, tokens
    case.tables.reach(1002)
    positions = np.concatenate([np.arange(s, s + n) for s, n in runs])
    tables = [case.cache.table(s + n) for s, n in runs]
    x = np.random.default_rng(1).standard_normal((8, case.columns)).astype(np.float32) * 3
    before, out = copy_of(case.cache), rig.Fenced((8, case.columns + 16))
    out.array[:, : case.columns], out.array[:, case.columns :] = x, np.nan
    q_at, k_at, v_at = (out.at + 4 * c * dim for c in (0, case.heads, case.heads + case.kv_heads))
    pointers = [t.ctypes.data for t, (_, n) in zip(tables, runs, strict=True) for _ in range(n)]
    case.r.set_step(num_tokens=8, positions=positions, tables=np.array(pointers, np.int64))
    case.r.run(
        f"rope:rope_rows_{kv}",
        ROPE,
        q=q_at,
        k=k_at,
        v=v_at,
        stride=4 * (case.columns + 16),
        table_at=case.tables.cell(1e4, 1.0, True),
        **case.fields(),
    )
    out.check()
    assert np.isnan(out.array[:, case.columns :]).all()
    q, k, v = case.expected(x, positions)
    np.testing.assert_allclose(out.array[:, : case.heads * dim], q.reshape(8, -1), atol=3e-6)
    at = 0
    for table, (start, n) in zip(tables, runs, strict=True):
        case.check_pages(table, start, k[at : at + n], v[at : at + n], before)
        at += n
    np.testing.assert_array_equal(case.cache.pages, before.pages)


@pytest.mark.parametrize(("kind", "dim", "rope_dim", "norms"), ROPES)
def test_rope_lanes(
    rig: ModuleType, kv: str, kind: Rope, dim: int, rope_dim: int, norms: bool
) -> None:
    """Sequences that start on and off the borders of blocks and pages, with blocks partly empty."""
    n = rig.LANES
    runs = [(0, 3), (0, 2 * n), (n, n + 1), (29, n), (5, 40), (700, 1)]
    rope_in_lanes(RopeCase(rig, kv, kind, dim, rope_dim, norms), [], runs)


@pytest.mark.parametrize(("kind", "dim", "rope_dim", "norms"), ROPES)
def test_rope_packed(
    rig: ModuleType, kv: str, kind: Rope, dim: int, rope_dim: int, norms: bool
) -> None:
    """Tokens of many sequences in a block; some of one, over the border of a page; one block whole
    and at a page's begin.
    """
    n = rig.LANES
    packed = [(700, 1), (0, 1), (30, 5), (64, 1), (31, 1), (0, 2), (96, n)]
    rope_in_lanes(RopeCase(rig, kv, kind, dim, rope_dim, norms), packed, [(0, n), (29, 3)])
    rope_in_lanes(RopeCase(rig, kv, kind, dim, rope_dim, norms), [(32, n)], [])
    rope_in_lanes(RopeCase(rig, kv, kind, dim, rope_dim, norms), packed[:1], [])


def rope_in_lanes(
    case: RopeCase, packed: list[tuple[int, int]], runs: list[tuple[int, int]]
) -> None:
    """(start, tokens) of sequences, side by side or each in blocks of its own."""
    rig, n, dim = case.rig, case.rig.LANES, case.dim
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
    before, out = copy_of(case.cache), rig.Fenced((layout.num_blocks, case.columns, n))
    out.array[:] = rig.to_lanes(layout.place(x))
    angles = rig.Fenced((layout.num_blocks, case.rope_dim, n))
    if case.kind is not Rope.NONE:
        case.r.run(
            "rope:rope_table_lanes",
            ROPE_TABLE,
            table_at=case.tables.cell(1e4, 1.0, True),
            rope_dim=case.rope_dim,
            out=angles.at,
        )
    angles.check()
    q_at, k_at, v_at = (
        out.at + 4 * n * c * dim for c in (0, case.heads, case.heads + case.kv_heads)
    )
    rows = rig.Fenced((-(-layout.num_packed // n) * n, case.heads * dim), fill=np.nan)
    case.r.run(
        f"rope:rope_lanes_{case.cache.kind}",
        ROPE,
        q=q_at,
        k=k_at,
        v=v_at,
        stride=case.columns,
        table_at=angles.at,
        q_rows=rows.at,
        q_rows_stride=4 * case.heads * dim,
        **case.fields(),
    )
    out.check()
    rows.check()
    got = rig.from_lanes(out.array)[:, : case.heads * dim]
    packed_rows = rows.array[: layout.num_packed]
    np.testing.assert_array_equal(packed_rows, got[: layout.num_packed])
    for part, table, (start, tokens), places in zip(x, tables, every, layout.places, strict=True):
        q, k, v = case.expected(part, np.arange(start, start + tokens))
        np.testing.assert_allclose(got[places], q.reshape(tokens, -1), atol=3e-6)
        case.check_pages(table, start, k, v, before)
    np.testing.assert_array_equal(case.cache.pages, before.pages)


# ---- attention ---------------------------------------------------------------------------------
def sequence(
    rng: np.random.Generator, cache: Cache, heads: int, length: int, tokens: int
) -> tuple[NDArray[np.int32], NDArray, NDArray, NDArray]:
    """A stored sequence: its table, and q (tokens, heads, dim), k, v as float64 of what is stored.

    Scores have a standard deviation of about 2: attention with a few clear favourites.
    """
    k = rng.standard_normal((length, cache.kv_heads, cache.dim))
    v = rng.standard_normal(k.shape) + 0.3
    table = cache.table(length)
    cache.store(table, k, v)
    k, v = cache.load(table, length)
    q = rng.standard_normal((tokens, heads, cache.dim)) * 2 / np.sqrt(cache.dim)
    q[0, 0] *= 20  # one head that sees a single position
    return table, q.astype(np.float32).astype(np.float64), k, v


def check_attention(got: NDArray, expected: NDArray, q: NDArray, k: NDArray, v: NDArray) -> None:
    """(tokens, heads, dim): right to what float32 loses in the scores, whose exponentials count."""
    assert np.isfinite(got).all()
    kv_heads = k.shape[1]
    grouped = np.abs(q).reshape(len(q), kv_heads, -1, q.shape[2])
    terms = np.einsum("thgd,hd->thg", grouped, np.abs(k).max(axis=0)).reshape(*q.shape[:2], 1)
    assert (np.abs(got - expected) <= (2e-6 + terms * 2.0**-24) * np.abs(v).max()).all()


def run_rows(
    rig: ModuleType,
    kv: str,
    group: int,
    dim: int,
    lengths: tuple[int, ...],
    window: int,
    cap: float,
) -> None:
    """Decode attention and combine for one token each of sequences of the given lengths."""
    kv_heads, tokens = (3 if group < 4 else 2), len(lengths)
    heads, rng, r = kv_heads * group, np.random.default_rng(group * dim), rig.Rig()
    cache = Cache(sum(-(-n // PAGE) for n in lengths) + 3, kv_heads, dim, kv)
    cases = [sequence(rng, cache, heads, n, 1) for n in lengths]
    q = np.concatenate([c[1] for c in cases]).reshape(tokens, -1).astype(np.float32)
    splits = -(-max(lengths) // (PAGE * SPLIT_PAGES))
    partial = rig.Fenced((splits, tokens, heads, dim + 16), fill=np.nan)
    pieces = {"split_stride": tokens * heads * (dim + 16) * 4}
    r.set_step(
        num_tokens=tokens,
        positions=np.array(lengths, np.int64) - 1,
        tables=np.array([c[0].ctypes.data for c in cases], np.int64),
    )
    each = max(g for g in range(1, 9) if group % g == 0)
    sizes = {"head_dim": dim, "window": window}
    r.run(
        f"attention:attention_rows_{each}_{kv}",
        ATTENTION,
        q=r.last(q),
        stride=4 * heads * dim,
        num_kv_heads=kv_heads,
        group=group,
        softcap=float(cap),
        out=partial.at,
        **pieces,
        **sizes,
        **cache.fields(),
    )
    partial.check()
    out = r.buffers(tokens, heads * dim, FLOAT | NATURAL | PAIR16, lanes=False)
    r.run(
        "attention_combine:combine_rows",
        COMBINE,
        partial=partial.at,
        num_heads=heads,
        **pieces,
        **sizes,
        **out.fields(),
    )
    got = r.read(out.plain, (tokens, heads, dim))
    for one, (_, queries, k, v) in zip(got, cases, strict=True):
        expected = attention(queries, k, v, scale=1.0, window=window, softcap=cap)
        check_attention(one[None], expected, queries, k, v)
    values, step = rig.quantize(got.reshape(tokens, -1), 16)
    stored = r.read(out.natural, values.shape, np.int8)
    assert np.abs(stored.astype(int) - values).max() <= 1  # ties may round otherwise
    order = rig.order_of(PAIR16, heads * dim)
    np.testing.assert_array_equal(r.read(out.pair16, values.shape, np.int8), stored[:, order])
    np.testing.assert_allclose(r.read(out.scale, step.shape), step, rtol=1e-6)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_decode(rig: ModuleType, kv: str, group: int, dim: int) -> None:
    run_rows(rig, kv, group, dim, LENGTHS, 0, 0.0)


@pytest.mark.parametrize("window", [1, 7, 32, 100, 512, 600])
@pytest.mark.parametrize(("group", "dim"), [(4, 64), (1, 256)])
def test_decode_in_a_window(rig: ModuleType, kv: str, group: int, dim: int, window: int) -> None:
    run_rows(rig, kv, group, dim, LENGTHS, window, 0.0)
    run_rows(rig, kv, group, dim, (window, window + 1, window + 31, window + 32), window, 0.0)


@pytest.mark.parametrize("cap", [1.5, 50.0])
@pytest.mark.parametrize("window", [0, 40])
def test_decode_with_soft_cap(rig: ModuleType, kv: str, window: int, cap: float) -> None:
    run_rows(rig, kv, 2, 96, LENGTHS, window, cap)
    run_rows(rig, kv, 12, 32, LENGTHS[:5], window, cap)


@pytest.mark.parametrize("length", LENGTHS)
def test_decode_alone(rig: ModuleType, kv: str, length: int) -> None:
    """With nobody longer in the step there are fewer splits."""
    run_rows(rig, kv, 3, 64, (length,), 0, 0.0)


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(("group", "dim"), [(1, 96), (3, 64), (7, 64), (6, 128), (16, 32)])
def test_decode_does_not_depend_on_others(
    rig: ModuleType, kv: str, group: int, dim: int, window: int
) -> None:
    """A token's bits are the same alone and among others, longer and shorter ones, in any order."""
    kv_heads, lengths = 2, [1, 40, 512, 513, 700, 1100, 1600, 33]
    heads, rng, r = kv_heads * group, np.random.default_rng(group), rig.Rig()
    cache = Cache(sum(-(-n // PAGE) for n in lengths), kv_heads, dim, kv)
    cases = [sequence(rng, cache, heads, n, 1) for n in lengths]
    each = max(g for g in range(1, 9) if group % g == 0)

    def run(chosen: list[int]) -> NDArray:
        tokens = len(chosen)
        q = np.concatenate([cases[i][1].reshape(1, -1) for i in chosen]).astype(np.float32)
        splits = -(-max(lengths[i] for i in chosen) // (PAGE * SPLIT_PAGES))
        partial = rig.Fenced((splits, tokens, heads, dim + 16), fill=np.nan)
        sizes = {
            "head_dim": dim,
            "window": window,
            "split_stride": tokens * heads * (dim + 16) * 4,
        }
        r.set_step(
            num_tokens=tokens,
            positions=np.array([lengths[i] - 1 for i in chosen], np.int64),
            tables=np.array([cases[i][0].ctypes.data for i in chosen], np.int64),
        )
        r.run(
            f"attention:attention_rows_{each}_{kv}",
            ATTENTION,
            q=r.last(q),
            stride=4 * heads * dim,
            num_kv_heads=kv_heads,
            group=group,
            softcap=0.0,
            out=partial.at,
            **sizes,
            **cache.fields(),
        )
        out = r.buffers(tokens, heads * dim, FLOAT, lanes=False)
        combine = {"partial": partial.at, "num_heads": heads, **sizes, **out.fields()}
        r.run("attention_combine:combine_rows", COMBINE, **combine)
        partial.check()
        return r.read(out.plain, (tokens, heads * dim))

    alone = np.concatenate([run([i]) for i in range(len(lengths))])
    for order in (range(8), range(7, -1, -1), [6, 0, 3], [1, 5], [2, 2, 2, 4, 4]):
        np.testing.assert_array_equal(run(list(order)), alone[list(order)])


def run_lanes(
    rig: ModuleType,
    kv: str,
    group: int,
    dim: int,
    runs: tuple[tuple[int, int], ...],
    window: int = 0,
    cap: float = 0.0,
    packed: tuple[tuple[int, int], ...] = (),
) -> None:
    """Attention of (start, tokens) chunks of sequences of their own, some packed."""
    n, kv_heads = rig.LANES, (3 if group < 4 else 2)
    heads, rng, r = kv_heads * group, np.random.default_rng(group * dim), rig.Rig()
    every = [*packed, *runs]
    cache = Cache(sum(-(-(s + t) // PAGE) for s, t in every) + 3, kv_heads, dim, kv)
    cases = [sequence(rng, cache, heads, s + t, t) for s, t in every]
    layout = rig.Layout()
    for (start, tokens), case in zip(packed, cases, strict=False):
        layout.pack(start, tokens, case[0])
    for (start, tokens), case in zip(runs, cases[len(packed) :], strict=True):
        layout.chunk(start, tokens, case[0])
    layout.into(r)
    columns = (heads + 2 * kv_heads) * dim  # q as it lies between k and v
    q = layout.place([c[1].reshape(len(c[1]), -1).astype(np.float32) for c in cases])
    x = np.pad(q, ((0, 0), (0, columns - heads * dim)), constant_values=np.nan)
    out = rig.Fenced((layout.num_blocks, heads * dim, n), fill=np.nan)
    fields = {
        "num_kv_heads": kv_heads,
        "group": group,
        "head_dim": dim,
        "window": window,
        "softcap": float(cap),
        **cache.fields(),
    }
    r.run(
        f"attention_lanes:attention_lanes_{kv}",
        ATTENTION,
        q=r.last(rig.to_lanes(x)),
        stride=columns,
        out=out.at,
        out_stride=heads * dim,
        **fields,
    )
    blocks = -(-layout.num_packed // n)
    assert np.isnan(out.array[:blocks]).all()
    rows, longest = max(layout.num_packed, 1), max(s + t for s, t in packed or [(0, 1)])
    partial = rig.Fenced((-(-longest // (PAGE * SPLIT_PAGES)), rows, heads, dim + 16), fill=np.nan)
    pieces = {"split_stride": rows * heads * (dim + 16) * 4}
    each = max(g for g in range(1, 9) if group % g == 0)
    r.run(
        f"attention:attention_rows_{each}_{kv}",
        ATTENTION,
        "num_packed",
        q=r.last(q[: layout.num_packed]),
        stride=4 * heads * dim,
        out=partial.at,
        **pieces,
        **fields,
    )
    r.run(
        "attention_combine:combine_lanes",
        COMBINE,
        "num_packed",
        partial=partial.at,
        num_heads=heads,
        head_dim=dim,
        window=window,
        out=out.at,
        out_stride=heads * dim,
        **pieces,
    )
    partial.check()
    out.check()
    got = rig.from_lanes(out.array)
    for (_, queries, k, v), places in zip(cases, layout.places, strict=True):
        expected = attention(queries, k, v, scale=1.0, window=window, softcap=cap)
        check_attention(got[places].reshape(expected.shape), expected, queries, k, v)


PACKED = ((0, 1), (30, 5), (511, 1), (512, 3), (0, 2), (1099, 1), (63, 1), (64, 1), (600, 9))


@pytest.mark.parametrize(
    ("group", "dim"), [(1, 64), (3, 64), (7, 64), (6, 128), (4, 256), (16, 32)]
)
def test_packed(rig: ModuleType, kv: str, group: int, dim: int) -> None:
    """Tokens of many sequences, some several, with chunks behind them and without."""
    run_lanes(rig, kv, group, dim, ((13, 40), (0, 16)), packed=PACKED)
    run_lanes(rig, kv, group, dim, (), packed=PACKED[3:6])
    run_lanes(rig, kv, group, dim, ((40, 3),), packed=((100, rig.LANES),))


@pytest.mark.parametrize("cap", [0.0, 20.0])
@pytest.mark.parametrize("window", [1, 40, 513])
def test_packed_in_a_window(rig: ModuleType, kv: str, window: int, cap: float) -> None:
    run_lanes(rig, kv, 2, 96, ((13, 40),), window, cap, packed=PACKED)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_prefill(rig: ModuleType, kv: str, group: int, dim: int) -> None:
    """Chunks from the start, from the middle of a page, a block or both; one token; long ones."""
    runs = ((0, 1), (0, 16), (0, 45), (13, 9), (16, 33), (32, 32), (1075, 25))
    run_lanes(rig, kv, group, dim, runs)


@pytest.mark.parametrize("length", LENGTHS)
def test_prefill_lengths(rig: ModuleType, kv: str, length: int) -> None:
    run_lanes(rig, kv, 3, 64, ((0, length),) if length < 600 else ((length - 77, 77),))


@pytest.mark.parametrize("window", [1, 7, 16, 32, 100, 600])
@pytest.mark.parametrize(("group", "dim"), [(4, 64), (1, 256)])
def test_prefill_in_a_window(rig: ModuleType, kv: str, group: int, dim: int, window: int) -> None:
    runs = ((0, 9), (0, 75), (window, 40), (window - 1, 17), (5 * 32 + 3, 50), (700, 30))
    run_lanes(rig, kv, group, dim, runs, window)


@pytest.mark.parametrize("cap", [1.5, 50.0])
@pytest.mark.parametrize("window", [0, 40])
def test_prefill_with_soft_cap(rig: ModuleType, kv: str, window: int, cap: float) -> None:
    run_lanes(rig, kv, 2, 96, ((0, 70), (33, 20)), window, cap)
