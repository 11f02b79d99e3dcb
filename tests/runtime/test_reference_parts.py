"""Attention and routing of the reference against loops that say the same in other words."""

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.architecture import Activation, Experts, Gating
from llamba.runtime.kernels.reference_attention import alibi_slopes, attention
from llamba.runtime.kernels.reference_experts import route
from llamba.runtime.kernels.reference_math import activate, gelu, layer_norm

RNG = np.random.default_rng(7)
HEADS, KV_HEADS, KEY, VALUE = 6, 2, 5, 3


def looped(
    q: NDArray, k: NDArray, v: NDArray, sees: NDArray, falls: list[float], sinks: list[float]
) -> NDArray:
    """sees (tokens, positions): the distance if a query sees a key, else nan."""
    out = np.zeros((len(q), HEADS, VALUE))
    for t, head in np.ndindex(len(q), HEADS):
        shared = head // (HEADS // KV_HEADS)
        seen = [p for p in range(len(k)) if not math.isnan(sees[t, p])]
        e = [math.exp(0.4 * q[t, head] @ k[p, shared] - falls[head] * sees[t, p]) for p in seen]
        total = sum(e) + (math.exp(sinks[head]) if sinks else 0.0)
        for p, share in zip(seen, e, strict=True):
            out[t, head] += share / total * v[p, shared]
    return out


@pytest.mark.parametrize("window", [0, 1, 4, 7])
@pytest.mark.parametrize("kind", ["causal", "symmetric", "everything"])
@pytest.mark.parametrize(("alibi", "sinks"), [(0.0, False), (8.0, False), (0.0, True)])
def test_attention(window: int, kind: str, alibi: float, sinks: bool) -> None:
    tokens, positions = (9, 9) if kind != "causal" else (4, 9)
    q = RNG.standard_normal((tokens, HEADS, KEY))
    k, v = (
        RNG.standard_normal((positions, KV_HEADS, KEY)),
        RNG.standard_normal((positions, 2, VALUE)),
    )
    sink = RNG.standard_normal(HEADS) if sinks else None
    sees = np.full((tokens, positions), np.nan)
    for t, p in np.ndindex(tokens, positions):
        back = t + positions - tokens - p  # how far the key lies before the query
        near = {
            "causal": 0 <= back and (not window or back < window),
            "symmetric": not window or abs(back) <= window // 2,
            "everything": not window or back < window,
        }[kind]
        sees[t, p] = abs(back) if near else np.nan
    got = attention(
        q,
        k,
        v,
        scale=0.4,
        window=window,
        causal=kind == "causal",
        symmetric=kind == "symmetric",
        alibi_bias=alibi,
        sinks=sink,
    )
    falls = alibi_slopes(HEADS, alibi).tolist() if alibi else [0.0] * HEADS
    expected = looped(q, k, v, sees, falls, [] if sink is None else sink.tolist())
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-13)


def test_alibi_slopes_are_the_papers() -> None:
    np.testing.assert_allclose(alibi_slopes(8, 8.0), [2.0**-i for i in range(1, 9)])
    # Beyond a power of two: every other one of twice as many heads.
    np.testing.assert_allclose(
        alibi_slopes(6, 8.0), [*(2.0 ** (-2 * i) for i in range(1, 5)), 2.0**-1, 2.0**-3]
    )


SCORES = np.array([[1.0, 3.0, 2.0, -1.0, 0.5, 2.9]])


def routed(bias: list[float] | None = None, **options) -> dict[int, float]:
    experts = Experts(count=6, used=2, ffn_dim=8, **options)
    chosen, shares = route(SCORES, experts, None if bias is None else np.array(bias))
    assert all(a >= b for a, b in pairwise(shares[0])) or bias is not None
    return dict(zip(chosen[0].tolist(), shares[0].tolist(), strict=True))


def test_routing() -> None:
    e = [math.exp(score) for score in SCORES[0]]
    assert routed() == pytest.approx({1: e[1] / sum(e), 5: e[5] / sum(e)})
    both = {1: e[1] / (e[1] + e[5]), 5: e[5] / (e[1] + e[5])}
    assert routed(normalize=True) == pytest.approx(both)
    assert routed(gating=Gating.SELECTED) == pytest.approx(both)
    s = [1 / (1 + math.exp(-score)) for score in SCORES[0]]
    assert routed(gating=Gating.SIGMOID, scale=2.5) == pytest.approx({1: 2.5 * s[1], 5: 2.5 * s[5]})
    # A bias changes the choice, not the shares.
    biased = routed([0, 0, 0, 5, 0, 0], gating=Gating.SIGMOID)
    assert biased == pytest.approx({3: s[3], 1: s[1]})


def test_routing_in_groups() -> None:
    # The pairs' sums are 4, 1, 3.4: the best group is the first, though expert 5 is better than 0.
    assert set(routed(groups=3, groups_used=1)) == {0, 1}
    assert set(routed(groups=3, groups_used=2)) == {1, 5}


def test_activations() -> None:
    x, up = np.linspace(-9, 9, 37), np.linspace(9, -9, 37)
    relu = activate(Activation.RELU, x, None, gelu)
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_array_equal(activate(Activation.RELU_SQUARED, x, None, gelu), relu * relu)
    mixed = activate(Activation.SWIGLU_OAI, x, up, gelu)
    for got, gate, linear in zip(mixed, x, up, strict=True):
        gate, linear = min(gate, 7.0), min(max(linear, -7.0), 7.0)
        assert got == pytest.approx(gate / (1 + math.exp(-1.702 * gate)) * (linear + 1))
    with pytest.raises(ValueError, match="needs a gate"):
        activate(Activation.SWIGLU_OAI, x, None, gelu)
    doubled = activate(Activation.GELU, x, up, lambda y: 2 * y)
    np.testing.assert_array_equal(doubled, 2 * x * up)


def test_layer_norm() -> None:
    x, weight = RNG.standard_normal((3, 8)) + 5, RNG.standard_normal(8)
    y = layer_norm(x, np.ones(8), 1e-12)
    np.testing.assert_allclose((y.mean(axis=1), y.std(axis=1)), ([0] * 3, [1] * 3), atol=1e-9)
    np.testing.assert_allclose(layer_norm(x, weight, 1e-12), y * weight)
