"""Attention over pages in both layouts, against NumPy."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.quant import jit
from llamba.runtime.cache import CACHE_TYPES
from llamba.runtime.kernels.records import (
    ATTENTION,
    COMBINE,
    FLOAT,
    NATURAL,
    PAIR16,
    SPLIT_PAGES,
)

pytestmark = pytest.mark.kernels

PAGE = 32
DIMS = (32, 64, 96, 128, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
LENGTHS = (1, 31, 32, 33, 511, 512, 513, 1100)  # a split is 512 positions


# f32 is made as f16 is; the tests of architectures run it.
SLOW = {"f32": pytest.mark.slow}


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """The kernels of the whole module at once, on all cores; of a few tests each by itself."""
    mine = [item for item in request.session.items if item.path == request.path]
    params = [getattr(getattr(item, "callspec", None), "params", {}) for item in mine]
    kinds = sorted({each["kv"] for each in params if "kv" in each})
    names = [f"attention:attention_rows_{each}_{kv}" for each in range(1, 9) for kv in kinds]
    names += [f"attention_{k}:attention_{k}_{kv}" for k in ("lanes", "words") for kv in kinds]
    if len(mine) > 100:
        jit.load([f"runtime.kernels.cpu.{name}" for name in names])


@pytest.fixture(params=[pytest.param(kind, marks=SLOW.get(kind, ())) for kind in CACHE_TYPES])
def kv(request: pytest.FixtureRequest) -> str:
    """Every cache type."""
    return request.param


@dataclass(frozen=True)
class Form:
    """What a layer's attention is like. sinks, slopes: whether heads have them."""

    group: int
    dim: int
    value_dim: int = 0
    window: int = 0
    ahead: int = 0
    cap: float = 0.0
    causal: bool = True
    sinks: bool = False
    slopes: bool = False
    kv_heads: int = 0

    def __str__(self) -> str:
        found = f"{self.group}-{self.dim}-{self.value_dim}-{self.window}-{self.ahead}"
        flags = (self.cap, self.causal, self.sinks, self.slopes)
        return f"{found}-{'-'.join(str(int(flag)) for flag in flags)}"


class Case:
    """Pages, and the fields of records, of one form."""

    def __init__(
        self, rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form, positions: list[int]
    ) -> None:
        self.rig, self.r, self.pages, self.form, self.kv = rig, rig.Rig(), kv_pages, form, kv
        self.kv_heads = form.kv_heads or (3 if form.group < 4 else 2)
        self.heads = self.kv_heads * form.group
        self.value_dim = form.value_dim or form.dim
        self.room = kv_pages.room(self.value_dim)
        self.rng = np.random.default_rng(form.group * form.dim)
        num_pages = sum(-(-n // PAGE) for n in positions) + 3
        self.cache = kv_pages.Cache(num_pages, self.kv_heads, form.dim, kv, self.value_dim)
        sinks = self.rng.standard_normal(self.heads).astype(np.float32) + 2
        slopes = (0.5 ** np.arange(1, self.heads + 1)).astype(np.float32)
        self.sinks = sinks if form.sinks else None
        self.slopes = slopes if form.slopes else None
        self.each = max(g for g in range(1, 9) if form.group % g == 0)

    def sequence(self, length: int, tokens: int) -> tuple[NDArray[np.int32], Any, Any, Any]:
        """A stored sequence: its table, and q (tokens, heads, dim), k, v as float64 of what is
        stored.

        Scores have a standard deviation of about 2: attention with a few clear favourites.
        """
        k = self.rng.standard_normal((length, self.kv_heads, self.form.dim))
        v = self.rng.standard_normal((length, self.kv_heads, self.value_dim)) + 0.3
        table = self.cache.table(length)
        self.cache.store(table, k, v)
        k, v = self.cache.load(table, length)
        q = self.rng.standard_normal((tokens, self.heads, self.form.dim))
        q *= 2 / np.sqrt(self.form.dim)
        q[0, 0] *= 20  # one head that sees a single position
        return table, q.astype(np.float32).astype(np.float64), k, v

    def seen(self) -> dict[str, int]:
        """Fields of what a query sees."""
        return {"window": self.form.window, "ahead": self.form.ahead}

    def extra(self, name: str) -> dict[str, int]:
        """A field of a value a head."""
        array = getattr(self, name)
        return {} if array is None else {name: self.r.keep(array)}

    def fields(self) -> dict[str, Any]:
        return {
            "num_kv_heads": self.kv_heads,
            "group": self.form.group,
            "key_dim": self.form.dim,
            "value_dim": self.value_dim,
            "softcap": float(self.form.cap),
            **self.seen(),
            **self.extra("slopes"),
            **self.cache.fields(),
        }

    def partial(self, tokens: int, longest: int) -> Any:
        splits = -(-longest // (PAGE * SPLIT_PAGES))
        return self.rig.Fenced((splits, tokens, self.heads, self.room + 16), fill=np.nan)

    def split_stride(self, tokens: int) -> int:
        return tokens * self.heads * (self.room + 16) * 4

    def rows(self, q: NDArray, out: Any, count: str = "num_tokens") -> None:
        """Run decode attention of q (tokens, heads * dim)."""
        self.r.run(
            f"attention:attention_rows_{self.each}_{self.kv}",
            ATTENTION,
            count,
            q=self.r.last(q.astype(np.float32)),
            stride=4 * self.heads * self.form.dim,
            out=out.at,
            split_stride=self.split_stride(max(len(q), 1)),
            **self.fields(),
        )
        out.check()

    def combine(self, kind: str, count: str, tokens: int, partial: Any, **target: int) -> None:
        self.r.run(
            f"attention_combine:combine_{kind}",
            COMBINE,
            count,
            partial=partial.at,
            split_stride=self.split_stride(tokens),
            num_heads=self.heads,
            head_dim=self.value_dim,
            **self.seen(),
            **self.extra("sinks"),
            **target,
        )

    def check(
        self, got: NDArray, start: int, q: NDArray, k: NDArray, v: NDArray, words: bool = False
    ) -> None:
        """(tokens, heads, value_dim), right to what float32 loses in the scores, whose exponentials
        count; in 16-bit words to what their roundings do to a sum of as many, six times.
        """
        form = self.form
        found = self.pages.weights(
            q,
            k,
            start=start,
            window=form.window,
            ahead=form.ahead,
            causal=form.causal,
            cap=form.cap,
            slopes=self.slopes,
            sinks=self.sinks,
        )
        expected = self.pages.weighted(found, v)
        assert np.isfinite(got).all()
        grouped = np.abs(q).reshape(len(q), self.kv_heads, -1, q.shape[2])
        terms = np.einsum("thgd,hd->thg", grouped, np.abs(k).max(axis=0))
        terms = terms.reshape(*q.shape[:2], 1)
        if self.slopes is not None:  # the bias is a term as well
            terms = terms + self.slopes[None, :, None] * len(k)
        error = np.abs(got.reshape(expected.shape) - expected)
        allowed = 2e-6 + terms * 2.0**-24
        if words:
            lengths = np.sqrt((q**2).sum(axis=2) * (k**2).sum(axis=2).max())
            scores = lengths / 32767 * np.sqrt(2 / 12)  # of both vectors
            keys = np.sqrt((found > 0).sum(axis=2) / 12)
            rounded = 2 * scores + 2 * keys * found.max(axis=2) / 4096 + 1 / 8191 / np.sqrt(12)
            allowed = allowed + 6 * rounded[:, :, None]
        assert (error <= allowed * np.abs(v).max()).all()


def run_rows(
    rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form, lengths: tuple[int, ...] = LENGTHS
) -> None:
    """Decode attention and combine for one token each of sequences of the given lengths.

    Without causality the token is somewhere in its sequence.
    """
    case, tokens = Case(rig, kv_pages, kv, form, list(lengths)), len(lengths)
    cases = [case.sequence(n, 1) for n in lengths]
    q = np.concatenate([c[1] for c in cases]).reshape(tokens, -1)
    partial, ends = case.partial(tokens, max(lengths)), np.array(lengths, np.int64) - 1
    positions = ends if form.causal else ends * 3 // 5
    case.r.set_step(
        num_tokens=tokens,
        positions=positions,
        ends=ends,
        tables=np.array([c[0].ctypes.data for c in cases], np.int64),
    )
    case.rows(q, partial)
    columns = case.heads * case.value_dim
    whole = columns % 32 == 0
    orders = FLOAT | NATURAL | PAIR16 if whole else FLOAT
    out = case.r.buffers(tokens, columns, orders, lanes=False)
    case.combine("rows", "num_tokens", tokens, partial, **out.fields())
    got = case.r.read(out.plain, (tokens, case.heads, case.value_dim))
    for one, at, (_, queries, k, v) in zip(got, positions, cases, strict=True):
        case.check(one[None], int(at), queries, k, v)
    if whole:
        values, step = rig.quantize(got.reshape(tokens, -1), 16)
        stored = case.r.read(out.natural, values.shape, np.int8)
        assert np.abs(stored.astype(int) - values).max() <= 1  # ties may round otherwise
        order = rig.order_of(PAIR16, columns)
        paired = case.r.read(out.pair16, values.shape, np.int8)
        np.testing.assert_array_equal(paired, stored[:, order])
        np.testing.assert_allclose(case.r.read(out.scale, step.shape), step, rtol=1e-6)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_decode(rig: ModuleType, kv_pages: ModuleType, kv: str, group: int, dim: int) -> None:
    run_rows(rig, kv_pages, kv, Form(group, dim))


@pytest.mark.parametrize("window", [1, 7, 32, 100, 512, 600])
@pytest.mark.parametrize(("group", "dim"), [(4, 64), (1, 256)])
def test_decode_in_a_window(
    rig: ModuleType, kv_pages: ModuleType, kv: str, group: int, dim: int, window: int
) -> None:
    form = Form(group, dim, window=window)
    run_rows(rig, kv_pages, kv, form)
    run_rows(rig, kv_pages, kv, form, (window, window + 1, window + 31, window + 32))


@pytest.mark.parametrize("cap", [1.5, 50.0])
@pytest.mark.parametrize("window", [0, 40])
def test_decode_with_soft_cap(
    rig: ModuleType, kv_pages: ModuleType, kv: str, window: int, cap: float
) -> None:
    run_rows(rig, kv_pages, kv, Form(2, 96, window=window, cap=cap))
    run_rows(rig, kv_pages, kv, Form(12, 32, window=window, cap=cap), LENGTHS[:5])


@pytest.mark.parametrize("length", LENGTHS)
def test_decode_alone(rig: ModuleType, kv_pages: ModuleType, kv: str, length: int) -> None:
    """With nobody longer in the step there are fewer splits."""
    run_rows(rig, kv_pages, kv, Form(3, 64), (length,))


# Heads that fill no group of 32, keys longer than values, the longest, and whatever shifts scores.
OTHERS = [
    Form(2, 48),
    Form(3, 80, 16),
    Form(1, 192, 128),
    Form(12, 576, 512, kv_heads=1),
    Form(4, 64, sinks=True),
    Form(8, 48, window=100, sinks=True),
    Form(3, 64, slopes=True),
    Form(2, 96, window=40, cap=20.0, sinks=True, slopes=True),
    Form(1, 32, causal=False),
    Form(2, 64, window=33, ahead=32, causal=False),
    Form(3, 48, window=601, ahead=600, causal=False, slopes=True),
]


@pytest.mark.parametrize("form", OTHERS, ids=str)
def test_decode_of_other_forms(rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form) -> None:
    run_rows(rig, kv_pages, kv, form)
    run_rows(rig, kv_pages, kv, form, (700,))


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(("group", "dim"), [(1, 96), (3, 64), (7, 64), (6, 128), (16, 32)])
def test_decode_does_not_depend_on_others(
    rig: ModuleType, kv_pages: ModuleType, kv: str, group: int, dim: int, window: int
) -> None:
    """A token's bits are the same alone and among others, longer and shorter ones, in any order."""
    lengths = [1, 40, 512, 513, 700, 1100, 1600, 33]
    form = Form(group, dim, window=window, sinks=group == 3, kv_heads=2)
    case = Case(rig, kv_pages, kv, form, lengths)
    cases = [case.sequence(n, 1) for n in lengths]

    def run(chosen: list[int]) -> NDArray:
        tokens = len(chosen)
        q = np.concatenate([cases[i][1].reshape(1, -1) for i in chosen])
        partial = case.partial(tokens, max(lengths[i] for i in chosen))
        positions = np.array([lengths[i] - 1 for i in chosen], np.int64)
        case.r.set_step(
            num_tokens=tokens,
            positions=positions,
            ends=positions,
            tables=np.array([cases[i][0].ctypes.data for i in chosen], np.int64),
        )
        case.rows(q, partial)
        out = case.r.buffers(tokens, case.heads * dim, FLOAT, lanes=False)
        case.combine("rows", "num_tokens", tokens, partial, **out.fields())
        return case.r.read(out.plain, (tokens, case.heads * dim))

    alone = np.concatenate([run([i]) for i in range(len(lengths))])
    for order in (range(8), range(7, -1, -1), [6, 0, 3], [1, 5], [2, 2, 2, 4, 4]):
        np.testing.assert_array_equal(run(list(order)), alone[list(order)])


Runs = tuple[tuple[int, int], ...]
KINDS = ("lanes", "words")


def run_lanes(
    rig: ModuleType,
    kv_pages: ModuleType,
    kv: str,
    form: Form,
    runs: Runs,
    packed: Runs = (),
    kinds: tuple[str, ...] = ("words",),
) -> None:
    """Prefill attention: in words where they are taken (f32 pages are for others), in float32."""
    for kind in kinds if kv != "f32" else ("lanes",):
        run_prefill(rig, kv_pages, kv, form, runs, packed, kind)


def run_prefill(
    rig: ModuleType,
    kv_pages: ModuleType,
    kv: str,
    form: Form,
    runs: Runs,
    packed: Runs,
    kind: str,
) -> None:
    """Attention of (start, tokens) chunks of sequences of their own, some packed.

    Without causality, a sequence ends with its chunk, whose tokens see all of it.
    """
    n, every = rig.LANES, [*packed, *runs]
    case = Case(rig, kv_pages, kv, form, [s + t for s, t in every])
    cases = [case.sequence(s + t, t) for s, t in every]
    layout = rig.Layout()
    for i, (start, tokens) in enumerate(every):
        end = None if form.causal else start + tokens - 1
        add = layout.pack if i < len(packed) else layout.chunk
        add(start, tokens, cases[i][0], end)
    layout.into(case.r)
    q_columns, columns = case.heads * form.dim, case.heads * case.value_dim
    q = layout.place([c[1].reshape(len(c[1]), -1).astype(np.float32) for c in cases])
    x = np.pad(q, ((0, 0), (0, 64)), constant_values=np.nan)  # k and v lie behind
    out = rig.Fenced((layout.num_blocks, columns, n), fill=np.nan)
    case.r.run(
        f"attention_{kind}:attention_{kind}_{kv}",
        ATTENTION,
        q=case.r.last(rig.to_lanes(x)),
        stride=q_columns + 64,
        out=out.at,
        out_stride=columns,
        **case.extra("sinks"),
        **case.fields(),
    )
    blocks = -(-layout.num_packed // n)
    assert np.isnan(out.array[:blocks]).all()
    partial = case.partial(max(layout.num_packed, 1), max(s + t for s, t in packed or [(0, 1)]))
    case.rows(q[: layout.num_packed], partial, "num_packed")
    target = {"out": out.at, "out_stride": columns}
    case.combine("lanes", "num_packed", max(layout.num_packed, 1), partial, **target)
    partial.check()
    out.check()
    got = rig.from_lanes(out.array)
    chunks = [False] * len(packed) + [kind == "words"] * len(runs)
    for (start, _), (_, queries, k, v), places, words in zip(
        every, cases, layout.places, chunks, strict=True
    ):
        case.check(got[places], start, queries, k, v, words)


PACKED = ((0, 1), (30, 5), (511, 1), (512, 3), (0, 2), (1099, 1), (63, 1), (64, 1), (600, 9))


@pytest.mark.parametrize(
    ("group", "dim"), [(1, 64), (3, 64), (7, 64), (6, 128), (4, 256), (16, 32)]
)
def test_packed(rig: ModuleType, kv_pages: ModuleType, kv: str, group: int, dim: int) -> None:
    """Tokens of many sequences, some several, with chunks behind them and without."""
    form = Form(group, dim)
    run_lanes(rig, kv_pages, kv, form, ((13, 40), (0, 16)), PACKED, KINDS)
    run_lanes(rig, kv_pages, kv, form, (), PACKED[3:6])
    run_lanes(rig, kv_pages, kv, form, ((40, 3),), ((100, rig.LANES),))


@pytest.mark.parametrize("cap", [0.0, 20.0])
@pytest.mark.parametrize("window", [1, 40, 513])
def test_packed_in_a_window(
    rig: ModuleType, kv_pages: ModuleType, kv: str, window: int, cap: float
) -> None:
    run_lanes(rig, kv_pages, kv, Form(2, 96, window=window, cap=cap), ((13, 40),), PACKED)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_prefill(rig: ModuleType, kv_pages: ModuleType, kv: str, group: int, dim: int) -> None:
    """Chunks from the start, from the middle of a page, a block or both; one token; long ones."""
    runs = ((0, 1), (0, 16), (0, 45), (13, 9), (16, 33), (32, 32), (1075, 25))
    run_lanes(rig, kv_pages, kv, Form(group, dim), runs)


@pytest.mark.parametrize("length", LENGTHS)
def test_prefill_lengths(rig: ModuleType, kv_pages: ModuleType, kv: str, length: int) -> None:
    runs = ((0, length),) if length < 600 else ((length - 77, 77),)
    run_lanes(rig, kv_pages, kv, Form(3, 64), runs, (), KINDS)


@pytest.mark.parametrize("window", [1, 7, 16, 32, 100, 600])
@pytest.mark.parametrize(("group", "dim"), [(4, 64), (1, 256)])
def test_prefill_in_a_window(
    rig: ModuleType, kv_pages: ModuleType, kv: str, group: int, dim: int, window: int
) -> None:
    runs = ((0, 9), (0, 75), (window, 40), (window - 1, 17), (5 * 32 + 3, 50), (700, 30))
    run_lanes(rig, kv_pages, kv, Form(group, dim, window=window), runs)


@pytest.mark.parametrize("cap", [1.5, 50.0])
@pytest.mark.parametrize("window", [0, 40])
def test_prefill_with_soft_cap(
    rig: ModuleType, kv_pages: ModuleType, kv: str, window: int, cap: float
) -> None:
    form = Form(2, 96, window=window, cap=cap)
    run_lanes(rig, kv_pages, kv, form, ((0, 70), (33, 20)), (), KINDS)


@pytest.mark.parametrize("form", OTHERS, ids=str)
def test_prefill_of_other_forms(rig: ModuleType, kv_pages: ModuleType, kv: str, form: Form) -> None:
    """Chunks that continue a sequence, and whole ones, which alone encoders have."""
    runs = ((0, 1), (0, 45), (0, 32), (0, 150))
    if form.causal:
        runs = (*runs, (13, 40), (600, 25))
    packed = ((0, 1), (0, 4), (0, 3)) if not form.causal else PACKED
    run_lanes(rig, kv_pages, kv, form, runs, packed, KINDS)
    run_lanes(rig, kv_pages, kv, form, ((0, 700),), (), KINDS)


def test_many_heads_of_one_kv_head(rig: ModuleType, kv_pages: ModuleType, kv: str) -> None:
    """More than share a page's widened keys in prefill, and an odd number of them."""
    run_lanes(rig, kv_pages, kv, Form(128, 32, kv_heads=1), ((0, 40),), ((33, 2),))
    run_lanes(rig, kv_pages, kv, Form(20, 32, kv_heads=2), ((0, 40), (13, 17)))


@pytest.mark.parametrize(
    ("queries", "keys", "values"),
    [
        (0.0, 1.0, 1.0),
        (1.0, 0.0, 1.0),
        (1.0, 1.0, 0.0),
        (1e4, 3e3, 1e4),
        (1e18, 1e4, 1.0),
        (1e-30, 1.0, 1.0),
        (1.0, 1e-5, 1e-6),
    ],
)
def test_prefill_at_the_limits(
    rig: ModuleType,
    kv_pages: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    queries: float,
    keys: float,
    values: float,
) -> None:
    """Words are rounded next to the longest: zeros, huge and tiny numbers neither overflow nor are
    divided by nothing.
    """

    def sequence(self: Case, length: int, tokens: int) -> tuple[NDArray[np.int32], Any, Any, Any]:
        # Keys that are all alike, and along the queries: the largest products that there can be.
        k = np.full((length, self.kv_heads, self.form.dim), keys) * self.rng.choice([1, 1, -1])
        v = self.rng.standard_normal((length, self.kv_heads, self.value_dim)) * values
        table = self.cache.table(length)
        self.cache.store(table, k, v)
        q = np.full((tokens, self.heads, self.form.dim), queries, np.float32)
        return table, q.astype(np.float64), *self.cache.load(table, length)

    def check(self: Case, got: NDArray, start: int, q: NDArray, *others: Any) -> None:
        right(self, got, start, 0 * q, *others)  # keys that are alike have the same weight anyway

    right = Case.check
    monkeypatch.setattr(Case, "check", check)
    monkeypatch.setattr(Case, "sequence", sequence)
    for form in (Form(3, 64), Form(2, 64, window=33), Form(1, 64, cap=20.0, slopes=True)):
        run_lanes(rig, kv_pages, "f16", form, ((0, 70), (100, 33)))
