"""Kernels of experts against float64: who is chosen, each one's matrix, and the weighted sums."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.architecture import Experts, Gating
from llamba.runtime.kernels.records import (
    ACTIVATE,
    ACTIVATION_ORDER,
    EXPERTS,
    FLOAT,
    MERGE,
    REGROUP,
    ROUTE,
)
from llamba.runtime.kernels.reference_experts import route

pytestmark = pytest.mark.kernels


@dataclass(frozen=True)
class Sorted:
    """Pairs by expert, as records name them: in `size` slots a block."""

    slots: NDArray[np.int64]
    active: NDArray[np.int64]  # (experts chosen, 3): number, first block, blocks

    @property
    def cells(self) -> NDArray[np.int64]:
        return np.array([len(self.active), len(self.slots)])


def sort_pairs(chosen: NDArray[np.int64], here: NDArray[np.bool_], size: int) -> Sorted:
    """A model of the sort. chosen (tokens, used); here: False for the tokens of empty lanes."""
    used = chosen.shape[1]
    pairs = [p for p in range(chosen.size) if here[p // used]]
    slots: list[int] = []
    active = []
    for expert in sorted({int(chosen.flat[p]) for p in pairs}):
        own = [p for p in pairs if chosen.flat[p] == expert]
        own += own[-1:] * (-len(own) % size)
        active.append((expert, len(slots) // size, len(own) // size))
        slots += own
    return Sorted(np.array(slots, np.int64), np.array(active, np.int64))


def places(rig: ModuleType, tokens: int, lanes: bool) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """(which slots of the step hold a token, tokens of each block): one block is partly empty."""
    if not lanes:
        return np.ones(tokens, bool), np.array([1] * tokens)
    blocks = -(-tokens // rig.LANES) + 1
    valid = np.full(blocks, rig.LANES)
    valid[0] = 3
    valid[-1] = tokens - 3 - rig.LANES * (blocks - 2)
    if valid[-1] <= 0:
        valid, blocks = np.array([3, tokens - 3]), 2
    here = np.zeros(blocks * rig.LANES, bool)
    for block, count in enumerate(valid):
        here[block * rig.LANES : block * rig.LANES + count] = True
    return here, valid.astype(np.int64)


def run_route(
    rig: ModuleType,
    scores: NDArray[np.float32],
    experts: Experts,
    *,
    lanes: bool = False,
    bias: NDArray[np.float32] | None = None,
    scales: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Run the kernel, check the sorted pairs, and return (experts, weights) of the tokens."""
    tokens, count = scores.shape
    here, valid = places(rig, tokens, lanes)
    every = np.full((len(here), count), np.nan, np.float32)
    every[here] = scores
    r, used = rig.Rig(), experts.used
    chosen, weights = rig.Fenced((len(here), used), np.int64), rig.Fenced((len(here), used))
    slots = rig.Fenced((len(here) * used + count * rig.LANES,), np.int64)
    active, cells = rig.Fenced((count, 3), np.int64), rig.Fenced((2,), np.int64)
    r.set_step(num_tokens=len(here), valid=valid)
    r.run(
        "route:route",
        ROUTE,
        logits=r.last(rig.to_lanes(every) if lanes else every),
        stride=count if lanes else 4 * count,
        num_experts=count,
        used=used,
        gating=experts.gating.value,
        normalize=int(experts.normalize),
        groups=experts.groups,
        groups_used=experts.groups_used,
        scale=float(experts.scale),
        select_bias=0 if bias is None else r.last(bias),
        expert_scale=0 if scales is None else r.last(scales),
        lanes=int(lanes),
        out_experts=chosen.at,
        out_weights=weights.at,
        slots=slots.at,
        active=active.at,
        cells=cells.at,
    )
    for fenced in (chosen, weights, slots, active, cells):
        fenced.check()
    model = sort_pairs(chosen.array, here, rig.LANES if lanes else 1)
    np.testing.assert_array_equal(cells.array, model.cells)
    np.testing.assert_array_equal(active.array[: len(model.active)], model.active)
    np.testing.assert_array_equal(slots.array[: len(model.slots)], model.slots)
    return chosen.array[here], weights.array[here]


KINDS: dict[str, Experts] = {
    "softmax": Experts(count=60, used=4, ffn_dim=32),
    "softmax normalized": Experts(count=128, used=8, ffn_dim=32, normalize=True),
    "one of five": Experts(count=5, used=1, ffn_dim=32, normalize=True),
    "all": Experts(count=7, used=7, ffn_dim=32),
    "sigmoid": Experts(count=33, used=3, ffn_dim=32, gating=Gating.SIGMOID, scale=2.5),
    "groups": Experts(
        count=24,
        used=5,
        ffn_dim=32,
        gating=Gating.SIGMOID,
        normalize=True,
        groups=6,
        groups_used=3,
        scale=2.5,
    ),
    "selected": Experts(count=32, used=4, ffn_dim=32, gating=Gating.SELECTED),
}


@pytest.mark.parametrize("lanes", [False, True], ids=["rows", "lanes"])
@pytest.mark.parametrize("kind", KINDS)
def test_route(rig: ModuleType, kind: str, lanes: bool) -> None:
    experts, rng = KINDS[kind], np.random.default_rng(3)
    for tokens in (4, 21, 37) if lanes else (1, 2, 19, 64):
        scores = (rng.standard_normal((tokens, experts.count)) * 3).astype(np.float32)
        bias = None
        if experts.gating is not Gating.SELECTED and tokens % 2:
            bias = (rng.standard_normal(experts.count) * 0.2).astype(np.float32)
        scales = rng.random(experts.count).astype(np.float32) if tokens > 20 else None
        chosen, weights = run_route(rig, scores, experts, lanes=lanes, bias=bias, scales=scales)
        expected, shares = route(scores.astype(np.float64), experts, bias)
        np.testing.assert_array_equal(chosen, expected)
        if scales is not None:
            shares = shares * scales[expected]
        np.testing.assert_allclose(weights, shares, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_go_to_the_lower_number(rig: ModuleType, kind: str) -> None:
    """All equal; and two values only, so that groups are equal as well."""
    experts = KINDS[kind]
    scores = np.zeros((5, experts.count), np.float32)
    scores[1:3] = 50.0
    scores[3, ::2] = 1.0
    scores[4, -3:] = -1.0
    chosen, weights = run_route(rig, scores, experts)
    expected, shares = route(scores.astype(np.float64), experts)
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_allclose(weights, shares, rtol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_and_broken_logits(rig: ModuleType, kind: str) -> None:
    """Whatever a router gives, the experts are different ones that exist."""
    experts = KINDS[kind]
    scores = np.zeros((6, experts.count), np.float32)
    scores[0], scores[1, ::2], scores[2, 1] = np.nan, np.nan, np.inf
    scores[3], scores[4], scores[5, 0] = -np.inf, -1e30, 1e30
    chosen, weights = run_route(rig, scores, experts)
    assert chosen.min() >= 0 and chosen.max() < experts.count
    assert all(len(set(row)) == experts.used for row in chosen.tolist())
    assert np.isfinite(weights[4:]).all()


def test_a_sum_of_nothing_is_not_divided_by(rig: ModuleType) -> None:
    experts = Experts(count=8, used=2, ffn_dim=32, gating=Gating.SIGMOID, normalize=True)
    scores = np.full((1, 8), -15, np.float32)
    _, weights = run_route(rig, scores, experts)
    _, shares = route(scores.astype(np.float64), experts)
    assert weights.max() < 0.01
    np.testing.assert_allclose(weights, shares, rtol=1e-5)


# Who chooses whom: (tokens, used) of experts out of 6.
CHOICES: dict[str, list[list[int]]] = {
    "one token": [[4]],
    "one token, all experts": [[3, 1, 0, 5, 2, 4]],
    "all choose one": [[2]] * 37,
    "two a token, none the last": [[t % 5, (t + 1 + t % 3) % 5] for t in range(21)],
    "as many as a block has lanes": [[5, t // 8] for t in range(16)],
    "three and five": [[0, 3]] * 3 + [[1, 3]] * 2,
}


class Case:
    """A tensor of experts, tokens and who chose whom, in float64 and as the kernels have it."""

    def __init__(self, rig: ModuleType, tiny: ModuleType, form: str, choice: str) -> None:
        self.fmt, self.rig = rig.FORMATS[form], rig
        self.rows, self.columns, self.number = 37, (512 if "_k" in form else 96), 6
        rng = np.random.default_rng(len(choice))
        shape = self.number * self.rows, self.columns
        raw = tiny.weight(rng, *shape, self.fmt.name)
        self.raw = np.ascontiguousarray(raw).view(np.uint8).reshape(shape[0], -1)
        self.w = self.fmt.dequantize(self.raw, shape).astype(np.float64)
        self.w = self.w.reshape(self.number, self.rows, self.columns)
        self.chosen = np.array(CHOICES[choice], np.int64)
        self.bias = rng.standard_normal((self.number, self.rows)).astype(np.float32)

    def expected(self, x: NDArray[np.float32], of_token: bool) -> NDArray[np.float64]:
        """(pairs, rows): each pair's expert times its row, or its token's row."""
        used = self.chosen.shape[1]
        return np.array(
            [
                self.w[e] @ x[p // used if of_token else p].astype(np.float64) + self.bias[e]
                for p, e in enumerate(self.chosen.reshape(-1))
            ]
        )

    def fields(self, r: Any, order: Sorted, of_token: bool) -> dict[str, int]:
        return {
            "weight": r.last(self.raw),
            "row_bytes": self.fmt.row_bytes(self.columns),
            "expert_bytes": self.rows * self.fmt.row_bytes(self.columns),
            "num_rows": self.rows,
            "columns": self.columns,
            "chunk": 16,
            "bias": r.last(self.bias),
            "divide": self.chosen.shape[1] if of_token else 1,
            "slots": r.last(order.slots),
            "active": r.last(order.active),
            "cells": r.last(order.cells),
        }


def rounded(rig: ModuleType, r: Any, x: NDArray[np.float32], orders: int, *, lanes: bool) -> Any:
    """Activations of `x` as an op gives them."""
    tokens, columns = x.shape
    a = r.buffers(tokens, columns, orders, lanes=lanes)
    r.set_step(num_tokens=tokens)
    r.run(
        f"activation:activate_{'lanes' if lanes else 'rows'}",
        ACTIVATE,
        gate=r.keep(rig.to_lanes(rig.padded(x)) if lanes else x),
        stride=columns if lanes else 4 * columns,
        columns=columns,
        **a.fields(),
    )
    return a


def close(got: NDArray[np.float32], expected: NDArray[np.float64], exact: bool) -> None:
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert error < (2e-6 if exact else 0.02), error


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(("form", "exact"), [("f32", True), ("q4_k", False), ("q5_0", True)])
@pytest.mark.parametrize("of_token", [True, False], ids=["tokens", "pairs"])
def test_experts_in_rows(
    rig: ModuleType, tiny: ModuleType, form: str, exact: bool, choice: str, of_token: bool
) -> None:
    case, r = Case(rig, tiny, form, choice), rig.Rig()
    order = sort_pairs(case.chosen, np.ones(len(case.chosen), bool), 1)
    shape = (len(case.chosen) if of_token else case.chosen.size, case.columns)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    orders = FLOAT if exact else ACTIVATION_ORDER[form]
    a = rounded(rig, r, x, orders, lanes=False)
    out = rig.Fenced((case.chosen.size, case.rows + 3), fill=np.nan)
    r.run(
        f"experts:experts_{'float_' * exact}rows_{form}",
        EXPERTS,
        out=out.at,
        out_stride=4 * (case.rows + 3),
        **case.fields(r, order, of_token),
        **a.input_of(orders),
    )
    out.check()
    assert np.isnan(out.array[:, case.rows :]).all()
    close(out.array[:, : case.rows], case.expected(x, of_token), exact)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("form", "exact"), [("f32", True), ("q4_k", False), ("q5_0", False), ("q8_0", False)]
)
def test_experts_in_lanes(
    rig: ModuleType, tiny: ModuleType, form: str, exact: bool, choice: str
) -> None:
    """Tokens gathered by expert, multiplied, and what comes out as blocks and as rows of pairs."""
    case, r, n = Case(rig, tiny, form, choice), rig.Rig(), rig.LANES
    used = case.chosen.shape[1]
    order = sort_pairs(case.chosen, np.ones(len(case.chosen), bool), n)
    x = np.random.default_rng(1).standard_normal((len(case.chosen), case.columns))
    orders = FLOAT if exact else ACTIVATION_ORDER[form]
    a = rounded(rig, r, x.astype(np.float32), orders, lanes=True)
    into = r.buffers(len(order.slots), case.columns, orders, lanes=True)
    names = [name for name in ("natural", "scale", "sums", "plain") if getattr(a, name)]
    r.set_step(num_tokens=len(order.slots))
    r.run(
        "experts_lanes:regroup",
        REGROUP,
        columns=case.columns,
        divide=used,
        slots=r.last(order.slots),
        **{name: getattr(a, name) for name in names},
        **{f"to_{name}": getattr(into, name) for name in names},
    )
    kernel = f"experts_lanes:experts_{'float_' * exact}lanes_{form}"
    fields = case.fields(r, order, True) | into.input_of(orders)
    expected = case.expected(x.astype(np.float32), True)
    blocks = rig.Fenced((len(order.slots) // n, case.rows + 3, n), fill=np.nan)
    r.run(kernel, EXPERTS, out=blocks.at, out_stride=case.rows + 3, **fields)
    blocks.check()
    assert np.isnan(blocks.array[:, case.rows :]).all()
    numbers, first = np.unique(order.slots, return_index=True)  # what is repeated, nobody reads
    got = rig.from_lanes(blocks.array[:, : case.rows])[first]
    close(got, expected[numbers], exact)
    pairs = rig.Fenced((case.chosen.size, case.rows + 3), fill=np.nan)
    r.run(kernel, EXPERTS, out=pairs.at, out_stride=4 * (case.rows + 3), by_pair=1, **fields)
    pairs.check()
    assert np.isnan(pairs.array[:, case.rows :]).all()
    np.testing.assert_array_equal(pairs.array[numbers, : case.rows], got)


@pytest.mark.parametrize("columns", [32, 288, 1056])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("lanes", [False, True], ids=["rows", "lanes"])
def test_merge(rig: ModuleType, lanes: bool, residual: bool, columns: int) -> None:
    """In order of rank; an empty lane has what the last token of its block has."""
    rng, used, r = np.random.default_rng(columns), 3, rig.Rig()
    here, valid = places(rig, 21, lanes)
    tokens = len(here)
    y = np.full((tokens, used, columns), np.nan, np.float32)
    y[here] = rng.standard_normal((here.sum(), used, columns))
    weights = rng.random((tokens, used)).astype(np.float32)
    before = rng.standard_normal((tokens, columns)).astype(np.float32)
    place = rig.to_lanes if lanes else np.ascontiguousarray
    out = rig.Fenced(place(before).shape)
    out.array[:] = place(before)
    r.set_step(num_tokens=tokens, valid=valid)
    r.run(
        f"experts:merge_{'lanes' if lanes else 'rows'}",
        MERGE,
        y=r.last(y),
        used=used,
        weights=r.last(weights),
        columns=columns,
        out=out.at,
        residual=int(residual),
        factor=0.75,
    )
    out.check()
    got = rig.from_lanes(out.array) if lanes else out.array
    last = np.maximum.accumulate(np.where(here, np.arange(tokens), 0))
    expected = 0.75 * np.einsum("tr,trc->tc", weights[last], y[last].astype(np.float64))
    np.testing.assert_allclose(got, expected + before * residual, rtol=1e-5, atol=2e-6)
