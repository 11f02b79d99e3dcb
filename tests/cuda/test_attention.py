"""Attention on the device against float64: pages in any order, garbage where nobody may look."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.runtime.cuda.plan import MAX_PIECES
from llamba.runtime.kernels.cuda.launch import Fields, Launch, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.attention import (
    choose_splits,
    split_bytes,
)
from llamba.runtime.kernels.cuda.launches.attention_combine import attention_to_activations
from llamba.runtime.kernels.reference_attention import attention
from llamba.runtime.lowering_attention import alibi_slopes

PAGE, TILE = 32, 64
TYPES = {"f16": np.float16, "f32": np.float32}


def room(columns: int) -> int:
    """A head's columns in a page."""
    return -(-columns // 32) * 32


def stored(x: NDArray, kv_type: str, paired: bool) -> tuple[NDArray, NDArray, NDArray]:
    """Rows as caches hold them: (values, scales) as bytes, and what they mean."""
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, room(x.shape[-1]) - x.shape[-1])])
    if kv_type != "q8_0":
        x = x.astype(TYPES[kv_type])
        return x.view(np.uint8), np.zeros((*x.shape[:-1], 0), np.uint8), x.astype(np.float64)
    columns = np.arange(x.shape[-1])
    groups = columns % (len(columns) // 2) // 16 if paired else columns // 32
    d = np.stack([np.abs(x[..., groups == g]).max(-1) for g in range(groups.max() + 1)], -1) / 127
    q = np.rint(x / d[..., groups]).astype(np.int8)
    d = d.astype(np.float16)
    meant = (q * d[..., groups].astype(np.float64)).astype(np.float16)
    return q.view(np.uint8), d.view(np.uint8), meant.astype(np.float64)


@dataclass
class Step:
    """Some tokens of some sequences: (position of the first, how many), those of one first.

    singles: how many of the sequences are single tokens; the others' are in tiles.
    """

    segments: list[tuple[int, int]]
    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 64
    value_dim: int = 64
    kv_type: str = "f16"
    singles: int = -1
    splits: int = 1
    window: int = 0
    symmetric: bool = False
    causal: bool = True
    softcap: float = 0.0
    alibi: float = 0.0
    sinks: bool = False
    seed: int = 0
    arrays: list[tuple[Any, Any, Any]] = field(default_factory=list)  # q, k, v of each sequence

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        if self.singles < 0:
            self.singles = sum(n == 1 for _, n in self.segments)
        for start, n in self.segments:
            q = rng.standard_normal((n, self.heads, self.key_dim), np.float32)
            q *= 3 / np.sqrt(self.key_dim)
            k, v = (
                rng.standard_normal((start + n, self.kv_heads, dim), np.float32)
                for dim in (self.key_dim, self.value_dim)
            )
            self.arrays.append((q, k, v))
        self.sink_scores = rng.standard_normal(self.heads, np.float32) * 3

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n in self.segments)

    def expected(self) -> NDArray[np.float64]:
        """(tokens, heads * value_dim)."""
        each = []
        for q, k, v in self.arrays:
            k, v = (
                stored(x, self.kv_type, paired)[2][..., : x.shape[-1]]
                for x, paired in ((k, True), (v, False))
            )
            y = attention(
                q.astype(np.float64),
                k,
                v,
                scale=1.0,
                window=self.window,
                softcap=self.softcap,
                causal=self.causal,
                symmetric=self.symmetric,
                alibi_bias=self.alibi,
                sinks=self.sink_scores.astype(np.float64) if self.sinks else None,
            )
            each.append(y.reshape(len(q), -1))
        return np.concatenate(each)


def put(device: Any, array: NDArray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, np.ascontiguousarray(array))
    return at


def put_pages(device: Any, step: Step) -> tuple[dict[str, Any], list[int]]:
    """Keys and values in pages in any order: fields of records, each sequence's table."""
    rng = np.random.default_rng(step.seed + 1)
    unit = {"f16": 64, "f32": 128, "q8_0": 34}[step.kv_type]
    key_bytes, value_bytes = room(step.key_dim) * unit, room(step.value_dim) * unit
    counts = [-(-(start + n) // PAGE) for start, n in step.segments]
    # Where nothing was written: NaN in all types.
    pages = np.full((sum(counts) + 3, step.kv_heads, key_bytes + value_bytes), 255, np.uint8)
    order = rng.permutation(len(pages))
    tables, at = [], 0
    for count, (_, k, v) in zip(counts, step.arrays, strict=True):
        ids = order[at : at + count]
        at += count
        tables.append(put(device, ids.astype(np.int32)))
        for x, first, paired in ((k, 0, True), (v, key_bytes, False)):
            values, scales, _ = stored(x, step.kv_type, paired)
            for start, rows in ((first, values), (first + PAGE * values.shape[-1], scales)):
                each = rows.shape[-1]
                for p, row in enumerate(rows):
                    place = start + p % PAGE * each
                    pages[ids[p // PAGE], :, place : place + each] = row
    fields = {
        "kv": put(device, pages), "page_bytes": pages[0].nbytes,
        "head_bytes": key_bytes + value_bytes, "kv_type": step.kv_type,
    }  # fmt: skip
    return fields, tables


def outputs(device: Any, step: Step, mode: Mode = Mode.INT8) -> list[NDArray]:
    """Attention and combine of a step; its activations: float32, and what else the mode has."""
    pages, tables = put_pages(device, step)
    tokens, tiles, at = step.num_tokens, [], 0
    positions, ends, token_tables = [], [], []
    for i, (start, n) in enumerate(step.segments):
        positions += range(start, start + n)
        ends += range(start, start + n) if step.causal else [start + n - 1] * n
        token_tables += [tables[i]] * n
        if i >= step.singles:
            tiles += [(at + j, min(TILE, n - j), start + j, 0) for j in range(0, n, TILE)]
        at += n
    tiles += [(0, 0, 0, 0)] if tiles else []  # one that only fills up
    q = np.concatenate([q.reshape(len(q), -1) for q, _, _ in step.arrays])
    stride = q.shape[1] + 32
    wide = np.zeros((tokens, stride), np.float32)
    wide[:, : q.shape[1]] = q
    addresses = StepAddresses(
        token_ids=0,
        positions=put(device, np.array(positions, np.int32)),
        ends=put(device, np.array(ends, np.int32)),
        tables=put(device, np.array(token_tables, np.int64)),
        out_rows=0,
        tiles=put(device, np.array(tiles or [(0, 0, 0, 0)], np.int32)),
    )
    shape = StepShape(tokens, mode, step.singles, step.splits, len(tiles), addresses)
    columns = step.heads * step.value_dim
    size = max(step.splits * split_bytes(step.heads, step.value_dim, step.singles), 1)
    partial = put(device, np.full(size // 4 + 1, np.nan, np.float32))
    shared = {
        "window": step.window // 2 + 1 if step.symmetric else step.window,
        "ahead": step.window // 2 if step.symmetric else 0,
        "sinks": put(device, step.sink_scores) if step.sinks else 0,
        "attended": put(device, np.full((tokens, columns), np.nan, np.float32)),
    }
    slopes = alibi_slopes(step.heads, step.alibi)
    attend = {
        **shared, **pages, "q": put(device, wide), "stride": 4 * stride, "out": partial,
        "num_kv_heads": step.kv_heads, "group": step.heads // step.kv_heads,
        "key_dim": step.key_dim, "value_dim": step.value_dim, "softcap": step.softcap,
        "slopes": put(device, slopes) if step.alibi else 0,
    }  # fmt: skip
    plain, half = (device.allocate(tokens * columns * size) for size in (4, 2))
    q_at, scales = device.allocate(tokens * columns), device.allocate(tokens * columns // 4)
    merge = {
        **shared, "partial": partial, "num_heads": step.heads, "head_dim": step.value_dim,
        "act_plain": plain, "act_columns": columns,
        "act_half": half, "act_q": q_at, "act_scales": scales,
    }  # fmt: skip
    work: list[Launch] = attention_to_activations(Fields(attend), Fields(merge), shape)
    device.load(sorted({launch.kernel for launch in work}))
    device.run(work)
    found = [device.read(plain, tokens * columns * 4).view(np.float32).reshape(tokens, columns)]
    if mode is Mode.HALF:
        halves = device.read(half, tokens * columns * 2).view(np.float16)
        return [*found, halves.reshape(tokens, columns)]
    blocks = columns // 32
    q = device.read(q_at, tokens * columns).view(np.int8)
    d = device.read(scales, tokens * columns // 4).view(np.float32)
    if mode is Mode.TILES:
        q = q.reshape(-1, blocks, 8, 32).swapaxes(1, 2)
        d = d.reshape(-1, blocks, 8, 2).swapaxes(1, 2)
    q, d = q.reshape(tokens, blocks, 32), d.reshape(tokens, blocks, 2)
    return [*found, (q * d[..., :1]).reshape(tokens, columns)]


def check(device: Any, step: Step) -> None:
    """Single tokens lose nothing but float32's last bits, tiles what float16 loses."""
    found, expected = outputs(device, step)[0], step.expected()
    alone = 0 if step.kv_type == "f32" and step.singles == 0 else step.singles
    np.testing.assert_allclose(found[:alone], expected[:alone], rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(found[alone:], expected[alone:], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("splits", [1, 2, 4, 64])
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
def test_lengths(device: Any, kv_type: str, splits: int) -> None:
    starts = [0, 1, 14, 15, 16, 31, 32, 63, 100, 300]
    check(device, Step([(n, 1) for n in starts], splits=splits, kv_type=kv_type))


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 9, 16])
def test_groups(device: Any, group: int) -> None:
    check(device, Step([(70, 1), (9, 1), (5, 3)], heads=2 * group, splits=2))
    check(device, Step([(70, 1)], heads=2 * group, value_dim=32))


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize(
    "key_dim, value_dim",
    [(16, 16), (64, 80), (96, 96), (128, 128), (160, 160), (192, 128), (256, 256), (576, 512)],
)
def test_head_dims(device: Any, key_dim: int, value_dim: int, kv_type: str) -> None:
    step = Step(
        [(37, 1), (30, 1), (17, 18)],
        heads=4,
        kv_heads=1,
        key_dim=key_dim,
        value_dim=value_dim,
        kv_type=kv_type,
        splits=2,
    )
    check(device, step)


FEATURES: dict[str, dict[str, Any]] = {
    "window": {"window": 20},
    "wide window": {"window": 64},
    "softcap": {"softcap": 1.5},
    "slopes": {"alibi": 8.0},
    "sinks": {"sinks": True},
    "all": {"window": 33, "softcap": 2.0, "alibi": 8.0, "sinks": True},
}


@pytest.mark.parametrize("splits, kv_type", [(1, "f16"), (4, "f16"), (2, "f32")])
@pytest.mark.parametrize("feature", FEATURES)
def test_features(device: Any, feature: str, splits: int, kv_type: str) -> None:
    segments = [(3, 1), (130, 1), (0, 7), (45, 17 if kv_type == "f32" else 70)]
    step = Step(segments, splits=splits, kv_type=kv_type, **FEATURES[feature])
    check(device, step)


@pytest.mark.parametrize("window", [0, 10, 40])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_not_causal(device: Any, kv_type: str, window: int) -> None:
    step = Step(
        [(0, 75), (0, 1), (0, 33)], causal=False, symmetric=window > 0, window=window, singles=0,
        kv_type=kv_type, heads=2,
    )  # fmt: skip
    check(device, step)


def test_many_chunks(device: Any) -> None:
    """Chunks of every length, at odd positions, and single tokens among them."""
    segments = [(n, 1) for n in (5, 40)] + [(start, n) for start, n in ((0, 64), (3, 65), (31, 1))]
    check(device, Step([*segments, (97, 16), (64, 17)], singles=2, splits=2))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("splits", [1, 2])
def test_modes(device: Any, splits: int, mode: Mode) -> None:
    """What matmuls read, in each mode, with a launch that merges and without one."""
    step = Step([(n, 1) for n in (90, 3, 20, 33, 64, 10, 0, 5)], splits=splits, value_dim=96)
    for found in outputs(device, step, mode):
        np.testing.assert_allclose(found, step.expected(), rtol=1e-2, atol=1e-2)


def test_choose_splits() -> None:
    """More pieces for longer texts and fewer tokens; never more than there is memory for."""
    assert [choose_splits(1, n, 32, 8) for n in (1, 256, 257, 1024, 4096, 1 << 17)] == [
        1, 1, 4, 16, 32, 32
    ]  # fmt: skip
    assert choose_splits(128, 4096, 32, 8) == 1
    for heads, kv_heads in ((32, 8), (14, 2), (128, 1), (12, 12), (9, 3)):
        for tokens in (1, 2, 3, 8, 16, 128):
            splits = choose_splits(tokens, 1 << 20, heads, kv_heads)
            assert splits & (splits - 1) == 0
            assert splits == 1 or splits * tokens <= MAX_PIECES
