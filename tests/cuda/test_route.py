"""ROUTE on the device against the reference: who is chosen, by which weight, and sorted pairs."""

from typing import Any

import numpy as np
import pytest

from llamba.models.architecture import Experts, Gating
from llamba.runtime.kernels.cuda.launch import Fields, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.route import are_sorted
from llamba.runtime.kernels.cuda.launches.route import route as launches_of
from llamba.runtime.kernels.reference_experts import route

KINDS: dict[str, Experts] = {
    "softmax": Experts(count=60, used=4, ffn_dim=32),
    "softmax normalized": Experts(count=128, used=8, ffn_dim=32, normalize=True),
    "one of five": Experts(count=5, used=1, ffn_dim=32, normalize=True),
    "all": Experts(count=7, used=7, ffn_dim=32),
    "sigmoid": Experts(count=33, used=3, ffn_dim=32, gating=Gating.SIGMOID, scale=2.5),
    "groups": Experts(
        count=24, used=5, ffn_dim=32, gating=Gating.SIGMOID, normalize=True, groups=6,
        groups_used=3, scale=2.5,
    ),
    "many": Experts(
        count=512, used=10, ffn_dim=32, gating=Gating.SIGMOID, normalize=True, groups=8,
        groups_used=4,
    ),
    "many groups": Experts(count=160, used=6, ffn_dim=32, groups=80, groups_used=40),
    "selected": Experts(count=32, used=4, ffn_dim=32, gating=Gating.SELECTED),
}  # fmt: skip


def put(device: Any, array: np.ndarray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, array)
    return at


def run(
    device: Any,
    scores: np.ndarray,
    experts: Experts,
    bias: np.ndarray | None = None,
    scales: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Run it, check the slots, and return (experts, weights) of the tokens."""
    tokens, count = scores.shape
    wide = np.full((tokens, count + 3), 1e9, np.float32)
    wide[:, :count] = scores
    pairs = tokens * experts.used
    chosen, weights, slots = (device.allocate(n * pairs) for n in (8, 4, 8))
    fields = {
        "logits": put(device, wide), "stride": 4 * (count + 3), "num_experts": count,
        "used": experts.used, "gating": experts.gating.value, "normalize": int(experts.normalize),
        "groups": experts.groups, "groups_used": experts.groups_used,
        "scale": float(experts.scale), "select_bias": 0 if bias is None else put(device, bias),
        "expert_scale": 0 if scales is None else put(device, scales), "out_experts": chosen,
        "out_weights": weights, "slots": slots,
    }  # fmt: skip
    shape = StepShape(tokens, Mode.INT8, tokens, 1, 0, StepAddresses(0, 0, 0, 0, 0, 0))
    launches = launches_of(Fields(fields), shape)
    device.load([launch.kernel for launch in launches])
    device.run(launches)
    numbers = device.read(chosen, 8 * pairs).view(np.int64)
    placed = device.read(slots, 8 * pairs).view(np.int64)
    np.testing.assert_array_equal(placed >> 32, numbers[placed & 0xFFFFFFFF])
    assert sorted(placed & 0xFFFFFFFF) == list(range(pairs))
    if are_sorted(tokens, experts.used, count):
        assert (np.diff(placed >> 32) >= 0).all()
    got = device.read(weights, 4 * pairs).view(np.float32)
    return numbers.reshape(tokens, -1), got.reshape(tokens, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_route(device: Any, kind: str) -> None:
    experts, rng = KINDS[kind], np.random.default_rng(3)
    for tokens in (1, 2, 19, 64):
        scores = (rng.standard_normal((tokens, experts.count)) * 3).astype(np.float32)
        bias = None
        if experts.gating is not Gating.SELECTED and tokens % 2:
            bias = (rng.standard_normal(experts.count) * 0.2).astype(np.float32)
        scales = rng.random(experts.count).astype(np.float32) if tokens > 20 else None
        chosen, weights = run(device, scores, experts, bias, scales)
        expected, shares = route(scores.astype(np.float64), experts, bias)
        np.testing.assert_array_equal(chosen, expected)
        if scales is not None:
            shares = shares * scales[expected]
        np.testing.assert_allclose(weights, shares, rtol=4e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_go_to_the_lower_number(device: Any, kind: str) -> None:
    """All equal, of either zero; and two values only, so that groups are equal as well."""
    experts = KINDS[kind]
    scores = np.zeros((5, experts.count), np.float32)
    scores[0, 1::2] = -0.0
    scores[1:3] = 50.0
    scores[3, ::2] = 1.0
    scores[4, -3:] = -1.0
    chosen, weights = run(device, scores, experts)
    expected, shares = route(scores.astype(np.float64), experts)
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_allclose(weights, shares, rtol=4e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_and_broken_logits(device: Any, kind: str) -> None:
    """Whatever a router gives, the experts are different ones that exist."""
    experts = KINDS[kind]
    scores = np.zeros((6, experts.count), np.float32)
    scores[0], scores[1, ::2], scores[2, 1] = np.nan, np.nan, np.inf
    scores[3], scores[4], scores[5, 0] = -np.inf, -1e30, 1e30
    chosen, weights = run(device, scores, experts)
    assert chosen.min() >= 0 and chosen.max() < experts.count
    assert all(len(set(row)) == experts.used for row in chosen.tolist())
    assert np.isfinite(weights[4:]).all()


def test_a_sum_of_nothing_is_not_divided_by(device: Any) -> None:
    experts = Experts(count=8, used=2, ffn_dim=32, gating=Gating.SIGMOID, normalize=True)
    scores = np.full((1, 8), -15, np.float32)
    _, weights = run(device, scores, experts)
    _, shares = route(scores.astype(np.float64), experts)
    assert weights.max() < 0.01
    np.testing.assert_allclose(weights, shares, rtol=1e-5)
